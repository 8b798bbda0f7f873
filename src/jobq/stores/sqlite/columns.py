"""Lists of columns for the SQL files, which name them in braces: `SELECT {job} FROM jobs`.

They are made from the classes of rows.py, so that a column is listed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from jobq.stores.sqlite.rows import (
    COUNTERS,
    FIGURES,
    QUEUE,
    ClaimedJob,
    Edge,
    HeadOfQueue,
    Job,
    Lock,
    NewJob,
    QueueRow,
    ScheduleRow,
)

_QUEUE_COLUMNS = (*QUEUE, *COUNTERS, *(f"m_{figure}" for figure in FIGURES))
_JOB = Job.__struct_fields__[:-1]  # `actor` is not stored
_CLAIMED = ClaimedJob.__struct_fields__


def _list(columns: Sequence[str], table: str = "") -> str:
    return ", ".join(table + column for column in columns)


def _assigned(columns: Sequence[str]) -> str:
    return ", ".join(f"{column} = ?" for column in columns)


def _claiming(table: str = "") -> str:
    """The columns of ClaimedJob before the claim, which adds one to the attempt."""
    return _list(_CLAIMED, table).replace(f"{table}attempt", f"{table}attempt + 1")


def _inspected(columns: Iterable[str], key: str) -> str:
    """The key, then the type and the value of each column: text as a blob, no blobs or reals."""
    safe = (
        "typeof({0}), CASE typeof({0})"
        " WHEN 'integer' THEN {0} WHEN 'text' THEN CAST({0} AS BLOB) END"
    )
    return ", ".join([key, *(safe.format(column) for column in columns)])


def _sound(columns: Mapping[str, Any]) -> str:
    """A condition: all values have the types and limits of their columns. UTF-8 is not checked."""
    names = {int: "integer", str: "text", bytes: "blob"}
    conditions = []
    for column, kind in columns.items():
        options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        types = {"null" if option is type(None) else names[_plain(option)] for option in options}
        conditions.append(f"typeof({column}) IN ({', '.join(map(repr, sorted(types)))})")
        for limit in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
            conditions.append(f"{column} >= {limit.ge}")
            conditions += [] if limit.le is None else [f"{column} <= {limit.le}"]
    return " AND ".join(conditions)


def _texts(columns: Mapping[str, Any]) -> str:
    """All text of a row as one blob."""
    texts = [column for column, kind in columns.items() if str in (kind, *get_args(kind))]
    joined = " || ".join(f"ifnull({column}, '')" for column in texts)
    return f"CAST({joined} AS BLOB)"


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


_JOB_TYPES = get_type_hints(Job, include_extras=True)
_QUEUE_TYPES = get_type_hints(QueueRow, include_extras=True)
INSPECTED_JOB = {column: _JOB_TYPES[column] for column in _JOB}
"""The columns of jobs with their types, in the order in which a damaged row is inspected."""
INSPECTED_QUEUE = {
    **{
        column: _QUEUE_TYPES[field]
        for column, field in zip(QUEUE, QueueRow.__struct_fields__, strict=False)
    },
    **dict.fromkeys(_QUEUE_COLUMNS[len(QUEUE) :], int),
}
"""The same for queues."""

COLUMNS = {
    "job": _list(_JOB),
    "job_assigned": _assigned(_JOB[1:]),
    "new_job": _list(NewJob._fields),
    "new_job_values": ", ".join("?" for _ in NewJob._fields),
    "claimed": _list(_CLAIMED),
    "claiming": _claiming(),
    "claiming_j": _claiming("j."),
    "head": _list(HeadOfQueue.__struct_fields__),
    "edge": _list(Edge._fields),
    "lock": _list(Lock._fields),
    "queue": _list(_QUEUE_COLUMNS),
    "queue_assigned": _assigned(_QUEUE_COLUMNS[3:]),
    "schedule": _list(ScheduleRow._fields),
    "figures": _list(FIGURES),
    "job_sound": _sound(INSPECTED_JOB),
    "job_texts": _texts(INSPECTED_JOB),
    "job_inspected": _inspected(INSPECTED_JOB, "pk"),
    "queue_inspected": _inspected(INSPECTED_QUEUE, "qid"),
}
"""What the names in braces stand for in the SQL files."""
