"""The version of jobq is written in one place, and everything reads it there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import jobq
from jobq.core import version

ROOT = Path(__file__).parents[2]


def test_the_package_has_the_version_of_the_source() -> None:
    assert jobq.__version__ == version.__version__


def test_the_version_is_one_that_package_indexes_accept() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", version.__version__)


def test_the_build_reads_the_version_from_the_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == ROOT / "src/jobq/core/version.py"


def test_no_other_module_spells_the_version() -> None:
    spelled = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"__version__ = \"", path.read_text())
    ]
    assert spelled == [ROOT / "src/jobq/core/version.py"]
