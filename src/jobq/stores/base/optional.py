"""What a store may offer in addition: pipelining, transactions of the caller, and maintenance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, cast

import msgspec

from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, LeaseRef, PutResult, QueueName
from jobq.errors import StoreUnavailable


class Pipelined(Protocol):
    """Optional ways to keep a store busy while its caller works. A store has all three or none.

    Correctness never depends on them: if `pipeline_of(store)` is None, callers do without.
    """

    @property
    def lanes(self) -> int:
        """How many exchanges of a worker, or puts of a producer, should be in flight at a time."""
        ...

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """Check and encode the specs for a `put` of exactly these, while another is in flight."""
        ...

    def expect(self, job: JobKey) -> AbstractAsyncContextManager[AsyncIterator[JobRecord | None]]:
        """Be notified of the end of a job that this handle puts inside the context.

        This needs no call to register. Yields the record of the ended job, or None if the store
        knows only that the job has ended. A duplicate, which was stored before, yields nothing: use
        `listen` for it.
        """
        ...


def pipeline_of(store: object) -> Pipelined | None:
    """The store as a `Pipelined` one; None if it is not."""
    return cast(Pipelined, store) if hasattr(store, "lanes") else None


# What a store may offer in addition: calls inside a transaction of the caller's own connection.


class QueueRemoved(StoreUnavailable):
    """A queue was removed after `Transactional.prepare_for_callers`. Prepare it again."""


class CallerTransaction(Protocol):
    """The transaction that a caller's connection is in. It is the caller who ends it.

    What a call changes becomes visible when the transaction commits, and never if it rolls back. A
    call that raises has changed nothing, and the transaction goes on. The connection must lead to
    the database of the store: ConfigError.
    """

    def put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """Like `Store.put`, for queues that exist and have a mode. Blocks.

        LockTimeout if another open transaction holds the id or the unique lock of a job.
        QueueRemoved if a queue was removed since it was prepared.
        `max_waiting` does not count the jobs of other open transactions.
        """
        ...

    async def put_async(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """The same for an event loop."""
        ...

    def complete(self, lease: LeaseRef, result: bytes | None) -> None:
        """Complete the job of a lease. LeaseLost if the lease is not held any more. InvalidJob if
        it has completed the job before, in a transaction that was not rolled back. Blocks.

        Only the job's own row is locked and changed. What follows from its end happens after the
        commit: by the next `settle` with this lease, or by a tick.
        """
        ...

    async def complete_async(self, lease: LeaseRef, result: bytes | None) -> None:
        """The same for an event loop."""
        ...


Completion = Literal["completed", "open", "active", "lost"]
"""What became of a `complete`.

`completed`: its transaction was committed. `open`: the transaction has not ended. `active`: it was
rolled back, and the lease is held. `lost`: it was rolled back, and the lease is lost.
"""


class Transactional(Protocol):
    """A store whose calls can be part of a caller's transaction."""

    def join(self, connection: object) -> CallerTransaction:
        """The transaction of this connection. ConfigError if the kind of connection is unknown."""
        ...

    async def prepare_for_callers(self, queue: QueueName, *, keyed: bool) -> None:
        """Make sure that the queue exists and has a mode, which a caller's transaction cannot do.

        ConfigError if it has the other mode.
        """
        ...

    async def completion(self, lease: LeaseRef) -> Completion:
        """What became of a `complete` of this lease."""
        ...


def transactional_of(store: object) -> Transactional | None:
    """The store as a `Transactional` one; None if it is not."""
    return cast(Transactional, store) if hasattr(store, "join") else None


# What a store in a database offers to the people who run the database.


class TableReport(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a table and of its indexes. Rows and bloat are estimates of the database."""

    name: str
    rows: int
    dead: int
    """Rows that were deleted or replaced, and that vacuum has not removed."""
    table_bytes: int
    index_bytes: int
    bloat_bytes: int | None
    """What the indexes use more than new indexes would; None: there are no statistics yet."""
    vacuumed_ms: int | None
    """When the table was last vacuumed."""


class TransactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction that keeps dead rows from being removed for the longest time."""

    age_s: float
    held_by: str
    """A session, a prepared transaction or a replication slot."""


class DatabaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database that a store is in."""

    server: str
    connections: int
    max_connections: int
    oldest: TransactionReport | None
    tables: tuple[TableReport, ...]
    """The largest first. Partitions of a table count as one."""


class Maintained(Protocol):
    """A store whose tables somebody maintains. Optional: see `database_of`."""

    async def pending_migration(self) -> str:
        """The SQL that `upgrade` would run; empty if there is nothing to do. Changes nothing."""
        ...

    async def upgrade(self) -> None:
        """Bring the tables up to date, even if the URL forbids it to other programs."""
        ...

    async def report(self) -> DatabaseReport:
        """The state of the database."""
        ...


def database_of(store: object) -> Maintained | None:
    """The store as a `Maintained` one; None if it is not."""
    return cast(Maintained, store) if hasattr(store, "pending_migration") else None
