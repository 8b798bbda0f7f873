"""The Store contract. A store keeps jobs, and the rest of jobq is built on its calls.

Each docstring is a promise, and jobq_conformance holds every store to it. These rules apply to
all calls:

- **Batched and bounded.** The cost of a call follows the size of its arguments (or its `limit`),
  never the backlog.
- **Atomic per queue.** A call applies to a queue completely or not at all. A call that names
  several queues is atomic for each one.
- **Recorded.** Every transition is one of `core.records.states`, and is written to the queue's
  event log in the same atomic step.
- **One clock.** The store's clock, or the `clock` given to `open_store`, decides what is due and
  what has expired. Expiry is checked on every read: an expired record is gone, swept or not.
- **Times of a job never go back**, also if the clock is set or the clocks of two handles differ: an
  event is not older than the event of the job before it, a job does not start before it was put,
  and does not end before it started. A lease begins at the start that the store has recorded.
- **Safe to repeat.** After `StoreUnavailable` the caller does not know whether the call was
  applied. Repeating it with the same arguments does not apply it twice: `put` recognises ids,
  `settle` recognises `call`, and the other calls are idempotent.
- **No driver type is part of a call or a reply**, and every wait has a timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from jobq.stores.base.hot import HotStore, SignalStore
from jobq.stores.base.operators import OperatorStore, ScheduleStore
from jobq.stores.base.optional import (
    CallerTransaction,
    Completion,
    Maintained,
    Pipelined,
    QueueRemoved,
    Transactional,
    database_of,
    pipeline_of,
    transactional_of,
)
from jobq.stores.base.reads import EventStore, ReadStore
from jobq.stores.base.workers import PresenceStore

__all__ = [
    "CallerTransaction",
    "Clock",
    "Completion",
    "EventStore",
    "HotStore",
    "LifecycleStore",
    "Maintained",
    "OperatorStore",
    "Pipelined",
    "PresenceStore",
    "QueueRemoved",
    "ReadStore",
    "ScheduleStore",
    "SignalStore",
    "Store",
    "database_of",
    "Transactional",
    "pipeline_of",
    "transactional_of",
]

Clock = Callable[[], int]
"""Returns milliseconds since the epoch."""


class LifecycleStore(Protocol):
    """Opening, closing and upkeep of a handle.

    A handle belongs to the event loop that first awaits it. Another loop needs another handle.
    """

    async def migrate(self) -> None:
        """Connect, and bring the schema up to date. Every other call needs this first.

        Idempotent, and safe to run in parallel.
        """
        ...

    async def aclose(self) -> None:
        """Release the connections and files of the handle. Nothing stored changes."""
        ...

    async def tick(self, *, limit: int = 500) -> int:
        """Do upkeep in all queues, and return how many steps it took. `limit` means there is more.

        A step promotes, recovers, expires or removes one job, sweeps, or trims the event log. A
        call looks at a bounded number of queues. If there are more, it returns `limit`, and the
        next call continues with those.
        """
        ...

    async def __aenter__(self) -> Self:
        """Migrate."""
        ...

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        ...


class Store(
    HotStore,
    SignalStore,
    OperatorStore,
    ScheduleStore,
    ReadStore,
    PresenceStore,
    EventStore,
    LifecycleStore,
    Protocol,
):
    """A store with all roles. `url` is its address, without passwords."""

    url: str
