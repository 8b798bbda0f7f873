"""PostgreSQL's statements, from the files of the sql folder."""

from __future__ import annotations

from jobq.core.defaults import WATCHED_MS
from jobq.core.event_log import KIND_CODES
from jobq.core.states import Kind
from jobq.stores.relational import statements
from jobq.stores.relational.codes import CANCEL, ENDING, FOREVER, GIVEN, NOTED, WATCHED
from jobq.stores.relational.columns import JOB_COLUMNS, lists
from jobq.stores.relational.rows import ClaimedJob, NewJob

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


_KEPT = (
    f"CASE WHEN g.kept_ms IS NULL THEN {FOREVER} WHEN g.flags & {WATCHED} = 0 THEN $6 + g.kept_ms "
    f"ELSE $6 + greatest(g.kept_ms, {WATCHED_MS}) END"
)
"""How long a completed job is kept, as core.retention.kept_ms says."""

_ENDED = {
    "state": "4",
    "at_ms": _KEPT,
    "keep": "g.flags & 1",
    "finished_ms": "$6",
    "result": "g.returned",
}
"""The columns that differ when fast.sql completes a job."""


COLUMNS = {
    **lists(_mark),
    "ended_job": ", ".join(_ENDED.get(column, f"g.{column}") for column in JOB_COLUMNS),
    "claimed_c": ", ".join(f"c.{column}" for column in ClaimedJob.__struct_fields__),
    "started": str(KIND_CODES[Kind.STARTED]),
    "watched": str(WATCHED),
    "given": str(GIVEN),
    "not_plain": str(ENDING & ~WATCHED),
    "not_leasable": str(CANCEL | NOTED),
    "entry": "eid, qid, slot, n, at_ms, moved, figures",
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

FAST = load("fast.sql")
"""The statements of calls on plain queues."""
