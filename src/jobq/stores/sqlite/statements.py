"""SQLite's statements and their columns, from the files of the sql folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from jobq.core.records.event_log import STATES
from jobq.stores.relational import statements
from jobq.stores.relational.rows import FIGURES, JOB_COLUMNS, QUEUE, Job, QueueRow, Row, lists

QUEUE_COLUMNS = (*QUEUE, "asleep", "heard", "seq", "pos", "logged", "minute")
"""Columns besides the counters and figures, in the order of the fields of QueueRow."""
COUNTERS = tuple(f"n_{state}" for state in STATES)
"""Columns that count the jobs of a queue, by state code."""
EVERY_QUEUE_COLUMN = (*QUEUE_COLUMNS, *COUNTERS, *(f"m_{figure}" for figure in FIGURES))


def queue_row(row: Row) -> QueueRow:
    """From the columns of {queue}."""
    own, counters = len(QUEUE_COLUMNS), len(QUEUE_COLUMNS) + len(COUNTERS)
    return QueueRow.of((*row[:own], row[own:counters], row[counters:]))


def values(queue: QueueRow) -> Row:
    """The parameters of `save_queue`."""
    return (
        queue.mode,
        queue.paused,
        queue.listed,
        queue.held_ms,
        queue.rate,
        queue.packed_settings,
        queue.reserved,
        queue.asleep,
        queue.heard,
        queue.seq,
        queue.pos,
        queue.logged,
        queue.minute,
        *queue.counts,
        *queue.figures,
        queue.qid,
    )


# Lists of columns for SQLite's statements: those of all dialects, and those that inspect damaged
# rows.


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
INSPECTED_JOB = {column: _JOB_TYPES[column] for column in JOB_COLUMNS}
"""The columns of jobs with their types, in the order in which a damaged row is inspected."""
INSPECTED_QUEUE = {
    **{
        column: _QUEUE_TYPES[field]
        for column, field in zip(QUEUE_COLUMNS, QueueRow.__struct_fields__, strict=False)
    },
    **dict.fromkeys(EVERY_QUEUE_COLUMN[len(QUEUE_COLUMNS) :], int),
}
"""The same for queues."""

COLUMNS = {
    **lists(lambda _: "?", EVERY_QUEUE_COLUMN),
    "job_sound": _sound(INSPECTED_JOB),
    "job_texts": _texts(INSPECTED_JOB),
    "job_inspected": _inspected(INSPECTED_JOB, "pk"),
    "queue_inspected": _inspected(INSPECTED_QUEUE, "qid"),
}
"""What the names in braces stand for in the SQL files."""

_PACKAGE = "jobq.stores.sqlite"

SQL = statements.load_all(_PACKAGE, COLUMNS)
"""The statements that the shared logic uses."""


def load(file: str) -> dict[str, str]:
    """The statements of a file by name."""
    return statements.load(_PACKAGE, file, COLUMNS)
