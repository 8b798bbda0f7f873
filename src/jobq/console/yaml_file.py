"""YAML files of the command lines. Whatever is wrong with one is an error of one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from jobq.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice. YAML would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> Any:
    """What a YAML file contains. ConfigError if it cannot be read."""
    try:
        return yaml.load(Path(path).read_text(), _Loader)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}") from e
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as e:  # such as bytes that are no text, or 2026-99-99
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(e).split())}") from e
