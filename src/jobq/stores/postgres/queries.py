"""PostgreSQL's statements, from the files of the sql folder."""

from __future__ import annotations

from jobq.stores.relational import statements
from jobq.stores.relational.columns import JOB_COLUMNS, lists
from jobq.stores.relational.rows import NewJob

_PACKAGE = "jobq.stores.postgres"
_ARRAYS = {
    "qid": "integer",
    "state": "smallint",
    "priority": "integer",
    "seq": "bigint",
    "at_ms": "bigint",
    "flags": "integer",
    "life": "integer",
    "created_ms": "bigint",
    "due_ms": "bigint",
    "options": "bytea",
    "payload": "bytea",
}
"""The types of columns of NewJob that are not text."""


def _mark(n: int) -> str:
    return f"${n}"


def _typed(n: int, column: str) -> str:
    return f"${n}::{_ARRAYS.get(column, 'text')}"


COLUMNS = {
    **lists(_mark),
    "job_number": _mark(len(JOB_COLUMNS)),
    "new_job_values": ", ".join(_typed(n, column) for n, column in enumerate(NewJob._fields, 1)),
    "new_job_arrays": ", ".join(
        f"{_typed(n, column)}[]" for n, column in enumerate(NewJob._fields, 1)
    ),
}
"""What the names in braces stand for in the SQL files."""

SQL = statements.load_all(_PACKAGE, COLUMNS)
"""The statements that the shared logic uses, and those of PostgresTx."""


def load(file: str) -> dict[str, str]:
    """The statements of a file by name."""
    return statements.load(_PACKAGE, file, COLUMNS)


NUMBERING = load("numbering.sql")
"""The statements that number the event log and sum its counters."""
