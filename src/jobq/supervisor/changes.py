"""`--reload`: waits until a source file changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from jobq.errors import ConfigError

_DEBOUNCE_MS = 200
"""Changes within this time are one: an editor or a checkout writes several files at once."""


def check_reload() -> None:
    """Refuse --reload if the library that watches files is not installed."""
    try:
        import watchfiles  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError(
            "--reload needs the package watchfiles: pip install 'jobq[reload]'"
        ) from None


async def changed_files(folder: Path) -> AsyncIterator[list[str]]:
    """The Python files under `folder` that have changed, each time that some have."""
    from watchfiles import PythonFilter, awatch

    async for changes in awatch(folder, watch_filter=PythonFilter(), debounce=_DEBOUNCE_MS):
        yield _relative((path for _, path in changes), folder)


def _relative(paths: Iterable[str], folder: Path) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in paths)
