"""What a store may offer in addition: calls inside a transaction of the caller's own connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, cast

from jobq.core.records import JobSpec, LeaseRef, PutResult, QueueName
from jobq.errors import StoreUnavailable


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
