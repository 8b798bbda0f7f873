"""The calls of a store on a SQL database: each hands a function of this package to a transaction.

A dialect adds how it opens, closes, and runs transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from jobq.core.records import refusals
from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.defaults import MAX_LISTED_HOLDS
from jobq.core.records.events import EventPage
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Filter,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    LeaseState,
    LockRecord,
    Note,
    Page,
    PutResult,
    QueueName,
    Settled,
    Signal,
    Topic,
)
from jobq.core.records.queues import (
    Fire,
    HoldsRecord,
    Limits,
    MinuteRecord,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
    StatsRecord,
)
from jobq.core.records.states import State
from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest
from jobq.core.rules.new_jobs import (
    check_commands,
    check_queue,
    check_restored,
    check_schedule,
    check_specs,
)
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.relational import (
    alter,
    holds,
    locks,
    presence,
    queues,
    reads,
    schedules,
    settle,
    signals,
    submission,
)
from jobq.stores.relational import put as puts
from jobq.stores.relational.mailbox import Expectations, Mailbox
from jobq.stores.relational.submission import Drafts, Flow

T = TypeVar("T")
Work = Callable[..., T]
"""What a transaction runs: work(tx, *args)."""

SMALL = 100
"""Jobs. A call about this many takes at most 2 ms of work, so a dialect may run it in the event
loop's thread."""


class RelationalStore(ABC):
    """A handle on a SQL database, for one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._asleep: set[str] = set()
        self._expected = Expectations()
        self._drafts = Drafts()

    # ── of the dialect ────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _write(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a write of any size."""

    @abstractmethod
    def _write_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a write of at most SMALL jobs."""

    @abstractmethod
    def _read(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a read of any size."""

    @abstractmethod
    def _read_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a read of at most SMALL jobs."""

    @abstractmethod
    async def tick(self, *, limit: int = 500) -> int: ...

    @abstractmethod
    def _box(self) -> Mailbox:
        """The mailbox of the handle, which is opened by the first call that needs it."""

    @abstractmethod
    def _is_open(self) -> bool:
        """Whether calls can be made."""

    @abstractmethod
    def _log_id(self) -> str:
        """The id of the event log: part of the ids of its events."""

    # ── hot ───────────────────────────────────────────────────────────────────────────────────────

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        if flow is not None:
            return await self._put_flow(specs, flow, last)
        specs = check_specs(specs)
        watch = self._expected.watch(specs, self._box) if self._expected.callers else None
        return await (self._write_small if len(specs) <= SMALL else self._write)(
            puts.put, specs, watch
        )

    async def _put_flow(self, specs: Sequence[JobSpec], flow: str, last: bool) -> list[PutResult]:
        if not specs:
            raise refusals.empty_flow(flow)
        at = Flow(check_queue(specs[0].queue).tenant, flow)
        begins = self._drafts.begins(at, specs[0])
        try:
            specs = check_specs(specs)
            watch = self._expected.watch(specs, self._box) if self._expected.callers else None
            results = await self._write(submission.put_flow, specs, watch, flow, last, begins)
            if results is None:
                results = await submission.submit(self._read, self._write, at, specs, watch)
        except StoreUnavailable:
            raise  # the members may be stored: the caller repeats the call
        except JobqError:
            self._drafts.refused(at)
            await submission.discard(self._write, at)
            raise
        if last:
            self._drafts.submitted(at)
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        box = self._box()
        box.wake(worker).clear()
        was_asleep = worker in self._asleep
        write = (
            self._write_small
            if len(outcomes) + (0 if then is None else then.limit) <= 2 * SMALL
            else self._write
        )
        settled, asleep = await write(
            settle.exchange, outcomes, worker, call, then, box.address, was_asleep
        )
        if asleep:
            self._asleep.add(worker)
        elif was_asleep:
            self._asleep.discard(worker)
        return settled

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        return await self._write_small(settle.extend, leases, lease_ms)

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        return await self._write_small(settle.note, notes)

    # ── signals ───────────────────────────────────────────────────────────────────────────────────

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._box().wake(worker).wait()
        except TimeoutError:
            return False
        return True

    def listen(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        return self._listening(list(topics))

    @contextlib.asynccontextmanager
    async def _listening(self, topics: list[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        box = self._box()
        async with box.subscribed(topics) as heard:
            await self._write_small(signals.listen, topics, box.address)
            try:
                yield heard
            finally:
                alone = [topic for topic in topics if box.listeners(topic) == 1]
                if alone and self._is_open():
                    with contextlib.suppress(Exception):  # a sweep deletes it later
                        await self._write_small(signals.unlisten, alone, box.address)

    # ── pipelined ─────────────────────────────────────────────────────────────────────────────────

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """Return the specs, checked: there is nothing to encode ahead."""
        return check_specs(specs)

    def expect(self, job: JobKey) -> AbstractAsyncContextManager[AsyncIterator[JobRecord | None]]:
        """Saves the transaction of `listen`: the put registers the listener."""
        return self._expected.expect(job, self._box())

    # ── operators ─────────────────────────────────────────────────────────────────────────────────

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        return await (self._write_small if len(commands) <= SMALL else self._write)(
            alter.alter, check_commands(commands)
        )

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        return await self._write(queues.declare, queue, config)

    async def set_limits(
        self,
        queue: QueueName,
        limits: Limits | None,
        *,
        key: str | None = None,
        actor: str | None = None,
    ) -> None:
        await self._write(queues.set_limits, queue, limits, key, actor)

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        await self._write(queues.pause, queue, True, actor)

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        await self._write(queues.pause, queue, False, actor)

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        await self._write(holds.hold, queue, ms, key, actor)

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        return await self._write(holds.release, queue, key, actor)

    async def release_lock(
        self, queue: QueueName, lock: str, *, job: str | None = None, actor: str | None = None
    ) -> bool:
        return await self._write(locks.release_by_name, queue, lock, job, actor)

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        return await self._write(queues.purge_pending, queue, delayed, limit, actor)

    async def purge_ended(
        self,
        queue: QueueName,
        state: State,
        *,
        older_than_ms: int = 0,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        return await self._write(queues.purge_ended, queue, state, older_than_ms, limit, actor)

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        return await self._write(queues.obliterate, queue, force, limit, actor)

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        return await self._write(puts.restore, check_restored(records))

    # ── schedules ─────────────────────────────────────────────────────────────────────────────────

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        checked = check_schedule(spec, next_ms)
        return await self._write(schedules.put_schedule, checked, next_ms, actor)

    async def drop_schedule(self, queue: QueueName, id: str, *, actor: str | None = None) -> bool:
        return await self._write(schedules.drop_schedule, queue, id, actor)

    async def pause_schedule(
        self, queue: QueueName, id: str, *, paused: bool, actor: str | None = None
    ) -> Altered:
        return await self._write(schedules.pause_schedule, queue, id, paused, actor)

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        return await self._read(schedules.list_schedules, queue, due, limit)

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        return await self._write(schedules.fire, fires)

    # ── reads ─────────────────────────────────────────────────────────────────────────────────────

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        return await (self._read_small if len(jobs) <= SMALL else self._read)(reads.get, jobs)

    async def find(
        self,
        filter: Filter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        until: str | None = None,
    ) -> Page:
        return await self._read(reads.find, filter, cursor, limit, until)

    async def skip(
        self, filter: Filter, *, cursor: str | None = None, count: int = 1000
    ) -> str | None:
        return await self._read(reads.skip, filter, cursor, count)

    async def count(self, queue: QueueName) -> dict[State, int]:
        return await self._read_small(reads.count, queue)

    async def stats(self, queue: QueueName) -> StatsRecord:
        return await self._read_small(reads.stats, queue)

    async def holds(self, queue: QueueName, *, limit: int = MAX_LISTED_HOLDS) -> HoldsRecord:
        return await self._read(holds.listed, queue, limit)

    async def find_lock(self, queue: QueueName, lock: str) -> LockRecord | None:
        return await self._read_small(locks.find, queue, lock)

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        return await self._read(reads.metrics, queue, minutes)

    async def logs(self, job: JobKey) -> list[str]:
        return await self._read_small(reads.logs, job)

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        return await self._read(reads.queues, tenant)

    # ── presence ──────────────────────────────────────────────────────────────────────────────────

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        return await self._write(presence.beat, worker, ttl_ms, displace)

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        await self._write(presence.retire, worker, incarnation)

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        return await self._read(presence.workers, queue)

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        return await self._write(presence.ask_worker, name, request)

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        return await self._write(presence.lead, name, who, ttl_ms)

    # ── events ────────────────────────────────────────────────────────────────────────────────────

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        return await self._read(reads.read_events, self._log_id(), queue, after, limit, until)

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        return await self._write(reads.ack_events, queue, reader, position)

    async def readers(self, queue: QueueName) -> dict[str, str]:
        return await self._read(reads.readers, queue)

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        return await self._write(reads.remove_reader, queue, reader)
