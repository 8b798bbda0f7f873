"""What a store may offer in addition: calls inside a transaction of the caller's own connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from jobq.core.records import JobSpec, PutResult, QueueName


class CallerTransaction(Protocol):
    """The transaction that a caller's connection is in. It is the caller who ends it.

    What a call changes becomes visible when the transaction commits, and never if it rolls back. A
    call that raises has changed nothing, and the transaction goes on. The connection must lead to
    the database of the store: ConfigError.
    """

    def put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """Like `Store.put`, for queues that exist and have a mode. Blocks.

        LockTimeout if another open transaction holds the id or the unique lock of a job.
        `max_waiting` does not count the jobs of other open transactions.
        """
        ...

    async def put_async(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """The same for an event loop."""
        ...


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


def transactional_of(store: object) -> Transactional | None:
    """The store as a `Transactional` one; None if it is not."""
    return cast(Transactional, store) if hasattr(store, "join") else None
