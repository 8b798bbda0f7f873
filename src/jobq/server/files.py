"""Reads the files that a configuration names."""

from __future__ import annotations

from pathlib import Path

from jobq.errors import ConfigError


def read_file(path: Path) -> bytes:
    """The bytes of a file. ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}") from e


def secret_of(value: str | None, path: str | None) -> str | None:
    """A secret from the environment, or from a file without the line break at its end."""
    if value:
        return value
    return None if path is None else read_file(Path(path)).decode("utf-8", "replace").rstrip("\r\n")
