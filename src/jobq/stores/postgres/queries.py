"""PostgreSQL's statements, from the files of the sql folder."""

from __future__ import annotations

from jobq.core.records.defaults import WATCHED_MS
from jobq.stores.relational import statements
from jobq.stores.relational.rows import (
    CANCEL,
    ENDING,
    FOREVER,
    GIVEN,
    JOB_COLUMNS,
    NOTED,
    WATCHED,
    ClaimedJob,
    NewJob,
    lists,
)
from jobq.stores.relational.signals import SLEEP_MS

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


def _placeholder(n: int) -> str:
    return f"${n}"


def _typed(n: int, column: str) -> str:
    return f"${n}::{_ARRAYS.get(column, 'text')}"


_KEPT = (
    f"CASE WHEN q.kept_ms IS NULL THEN {FOREVER} WHEN g.flags & {WATCHED} = 0 THEN $6 + q.kept_ms "
    f"ELSE $6 + greatest(q.kept_ms, {WATCHED_MS}) END"
)
"""How long a completed job is kept, as core.rules.ended.kept_ms says."""

_ENDED = {
    "state": "4",
    "at_ms": _KEPT,
    "keep": "g.flags & 1",
    "finished_ms": "$6",
    "result": "g.returned",
}
"""The columns that differ when fast.sql completes a job."""


_FRAGMENTS = statements.load(_PACKAGE, "fragments.sql", {"latest": "{latest}"})

LATEST = _FRAGMENTS["latest"]
"""The latest time in the event log."""

FROM_FLOORS = {
    **{f"since_{n}": f" AND at_ms >= ${n}" for n in (2, 3, 4, 5, 6)},
    "since": " AND at_ms >= wanted.since",
    "floors_18": ", $18::bigint[]",
    "floor": ", since",
    "since_f": " AND at_ms >= coalesce(f.due, 0) AND at_ms <= $1",
    "ended_f": " AND at_ms >= coalesce(f.past, 0) AND at_ms <= $1",
    "floors_5": (
        " LEFT JOIN unnest($5::integer[], $6::bigint[], $7::bigint[]) AS f (qid, due, past)"
        " USING (qid)"
    ),
    "picked": _FRAGMENTS["picked_with_floors"],
    "more_waits": _FRAGMENTS["more_waits_with_floors"],
    # The jobs that ended in the last seconds had leases that would end in the next ones. To read
    # past those is not worth it: a worker looks again after a few seconds anyway.
    "no_leases": " AND false",
    # A tick that reads from the beginning looks for jobs that wait beside sleeping workers.
    "no_waiting": " AND false",
}
"""What makes statements begin at floors (floors.py). The floors are further parameters: times for
the clock index, and ranges for the index of waiting jobs."""

FROM_THE_BEGINNING = {
    **dict.fromkeys(FROM_FLOORS, ""),
    "picked": _FRAGMENTS["picked"],
    "more_waits": _FRAGMENTS["more_waits"],
}
"""The same for statements without floors."""

COLUMNS = {
    **lists(_placeholder),
    **FROM_THE_BEGINNING,
    "ended_job": ", ".join(_ENDED.get(column, f"g.{column}") for column in JOB_COLUMNS),
    "claimed_c": ", ".join(f"c.{column}" for column in ClaimedJob.__struct_fields__),
    "time": _FRAGMENTS["time"].replace("{latest}", LATEST),
    "lock_of_job": _FRAGMENTS["lock_of_job"],
    "lock_of_queue": _FRAGMENTS["lock_of_queue"],
    "watched": str(WATCHED),
    "given": str(GIVEN),
    "not_plain": str(ENDING & ~WATCHED),
    "not_leasable": str(CANCEL | NOTED),
    "sleep_ms": str(SLEEP_MS),
    "entry": "eid, qid, slot, n, at_ms, moved, figures",
    "job_number": _placeholder(len(JOB_COLUMNS)),
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


def load_with_floors(file: str) -> dict[str, str]:
    """The statements of a file by name, with floors."""
    return statements.load(_PACKAGE, file, {**COLUMNS, **FROM_FLOORS})


FAST_WITH_FLOORS = load_with_floors("fast.sql")
HOT_WITH_FLOORS = load_with_floors("hot.sql")
UPKEEP_WITH_FLOORS = load_with_floors("upkeep.sql")

FLOORS = load_with_floors("floors.sql")
"""The statements about snapshots that somebody holds open, and claims that begin at floors."""
