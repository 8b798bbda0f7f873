"""Rows of the database by column name. This file alone lists the columns that statements read and
write.

A class has one field per column of a SELECT, in its order. This file gives the same lists to the
SQL files, which name them in braces: `SELECT {job} FROM jobs`. Rows are checked while they are
converted: a value of a type that the column never has, written by another program or a broken disk,
raises msgspec.ValidationError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from jobq.core.records.event_log import KIND_CODES
from jobq.core.records.jobs import Mode, QueueName, lane_of
from jobq.core.records.states import Kind
from jobq.core.rules.deferral import starts
from jobq.errors import CorruptStore
from jobq.stores.relational import packed
from jobq.stores.relational.packed import unpack_options

# Numbers that stand for states and flags in the jobs table. The SQL files use the same numbers.

# States, as in core.records.event_log.STATES.
DELAYED, BLOCKED, WAITING, ACTIVE, COMPLETED, FAILED, CANCELLED = range(7)
ENDED = (COMPLETED, FAILED, CANCELLED)

# Flags of a job, a bit each.
GIVEN = 1  # the caller chose the id
CANCEL = 2  # somebody asked to cancel it while it was active
WATCHED = 4  # a listener wants to know when it ends
WANTED = 8  # other jobs wait for it
LOCKING = 16  # it may hold a unique lock
TTL = 32  # it has a result_ttl of its own
SCHEDULED = 64  # a schedule continues when it ends
NOTED = 128  # it has log lines, signals, edges or steps, which are deleted with it
ERRED = 256  # it has rows in the errors table, which are deleted with it
COMMITTED = 512  # a transaction of its handler has completed it
UNFOLLOWED = 1024  # and what follows from its end is still to do
STEPPED = 2048  # it has rows in the steps table; NOTED is set too

ENDING = CANCEL | WATCHED | WANTED | LOCKING | TTL | SCHEDULED
"""A job without any of these flags, and without a key, changes only its own row when it ends."""

FOREVER = 2**53
"""`at_ms` of a job whose state does not end by the clock. NULL would leave it out of the clock
index, by which jobs are found by state."""


Row = tuple[Any, ...]
Bit = Annotated[int, msgspec.Meta(ge=0, le=1)]
StateCode = Annotated[int, msgspec.Meta(ge=0, le=6)]
Flags = Annotated[int, msgspec.Meta(ge=0, le=2 * STEPPED - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
R = TypeVar("R")

_BYTES = (bytes,)  # else msgspec would take text for base64


def read(row: Row, kind: type[R]) -> R:
    """A row as an object of its class."""
    return msgspec.convert(row, kind, builtin_types=_BYTES)


def read_all(rows: Iterable[Row], kind: type[R]) -> list[R]:
    """Rows as objects of their class. Takes 0.13 µs per row of a claim, checks included."""
    return msgspec.convert(rows, list[kind], builtin_types=_BYTES)  # type: ignore[valid-type]


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


class Job(msgspec.Struct, array_like=True):
    """A whole row of jobs: loaded, changed in Python and saved.

    Only put, claim and complete have statements of their own."""

    pk: int
    qid: int
    id: str
    state: StateCode
    priority: int
    seq: int
    at_ms: int | None
    keep: Bit
    key: str | None
    flags: Flags
    name: str
    life: Count
    attempt: Count
    failures: Count
    stalls: Count
    created_ms: int
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    worker: str | None
    token: str | None
    follows: Bit
    codec: str
    options: bytes | None
    failure: bytes | None
    reason: str | None
    saved: bytes | None
    progress: bytes | None
    payload: bytes
    result: bytes | None
    saved_place: Count  # the highest place of a checkpoint (core/rules/outcomes.py)
    actor: str | None = None  # not stored: who gave the command under way, for its events

    @property
    def starts(self) -> int:
        """How many of its attempts began a run."""
        if self.options is None:
            return self.attempt
        return starts(self.attempt, unpack_options(self.options).put_off)

    def values(self) -> Row:
        """The parameters of `save_job`."""
        pk, *columns, _ = msgspec.structs.astuple(self)
        return (*columns, pk)


class DamagedJob(Job, array_like=True):
    """A row of jobs with numbers that jobq never writes, as a database with types may hold them."""

    keep: int
    flags: int
    life: int
    attempt: int
    failures: int
    stalls: int
    follows: int


class NewJob(NamedTuple):
    """The parameters of `insert_job`: the columns that differ between new jobs."""

    qid: int
    id: str
    state: int
    priority: int
    seq: int
    at_ms: int | None
    key: str | None
    flags: int
    name: str
    life: int
    created_ms: int
    due_ms: int | None
    codec: str
    options: bytes | None
    payload: bytes


class ClaimedJob(msgspec.Struct, array_like=True, gc=False):
    """What a claim reads of a job. `attempt` counts the run that the claim begins."""

    pk: int
    id: str
    priority: int
    seq: int
    key: str | None
    name: str
    life: Count
    attempt: Count
    failures: Count
    stalls: Count
    created_ms: int
    due_ms: int
    flags: Flags
    codec: str
    options: bytes | None
    saved: bytes | None
    payload: bytes


class KeyHead(ClaimedJob, array_like=True, gc=False):
    """The next job of a key, and the key's row."""

    number: int  # of the row of its key
    waiting: int  # jobs of the key
    active: int
    rate: bytes | None


class RepeatedClaim(ClaimedJob, array_like=True, gc=False):
    """A job that an earlier call has claimed, for when that call is repeated."""

    token: str
    started_ms: int
    at_ms: int


class HeadOfQueue(msgspec.Struct, array_like=True, gc=False):
    """What decides whether a job at the head of a queue may start, and with which others."""

    pk: int
    stalls: Count
    name: str
    options: bytes | None


class Edge(NamedTuple):
    """A row of edges: a job that a parent waits or waited for."""

    ordinal: int
    child_qid: int
    child: str
    data: int
    done: int
    result: bytes | None
    codec: str | None
    failure: bytes | None
    asked: str | None


class Lock(NamedTuple):
    """Who holds a unique lock, and until when."""

    pk: int
    until_ms: int | None
    id: str


# ── queues ────────────────────────────────────────────────────────────────────────────────────────

FIGURES = (
    "accepted",
    "started",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "stalled",
    "wait_ms",
    "run_ms",
)
"""Figures of a minute: the columns of `minutes`."""
FIGURE_OF_KIND = {
    KIND_CODES[kind]: place
    for place, kind in enumerate(
        (
            Kind.ACCEPTED,
            Kind.STARTED,
            Kind.COMPLETED,
            Kind.FAILED,
            Kind.CANCELLED,
            Kind.RETRIED,
            Kind.STALLED,
        )
    )
}
"""The kinds of events that metrics count, by code, with their place in FIGURES."""
WAIT_MS, RUN_MS = FIGURES.index("wait_ms"), FIGURES.index("run_ms")
"""The places of the times that jobs have waited and run."""


QUEUE = (
    "qid",
    "tenant",
    "name",
    "mode",
    "paused",
    "listed",
    "held_ms",
    "rate",
    "settings",
    "reserved",
)
"""Columns of queues that every dialect has, in the order of the first fields of QueueRow."""


class QueueRow(msgspec.Struct, array_like=True):
    """A row of queues: loaded, changed in Python, and saved at the end of the transaction.

    The fields from `asleep` on belong to dialects that keep these facts in the row. Shared code
    asks `Tx` for them."""

    qid: int
    tenant: str
    name: str
    mode: Mode | None
    paused: Bit
    listed: Bit
    held_ms: int
    rate: bytes | None
    packed_settings: bytes | None
    reserved: int
    asleep: Bit = 0
    heard: Bit = 0
    seq: int = 0
    pos: int = 0
    logged: int = 0
    minute: int = 0
    counts: list[int] = []  # by state code
    figures: list[int] = []  # of the running minute, in the order of FIGURES
    qname: QueueName = QueueName("", "")  # tenant and name
    dirty: bool = False  # changed, and not saved yet

    @classmethod
    def of(cls, row: Row) -> QueueRow:
        """From the columns of QUEUE, and those of more fields in their order."""
        queue = read(row, cls)
        queue.qname = QueueName(queue.tenant, queue.name)
        return queue

    @property
    def has_settings(self) -> bool:
        """Whether a setting differs from its default. Most queues have none."""
        return self.packed_settings not in packed.NO_SETTINGS

    @property
    def settings(self) -> packed.StoredSettings:
        """The stored settings. CorruptStore if they cannot be read."""
        if (
            self.packed_settings in packed.NO_SETTINGS
        ):  # nearly all queues, several times per exchange
            return packed.DEFAULT_SETTINGS
        try:
            return packed.unpack_settings(self.packed_settings)
        except (msgspec.MsgspecError, TypeError) as error:
            raise CorruptStore(
                f"the settings of queue {self.name!r} cannot be read ({error}):"
                " obliterate(force=True) removes the queue"
            ) from error


class ScheduleRow(NamedTuple):
    """What is read of a row of schedules."""

    spec: bytes
    next_ms: int | None
    fired: int
    last_ms: int | None
    paused: int
    created_ms: int


# Lists of columns for the SQL files, which name them in braces: `SELECT {job} FROM jobs`.
#
# They are made from the classes above, so that a column is listed once.

JOB_COLUMNS = Job.__struct_fields__[:-1]  # `actor` is not stored
_CLAIMED = ClaimedJob.__struct_fields__
_TOKEN = "pk || '.' || life || '.' || {}"
"""What the tokens of a job's leases begin with, as in `token_of`."""


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


# The tokens of leases: the job's number, its life and attempt, and the call that claimed it.
#
# No two leases of a job have the same token. The call alone would not do: a call that the network
# delivers again after the worker's next one claims the job a second time.


def token_of(job: ClaimedJob, suffix: str) -> str:
    """The token of a lease. Statements that claim several jobs make the same text."""
    return f"{job.pk}.{job.life}.{job.attempt}{suffix}"


def token_suffix(worker: str, call: str) -> str:
    """The part of a token that all leases of one call share. It follows the attempt."""
    return f".{worker}/{call}"


def caller_of(worker: str, call: str) -> str:
    """Whose calls follow each other, as the store remembers them: a lane of a worker."""
    lane = lane_of(call)
    return f"{worker}\n{lane}" if lane else worker


def job_number(token: str) -> int:
    """The job's number in a token; -1 if this store has not made the token."""
    head = token.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else -1
