"""Reading jobs, queues and the event log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobq.core.records.defaults import MAX_LISTED_HOLDS
from jobq.core.records.events import EventPage
from jobq.core.records.jobs import Filter, JobKey, JobRecord, LockRecord, Page, QueueName
from jobq.core.records.queues import HoldsRecord, MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records.states import State


class ReadStore(Protocol):
    """Reading jobs and queues."""

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """The jobs as they are now, in order. None for a job that does not exist.

        `JobRecord.errors` has the last failed runs: errors, timeouts, stalls and crashes, but not
        an expired ttl or a cancel. The store sets the attempt, worker and time of each. They are
        kept when the job is rerun, and removed with the record.

        A job whose record is damaged is returned too, whatever was written there: with its id and
        its state, and with a failure of the type `Unreadable`. What cannot be read or shown has its
        default (`core.rules.outcomes.legible`).
        """
        ...

    async def find(
        self,
        filter: Filter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        until: str | None = None,
    ) -> Page:
        """Jobs of a queue, newest first within a state, without their `errors`.

        With `oldest_first`, the oldest come first. Waiting jobs of a keyed queue are listed key by
        key, each in that order. A cursor belongs to its filter. Each call looks at a bounded number
        of records, so a page may be short and still have a cursor. The listing ends at the cursor
        `until`, which comes from `skip`. Damaged jobs are listed as `get` returns them, and never
        fail the listing of others.
        """
        ...

    async def skip(
        self, filter: Filter, *, cursor: str | None = None, count: int = 1000
    ) -> str | None:
        """A cursor about `count` jobs after another one, at most 10,000, without reading the jobs.

        None if the listing ends before. Several readers share a long listing by such cursors: each
        reads from one cursor until the next one. A job that keeps its place is then read exactly
        once, also while others come and go. The task and the key of the filter are ignored. Raises
        InvalidJob for a listing that begins with the oldest jobs.
        """
        ...

    async def count(self, queue: QueueName) -> dict[State, int]:
        """How many jobs are in each state.

        Stores keep counters, so the cost is the same at any backlog.
        """
        ...

    async def stats(self, queue: QueueName) -> StatsRecord:
        """The queue at a glance: counts, mode, age of the next job, and what holds it back."""
        ...

    async def holds(self, queue: QueueName, *, limit: int = MAX_LISTED_HOLDS) -> HoldsRecord:
        """The holds in force: of the queue, and of up to `limit` keys, those that end first."""
        ...

    async def find_lock(self, queue: QueueName, lock: str) -> LockRecord | None:
        """Who holds a unique lock. None if it is free, or if its time is over."""
        ...

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """The last minutes, oldest first, without the empty ones. A day is kept."""
        ...

    async def logs(self, job: JobKey) -> list[str]:
        """A job's log lines, oldest first."""
        ...

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        """All queues, or those of one tenant, with what is stored about them."""
        ...


class EventStore(Protocol):
    """The log of everything that happened, per queue.

    A log has one shard per partition of its queue, and shard 0 if there are none. The events of a
    shard are numbered from 1 without gaps, also after `obliterate`. An event id never names two
    events: if a store has lost its last writes, numbers repeat and ids differ.
    """

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """About `limit` events after a position.

        A position has the form that `core.records.event_log.offsets` describes, with one offset
        per shard. "0" starts at the oldest event kept. None returns no events, only the current
        end. With `until`, a position that the log has reached, later events are left out, and an
        empty page means that all were read.
        """
        ...

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """Register `reader`, or move it to `position`. Returns its position; None only asks for it.

        The log keeps what a reader has not acknowledged, up to a hard cap. A reader whose next
        event was dropped gets a `gap` event first.
        """
        ...

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """The registered readers and their positions."""
        ...

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """Remove a reader, so that the log keeps nothing for it.

        False if there is no such reader.
        """
        ...
