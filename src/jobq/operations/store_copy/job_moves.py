"""Moves the jobs of one queue, batch by batch, in the order in which they would start."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing

from jobq.core import copies
from jobq.core.commands import AnyCommand, Remove, Reschedule
from jobq.core.copies import Obstacle
from jobq.core.records import Filter, JobKey, JobRecord, JobSpec, PutResult, QueueName
from jobq.core.states import State
from jobq.errors import InvalidJob
from jobq.operations.listing import pages
from jobq.operations.store_copy.side import Side
from jobq.operations.store_copy.spool import Found, Spool
from jobq.stores.base import Clock

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
                Reschedule(job=key, at_ms=time, actor=self._source.actor)
                for key, time in zip(keys, times, strict=True)
            ]
        )
        # Read after the hold: what a job contains could change until then.
        records = await self._source.store.get(keys)
        held: list[tuple[int, JobSpec]] = []
        now = self._clock()
        for job, time, record in zip(found, times, records, strict=True):
            if record is None or record.state is not State.DELAYED or record.due_ms != time:
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
