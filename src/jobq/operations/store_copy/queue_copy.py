"""The copy of one queue: its settings, then its schedules, then its jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from jobq.core import copies
from jobq.core.records import QueueName, Topic
from jobq.core.states import State
from jobq.errors import ConfigError
from jobq.operations.listing import find_queue
from jobq.operations.schedules import of_queues
from jobq.operations.store_copy.job_moves import JobMoves
from jobq.operations.store_copy.queue_settings import HOLD_MS, copy_settings
from jobq.operations.store_copy.schedule_moves import move_schedules
from jobq.operations.store_copy.side import Side
from jobq.stores.base import Clock

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
