"""The files of deploy/, parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def parsed(path: Path) -> Any:
    """The only document of a YAML file."""
    return yaml.safe_load(path.read_text())


def objects(folder: str = "base") -> dict[tuple[str, str], Any]:
    """The Kubernetes objects of a folder, by kind and name."""
    found = [
        each
        for path in sorted((KUBERNETES / folder).glob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
        if "metadata" in each
    ]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}
