"""Lists of columns for the SQL files, which name them in braces: `SELECT {job} FROM jobs`.

They are made from the classes of rows.py, so that a column is listed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobq.stores.relational.rows import (
    FIGURES,
    QUEUE,
    ClaimedJob,
    Edge,
    HeadOfQueue,
    Job,
    Lock,
    NewJob,
    ScheduleRow,
)

JOB_COLUMNS = Job.__struct_fields__[:-1]  # `actor` is not stored
_CLAIMED = ClaimedJob.__struct_fields__
_TOKEN = "pk || '.' || life || '.' || {}"
"""What the tokens of a job's leases begin with, as in tokens.token_of."""


def lists(placeholder: Callable[[int], str], queue: Sequence[str] = QUEUE) -> dict[str, str]:
    """What the names in braces stand for.

    `placeholder` writes the nth parameter of a statement. `queue` lists the columns of queues:
    those of rows.QUEUE, then the dialect's own."""
    return {
        "job": _list(JOB_COLUMNS),
        "job_assigned": _assigned(JOB_COLUMNS[1:], placeholder),
        "new_job": _list(NewJob._fields),
        "new_job_values": ", ".join(placeholder(n) for n, _ in enumerate(NewJob._fields, 1)),
        "claimed": _list(_CLAIMED),
        "claiming": _claiming(),
        "claiming_j": _claiming("j."),
        "token": _TOKEN.format("attempt"),
        "new_token": _TOKEN.format("(attempt + 1)"),
        "head": _list(HeadOfQueue.__struct_fields__),
        "edge": _list(Edge._fields),
        "lock": _list(Lock._fields),
        "queue": _list(queue),
        "queue_assigned": _assigned(queue[3:], placeholder),
        "schedule": _list(ScheduleRow._fields),
        "figures": _list(FIGURES),
    }


def _list(columns: Sequence[str], table: str = "") -> str:
    return ", ".join(table + column for column in columns)


def _assigned(columns: Sequence[str], placeholder: Callable[[int], str]) -> str:
    return ", ".join(f"{column} = {placeholder(n)}" for n, column in enumerate(columns, 1))


def _claiming(table: str = "") -> str:
    """The columns of ClaimedJob before the claim, which adds one to the attempt."""
    return _list(_CLAIMED, table).replace(f"{table}attempt", f"{table}attempt + 1")
