"""Finds rows with values that jobq never writes: those of another program, or of a broken disk.

Every statement checks the types of what it reads (rows.py), so a call fails when it meets such a
row. Then `near` looks at the rows that the call may have read. Those are few, however long the
queues are. `everywhere` looks at all jobs, a bounded number at a time. repair.py fixes what they
find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobq.core.records.commands import Command
from jobq.core.records.jobs import (
    Claim,
    Filter,
    JobKey,
    JobSpec,
    LeaseRef,
    Note,
    Outcome,
    QueueName,
)
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DELAYED,
    ENDED,
    FAILED,
    WAITING,
    Row,
    job_number,
)
from jobq.stores.sqlite.statements import INSPECTED_QUEUE, load

if TYPE_CHECKING:
    from jobq.stores.sqlite.tx import SqliteTx

SQL = load("repair.sql")
WINDOW = 1_000
"""Jobs that `near` looks at on each end of each index of a queue: what one call reads at the most.
"""
STEP = 2_000
"""Jobs that one step of `everywhere` looks at: 10 to 25 ms of work."""


class Damage(NamedTuple):
    """Rows that need a repair, by number."""

    jobs: frozenset[int] = frozenset()
    queues: frozenset[int] = frozenset()
    keys: frozenset[int] = frozenset()  # queues whose keys do

    def __bool__(self) -> bool:
        return bool(self.jobs or self.queues or self.keys)


class Named(NamedTuple):
    """What the arguments of a call name: queues, and jobs by id or by the number in their token."""

    queues: set[QueueName]
    jobs: set[JobKey]
    numbers: dict[int, QueueName]


def named(args: Iterable[object]) -> Named:
    """The queues and jobs in the arguments of a call."""
    found = Named(set(), set(), {})
    for arg in args:
        _collect(arg, found)
    return found


def near(tx: SqliteTx, names: Named) -> Damage:
    """The bad rows among those that a call with these names may have read."""
    bad_queues = frozenset(
        row[0]
        for row in tx.execute(SQL["inspect_queues"]).fetchall()
        if BAD in queue_values(tx, row).values()
    )
    qids = _qids(tx, names.queues)
    keys = frozenset(qid for qid in qids if tx.execute(SQL["bad_keys"], (qid,)).fetchone())
    pks = set(names.numbers)
    for job in names.jobs:
        for qid in _qids(tx, {job.queue}):
            pks.update(pk for (pk,) in tx.execute(SQL["job_by_id"], (qid, job.id)))
    for qid in qids:
        pks.update(_window(tx, qid))
    return Damage(frozenset(_bad_jobs(tx, pks)), bad_queues, keys)


def everywhere(tx: SqliteTx, after: int) -> tuple[Damage, int | None]:
    """The bad rows among the next jobs after a number, and the number to continue after; None: the
    end."""
    pks = [pk for (pk,) in tx.execute(SQL["next_jobs"], (after, STEP))]
    return Damage(frozenset(_bad_jobs(tx, pks))), pks[-1] if len(pks) == STEP else None


def misplaced(tx: SqliteTx, qid: int, mode: str | None, limit: int) -> frozenset[int]:
    """Waiting jobs that no claim finds: without a key in a keyed queue, or with one in a plain
    queue."""
    statement = "waiting_without_key" if mode == "keyed" else "waiting_with_key"
    return frozenset(pk for (pk,) in tx.execute(SQL[statement], (qid, limit)))


def patrol(tx: SqliteTx, limit: int) -> frozenset[int]:
    """Jobs that no index finds, among the next `limit` jobs of the database.

    Nobody else meets such a job, because of its state or its times. Each tick continues where the
    last one stopped, and begins again at the end: 500 jobs take 0.2 ms."""
    rows = tx.execute(SQL["patrol"], (tx.memory.patrolled, limit)).fetchall()
    tx.memory.patrolled = rows[-1][0] if len(rows) == limit else 0
    return frozenset(pk for pk, hidden in rows if hidden)


def bad_columns(row: Row, columns: dict[str, Any]) -> dict[str, object]:
    """The values of an inspected row by column, with `BAD` where a value has a wrong type."""
    values = {}
    for n, (column, kind) in enumerate(columns.items()):
        type_name, value = row[2 * n + 1], row[2 * n + 2]
        values[column] = _value(type_name, value, kind)
    return values


def queue_values(tx: SqliteTx, row: Row) -> dict[str, object]:
    """The values of an inspected queue.

    Numbers behind the last entry of its log are bad as well."""
    values = bad_columns(row, INSPECTED_QUEUE)
    last = tx.execute(SQL["last_entry"], (row[0],)).fetchone() or (0, 0)
    for column, least in zip(("pos", "logged"), last, strict=True):
        found = values[column]
        if isinstance(found, int) and found < least:
            values[column] = BAD
    return values


BAD = object()
"""In place of a value that the column never has."""


def _value(type_name: str, value: object, kind: Any) -> object:
    """The value of a column, or BAD.

    Blobs are not read: the type is all that a blob column promises."""
    if type_name == "text":
        try:
            value = bytes(value).decode()  # type: ignore[call-overload]
        except UnicodeDecodeError:
            return BAD
    elif type_name == "blob":
        value = b""
    elif type_name == "real":
        return BAD
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError:
        return BAD


def _bad_jobs(tx: SqliteTx, pks: Iterable[int]) -> Iterator[int]:
    for pk, sound, found, text in tx.execute(SQL["check_jobs"], (tx.listed(list(pks)),)):
        if not (sound and found and _is_utf8(text)):
            yield pk


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_hidden(values: dict[str, object]) -> bool:
    """Whether no index finds a job: it would never be claimed, promoted, recovered or deleted."""
    if values["state"] == WAITING:
        return values["due_ms"] is None
    return values["at_ms"] is None or (values["state"] not in ENDED and values["keep"] != 0)


def _qids(tx: SqliteTx, queues: set[QueueName]) -> list[int]:
    """The numbers of these queues; of all queues if none is named."""
    if not queues:
        return [qid for (qid,) in tx.execute(SQL["qids"])]
    return [qid for name in queues for (qid,) in tx.execute(SQL["qid"], name)]


def _window(tx: SqliteTx, qid: int) -> Iterator[int]:
    """Jobs at both ends of each index of a queue."""
    statements: list[tuple[str, tuple[int, ...]]] = [
        (name, ()) for name in ("head_waiting", "tail_waiting", "first_keyed", "next_keyed")
    ]
    for state in (DELAYED, BLOCKED, WAITING, ACTIVE, COMPLETED, FAILED, CANCELLED):
        for keep in (0, 1):
            statements += [("first_timed", (state, keep)), ("last_timed", (state, keep))]
    for name, more in statements:
        for (pk,) in tx.execute(SQL[name], (qid, WINDOW, *more)):
            if pk is not None:
                yield pk


def _collect(arg: object, found: Named) -> None:
    match arg:
        case QueueName():
            found.queues.add(arg)
        case JobKey(queue=queue) | JobSpec(queue=queue) | Command(job=JobKey(queue=queue)):
            found.queues.add(queue)
            key = arg.job if isinstance(arg, Command) else JobKey(queue, arg.id)
            found.jobs.add(key)
        case Outcome(queue=queue, token=token) | LeaseRef(queue=queue, token=token):
            found.queues.add(queue)
            if (number := job_number(token)) >= 0:
                found.numbers[number] = queue
        case Note(lease=lease):
            _collect(lease, found)
        case Filter(queue=queue):
            found.queues.add(queue)
        case Claim(queues=queues):
            found.queues.update(queues)
        case list() | tuple():
            for each in arg:
                _collect(each, found)
        case _:
            pass
