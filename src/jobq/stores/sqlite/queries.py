"""SQLite's statements, from the files of the sql folder."""

from __future__ import annotations

from jobq.stores.relational import statements
from jobq.stores.sqlite.columns import COLUMNS

_PACKAGE = "jobq.stores.sqlite"

SQL = statements.load_all(_PACKAGE, COLUMNS)
"""The statements that the shared logic uses."""


def load(file: str) -> dict[str, str]:
    """The statements of a file by name."""
    return statements.load(_PACKAGE, file, COLUMNS)
