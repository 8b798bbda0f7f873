"""Moves queues from one store to another through the Store contract (`jq-ctl store copy`)."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from jobq.client.deadlines import patient
from jobq.core.records.commands import AnyCommand, Remove, Reschedule
from jobq.core.records.jobs import Filter, JobKey, JobRecord, JobSpec, PutResult, QueueName, Topic
from jobq.core.records.queues import HoldsRecord, QueueConfig, QueueRecord, ScheduleRecord
from jobq.core.records.states import State
from jobq.core.rules import copies
from jobq.core.rules.copies import Obstacle, Parked
from jobq.errors import ConfigError, InvalidJob
from jobq.operations.listing import find_queue, pages
from jobq.operations.schedules import of_queues
from jobq.stores.base import Clock, Store

# One of the two stores of a copy.


class Side:
    """A store, each of whose calls may take `timeout_s` seconds, and who makes the calls."""

    def __init__(self, store: Store, *, timeout_s: float = 10.0, actor: str | None = None) -> None:
        late = (
            f"{store.url} did not reply within {timeout_s:g} s; "
            "run the same command again to continue the copy"
        )
        self.store = patient(store, timeout_s, late)
        self.actor = actor


HOLD_MS = 30_000
"""Milliseconds that a hold of the source lasts while a copy runs. The copy renews it. If the copy
dies, the source goes on after this time with the jobs that have not moved."""


async def copy_settings(source: Side, target: Side, record: QueueRecord, *, clock: Clock) -> None:
    """Give the queue in the target the mode, limits, retention, pause and holds of the source.

    ConfigError, before anything changes, if the target has the queue with another mode or with
    other limits under the same version. What was changed at run time in the target stays.
    """
    queue = record.queue
    held = await source.store.holds(queue)
    there = await _declare(target, record)
    limits = record.limits
    changed_there = there.limits.changed is not None or there.limits.version > limits.version
    if limits.changed is not None and not changed_there:
        await target.store.set_limits(queue, limits.changed, actor=target.actor)
    for key, own in limits.keys.items():
        if key not in there.limits.keys:
            await target.store.set_limits(queue, own, key=key, actor=target.actor)
    if record.paused and not there.paused:
        await target.store.pause(queue, actor=target.actor)
    await _copy_holds(target, queue, held, clock())


async def _declare(target: Side, record: QueueRecord) -> QueueRecord:
    limits = record.limits
    config = QueueConfig(
        mode=record.mode,
        limits=limits.declared if limits.version else None,
        limits_version=limits.version or 1,
        retention=record.retention,
        dead_letters=record.dead_letters,
        max_stalls=record.max_stalls,
        event_meta=record.event_meta,
        defaults=record.defaults,
        partitions=record.partitions if record.partitions > 1 else None,
    )
    try:
        return await target.store.declare(record.queue, config)
    except ConfigError:
        if config.partitions is None:
            raise
    # A store without partitions keeps the order of the whole queue, which is more than a partition
    # promises.
    return await target.store.declare(
        record.queue, msgspec.structs.replace(config, partitions=None)
    )


async def _copy_holds(target: Side, queue: QueueName, held: HoldsRecord, now_ms: int) -> None:
    # A hold of the queue that ends this soon may be the copy's own, of a run that was killed.
    if held.until_ms is not None and held.until_ms > now_ms + HOLD_MS:
        await target.store.hold(queue, held.until_ms - now_ms, actor=target.actor)
    for key, until_ms in held.keys.items():
        if until_ms > now_ms:
            await target.store.hold(queue, until_ms - now_ms, key, actor=target.actor)


# Moves the schedules of one queue. Each time fires in one of the two stores, never in both.


async def move_schedules(source: Side, target: Side, queue: QueueName, *, idle: bool) -> int:
    """Move the schedules of a queue, and return how many moved.

    A schedule is first parked in the target: stored so that it cannot fire. It is then paused in
    the source, read again, removed there, and started in the target. A copy that was killed finds
    the parked schedule and continues. `idle` is False if jobs of the queue are active: a schedule
    that waits for its job to end then stays.
    """
    moved = await _finish_last(source, target, queue)
    for record in await of_queues(source.store, [queue]):
        waits = record.spec.after_complete and record.next_ms is None
        if copies.is_over(record) or copies.parked(record) or (waits and not idle):
            continue
        await _move(source, target, record, paused=record.paused)
        moved += 1
    return moved


async def _finish_last(source: Side, target: Side, queue: QueueName) -> int:
    """Finish the schedules that a killed copy has parked."""
    left = {record.spec.id: record for record in await of_queues(source.store, [queue])}
    finished = 0
    for stand_in in await of_queues(target.store, [queue]):
        parked = copies.parked(stand_in)
        if parked is None:
            continue
        record = left.get(stand_in.spec.id)
        if record is None:
            await _start(target, parked)
        else:
            await _move(source, target, record, paused=parked.paused)
        finished += 1
    return finished


async def _move(source: Side, target: Side, record: ScheduleRecord, *, paused: bool) -> None:
    queue, id = record.spec.queue, record.spec.id
    await _park(target, record, paused=paused)
    await source.store.pause_schedule(queue, id, paused=True, actor=source.actor)
    # It cannot fire any more, so its next time is final now.
    for last in await of_queues(source.store, [queue]):
        if last.spec.id == id:
            record = last
            await _park(target, record, paused=paused)
    await source.store.drop_schedule(queue, id, actor=source.actor)
    stand_in = copies.parked(ScheduleRecord(spec=copies.park(record, paused=paused), next_ms=None))
    assert stand_in is not None
    await _start(target, stand_in)


async def _park(target: Side, record: ScheduleRecord, *, paused: bool) -> None:
    await target.store.put_schedule(
        copies.park(record, paused=paused), next_ms=None, actor=target.actor
    )


async def _start(target: Side, parked: Parked) -> None:
    """Replace the parked schedule by the real one."""
    spec = parked.spec
    if parked.paused:
        await target.store.pause_schedule(spec.queue, spec.id, paused=True, actor=target.actor)
    await target.store.put_schedule(spec, next_ms=parked.next_ms, actor=target.actor)


# A long list on disk that is written forwards and read backwards.


class Found(NamedTuple):
    """A job that a listing showed."""

    id: str
    due_ms: int


class Spool:
    """Pages of found jobs. A listing shows the newest job first, and a copy stores the oldest
    first, so the whole list is needed before the first job can move. Ten million jobs take about
    400 MB of disk and no memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._pages: list[tuple[int, int]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Found]).decode

    def add(self, page: list[Found]) -> None:
        """Append a page."""
        data = self._encode(page)
        self._pages.append((self._file.tell(), len(data)))
        self._file.write(data)

    def backwards(self) -> Iterator[list[Found]]:
        """The pages, the last one first, each in reverse order."""
        for start, size in reversed(self._pages):
            self._file.seek(start)
            yield self._decode(self._file.read(size))[::-1]

    def close(self) -> None:
        """Delete the file."""
        self._file.close()


# Moves the jobs of one queue, batch by batch, in the order in which they would start.

BATCH = 500
"""Jobs that are out of circulation at a time: few enough that other callers do not wait long, and
that little is left to finish after a kill."""
_MAX_BYTES = 8_000_000
"""Bytes of payloads per put. Large payloads move in smaller batches."""


class JobMoves:
    """The moves of one queue's jobs. `moved` and `stayed` count them.

    `progress` is called with the number of jobs that have just moved. `alive` is awaited before
    each batch.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        queue: QueueName,
        *,
        clock: Clock,
        progress: Callable[[int], None],
        alive: Callable[[], Awaitable[None]],
    ) -> None:
        self._source, self._target, self._queue = source, target, queue
        self._clock, self._progress, self._alive = clock, progress, alive
        self.moved: Counter[State] = Counter()
        self.stayed: Counter[Obstacle] = Counter()

    async def finish_last(self) -> None:
        """Move the jobs that a killed copy has left out of circulation."""
        held: list[JobRecord] = []
        async for page in self._pages(State.DELAYED):  # the latest first: these are in front
            held += [record for record in page if copies.is_held(record.due_ms)]
            if not copies.is_held(page[-1].due_ms) and not _far(page[-1]):
                break
        held.sort(key=lambda record: (record.due_ms or 0, record.id))
        found = [Found(record.id, copies.released(record.due_ms or 0)) for record in held]
        for batch in _chunks(found):
            await self._move(batch)

    async def move(self, state: State) -> int:
        """Move all jobs of a state that can move. Returns how many moved.

        A job that goes to the front of its priority (`lifo`) moves when it is listed, because the
        last one put is the first to start. All others move oldest first.
        """
        before = sum(self.moved.values())
        with closing(Spool()) as spool:
            async for page in self._pages(state):
                able = [record for record in page if self._able(record)]
                spool.add([_found(record) for record in able if not record.options.lifo])
                for batch in _chunks([_found(r) for r in able if r.options.lifo]):
                    await self._move(batch)
            for page_of_found in spool.backwards():
                for batch in _chunks(page_of_found):
                    await self._move(batch)
        return sum(self.moved.values()) - before

    async def move_failed(self) -> int:
        """Move the failed jobs that can move, oldest first. Returns how many moved."""
        before = self.moved[State.FAILED]
        with closing(Spool()) as spool:
            async for page in self._pages(State.FAILED):
                spool.add([_found(record) for record in page if self._able(record)])
            for page_of_found in spool.backwards():
                for batch in _chunks(page_of_found):
                    await self._move_failed(batch)
        return self.moved[State.FAILED] - before

    async def _move_failed(self, found: Sequence[Found]) -> None:
        """Store failed jobs in the target, then remove them. None of them is in circulation."""
        await self._alive()
        keys = [JobKey(self._queue, job.id) for job in found]
        records = await self._source.store.get(keys)  # with their errors
        failed = [record for record in records if record and record.state is State.FAILED]
        self.stayed["started"] += len(found) - len(failed)
        restored = await self._restore(failed)
        moved = [record for record, done in zip(failed, restored, strict=True) if done]
        known = [record for record, done in zip(failed, restored, strict=True) if done is False]
        same = await self._same(known)
        self.stayed["id"] += len(known) - len(same)
        self.stayed["invalid"] += restored.count(None)
        moved += same
        await self._alter(
            [Remove(job=JobKey(self._queue, r.id), actor=self._source.actor) for r in moved]
        )
        self.moved[State.FAILED] += len(moved)
        self._progress(len(moved))

    async def _restore(self, failed: Sequence[JobRecord]) -> list[bool | None]:
        """Store failed jobs in the target. None for a job that the target refuses."""
        try:
            return list(await self._target.store.restore(failed))
        except InvalidJob:
            if len(failed) == 1:
                return [None]
        return [done for record in failed for done in await self._restore([record])]

    async def _same(self, records: Sequence[JobRecord]) -> list[JobRecord]:
        """Those of the failed jobs that the target has already, from a copy that was killed."""
        keys = [JobKey(self._queue, record.id) for record in records]
        there = await self._target.store.get(keys)
        return [
            record
            for record, other in zip(records, there, strict=True)
            if other is not None and other.created_ms == record.created_ms
        ]

    def _able(self, record: JobRecord) -> bool:
        obstacle = copies.obstacle(record)
        if obstacle is not None:
            self.stayed[obstacle] += 1
        return obstacle is None

    async def _pages(self, state: State) -> AsyncIterator[tuple[JobRecord, ...]]:
        await self._alive()
        async for records in pages(
            self._source.store, Filter(queue=self._queue, state=state), BATCH
        ):
            yield records
            await self._alive()

    async def _move(self, found: Sequence[Found]) -> None:
        """Hold the jobs in the source, put them into the target, and remove them."""
        await self._alive()
        records = await self._hold(found)
        for part in _by_size(records):
            results = await self._put([spec for _, spec in part])
            stored: list[JobSpec] = []
            refused: list[tuple[str, int]] = []
            for (due, spec), result in zip(part, results, strict=True):
                if result is not None and result.full is None and result.id == spec.id:
                    stored.append(spec)
                    continue
                refused.append((spec.id, due))
                self.stayed[_refusal(result)] += 1
            await self._remove(stored)
            await self._release(refused)

    async def _put(self, specs: Sequence[JobSpec]) -> list[PutResult | None]:
        """Put jobs into the target. None for a job that the target refuses.

        If there is no reply, the jobs may be stored, so they stay held and the copy ends. The next
        run finds out.
        """
        store = self._target.store
        try:
            return list(await store.put(specs))
        except InvalidJob:
            if len(specs) == 1:
                return [None]
        return [result for spec in specs for result in await self._put([spec])]

    async def _hold(self, found: Sequence[Found]) -> list[tuple[int, JobSpec]]:
        """Take jobs out of circulation. Returns the due times and specs of those that could be.

        From here until they are removed no worker of the source can claim them, even if this
        process dies.
        """
        times = copies.held_times([job.due_ms for job in found])
        keys = [JobKey(self._queue, job.id) for job in found]
        await self._alter(
            [
                Reschedule(job=key, at_ms=due, actor=self._source.actor)
                for key, due in zip(keys, times, strict=True)
            ]
        )
        # Read after the hold: what a job contains could change until then.
        records = await self._source.store.get(keys)
        held: list[tuple[int, JobSpec]] = []
        now = self._clock()
        for job, due, record in zip(found, times, records, strict=True):
            if record is None or record.state is not State.DELAYED or record.due_ms != due:
                self.stayed["started"] += 1
            elif self._able(record):
                held.append((job.due_ms, copies.spec_of(record, due_ms=job.due_ms, now_ms=now)))
            else:
                await self._release([(job.id, job.due_ms)])
        return held

    async def _remove(self, specs: Sequence[JobSpec]) -> None:
        await self._alter(
            [Remove(job=JobKey(self._queue, s.id), actor=self._source.actor) for s in specs]
        )
        now = self._clock()
        for spec in specs:
            later = spec.at_ms is not None and spec.at_ms > now
            self.moved[State.DELAYED if later else State.WAITING] += 1
        self._progress(len(specs))

    async def _release(self, jobs: Sequence[tuple[str, int]]) -> None:
        """Put jobs into circulation again in the source."""
        await self._alter(
            [
                Reschedule(job=JobKey(self._queue, id), at_ms=due, actor=self._source.actor)
                for id, due in jobs
            ]
        )

    async def _alter(self, commands: Sequence[AnyCommand]) -> None:
        if commands:
            await self._source.store.alter(commands)


def _refusal(result: PutResult | None) -> Obstacle:
    if result is None:
        return "invalid"
    return "unique" if result.full is None else "full"


def _found(record: JobRecord) -> Found:
    return Found(record.id, copies.released(record.due_ms or 0))


def _far(record: JobRecord) -> bool:
    """Whether a job is due so late that held jobs are listed behind it."""
    return record.due_ms is not None and record.due_ms >= copies.HELD_MS


def _chunks(found: Sequence[Found]) -> Iterator[Sequence[Found]]:
    for start in range(0, len(found), BATCH):
        yield found[start : start + BATCH]


def _by_size(jobs: list[tuple[int, JobSpec]]) -> Iterator[list[tuple[int, JobSpec]]]:
    part: list[tuple[int, JobSpec]] = []
    size = 0
    for job in jobs:
        if part and size + len(job[1].payload) > _MAX_BYTES:
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job[1].payload)
    if part:
        yield part


# The copy of one queue: its settings, then its schedules, then its jobs.

_RENEW_S = 10.0
"""Seconds between two renewals: two may fail before the hold ends."""
_CHECK_S = 1.0
"""Seconds between two looks at the active jobs, if no signal says that one has ended."""
_LONGER_MS = 1_000
"""Milliseconds that the first hold outlasts another hold of the source."""
_MAX_PASSES = 10
"""How often the copy looks for jobs that arrived meanwhile. A producer that still uses the source
adds jobs faster than any number of passes could end."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the copy of a queue did. `stayed` counts the jobs that are left, by reason."""

    queue: str
    waiting: int = 0
    delayed: int = 0
    failed: int = 0
    schedules: int = 0
    active: int = 0  # still running in the source
    stayed: dict[str, int] = {}

    @property
    def moved(self) -> int:
        """How many jobs moved."""
        return self.waiting + self.delayed + self.failed

    @property
    def complete(self) -> bool:
        """Whether nothing is left in the source."""
        return not self.active and not self.stayed


async def preview(source: Side, queue: QueueName) -> Report:
    """What a copy would move now, by the counters of the source. Changes nothing.

    Every blocked job stays. Of the others, some may turn out to belong to a flow.
    """
    counts = await source.store.count(queue)
    listed = await of_queues(source.store, [queue])
    blocked = counts.get(State.BLOCKED, 0)
    return Report(
        queue=queue.queue,
        waiting=counts.get(State.WAITING, 0),
        delayed=counts.get(State.DELAYED, 0),
        failed=counts.get(State.FAILED, 0),
        schedules=sum(not copies.is_over(record) for record in listed),
        active=counts.get(State.ACTIVE, 0),
        stayed={"flow": blocked} if blocked else {},
    )


class QueueCopy:
    """Moves one queue. Running it again continues a copy that was stopped or killed.

    The source is held while the copy runs, so no worker claims jobs from it, and `wait_s` is how
    long to wait for jobs that are active. With 0, running jobs end in the source.
    """

    def __init__(
        self,
        source: Side,
        target: Side,
        queue: QueueName,
        *,
        wait_s: float = 60.0,
        clock: Clock | None = None,
        progress: Callable[[int], None] = lambda moved: None,
    ) -> None:
        self._source, self._target, self._queue = source, target, queue
        self._wait_s = wait_s
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._progress = progress
        self._held_at = float("-inf")

    async def run(self) -> Report:
        """Move everything that can move.

        ConfigError, before any job moves, if the target has the queue with other settings, if both
        are the same store, or if jobs are still active when the wait is over.
        """
        record = await find_queue(self._source.store, self._queue)
        if record is None:
            raise ConfigError(f"no queue {self._queue.queue!r} in {self._source.store.url}")
        await copy_settings(self._source, self._target, record, clock=self._clock)
        await self._check_apart()
        idle = await self._wait_for_active()
        schedules = await move_schedules(self._source, self._target, self._queue, idle=idle)
        jobs = await self._move_jobs()
        active = await self._active()
        return Report(
            queue=self._queue.queue,
            waiting=jobs.moved[State.WAITING],
            delayed=jobs.moved[State.DELAYED],
            failed=jobs.moved[State.FAILED],
            schedules=schedules,
            active=active,
            stayed={str(reason): n for reason, n in jobs.stayed.items() if n},
        )

    async def _move_jobs(self) -> JobMoves:
        jobs = JobMoves(
            self._source,
            self._target,
            self._queue,
            clock=self._clock,
            progress=self._progress,
            alive=self._hold,
        )
        await jobs.finish_last()
        for _ in range(_MAX_PASSES):
            jobs.stayed.clear()
            moved = [await jobs.move(state) for state in (State.WAITING, State.DELAYED)]
            moved.append(await jobs.move_failed())
            if not sum(moved):
                break
        counts = await self._source.store.count(self._queue)
        if blocked := counts.get(State.BLOCKED, 0):
            jobs.stayed["flow"] += blocked
        return jobs

    async def _check_apart(self) -> None:
        """Hold the source. ConfigError if the target is held by that too.

        Two URLs may lead to one store. Its jobs would be removed, because the target has them.
        """
        source, target, queue = self._source, self._target, self._queue
        before = (await target.store.holds(queue)).until_ms
        last = (await source.store.holds(queue)).until_ms or 0
        # Longer than a hold that is there already, or nothing would change.
        await self._hold(max(HOLD_MS, last - self._clock() + _LONGER_MS))
        own = (await source.store.holds(queue)).until_ms
        after = (await target.store.holds(queue)).until_ms
        if after == own != before:
            raise ConfigError(
                f"{source.store.url} and {target.store.url} are the same store, so there is "
                "nothing to move"
            )

    async def _hold(self, ms: int = HOLD_MS) -> None:
        """Stop claims from the source for a while, if the last hold is about to end."""
        if time.monotonic() - self._held_at < _RENEW_S:
            return
        await self._source.store.hold(self._queue, ms, actor=self._source.actor)
        self._held_at = time.monotonic()

    async def _active(self) -> int:
        counts = await self._source.store.count(self._queue)
        return counts.get(State.ACTIVE, 0)

    async def _wait_for_active(self) -> bool:
        """Wait until no job of the source is active. True if none is.

        Keys and limits hold inside one store, so a key's next job must not start in the target
        while its last one still runs in the source.
        """
        store, end = self._source.store, time.monotonic() + self._wait_s
        async with store.listen([Topic("log", self._queue, None)]) as signals:
            while active := await self._active():
                left = end - time.monotonic()
                if self._wait_s == 0:
                    return False
                if left <= 0:
                    raise ConfigError(
                        f"queue {self._queue.queue!r} of {store.url} still has {active} active "
                        f"jobs after {self._wait_s:g} s, and no job has moved: wait longer with "
                        "--wait, stop the workers, or move the other jobs now with --wait 0"
                    )
                await self._hold()
                await store.tick()  # recovers jobs whose worker has died
                try:
                    async with asyncio.timeout(min(left, _CHECK_S)):
                        await anext(signals)
                except TimeoutError:
                    pass
        return True
