"""Following a job until it has ended: its state, its progress and its log lines, as they change.

The follower listens to the job's end, to what its runs store and to the log of its queue, and reads
the job after a signal. Signals can be lost, so it also reads the job every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence, Set
from math import inf
from operator import attrgetter
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from jobq.client.connection import Session
from jobq.client.deadlines import CHECK_AGAIN_S, Deadline
from jobq.client.waiting import ClosedAsError, closing, over, read_job
from jobq.core.records.jobs import JobKey, JobRecord, Signal, Topic

# What the signals of a subscription say, gathered so that many signals cause one read.

RENEW_S = 1800.0
"""Seconds after which a listener subscribes again. Stores forget a subscription after an hour."""

T = TypeVar("T")


class Gathered(Generic[T]):
    """Listens in the background while its context is open. `about` says what to keep of a signal.

    It hears nothing more if the subscription breaks, so its owner also looks without a signal.
    """

    def __init__(self, signals: AsyncIterator[Signal], about: Callable[[Signal], T]) -> None:
        self._signals, self._about = signals, about
        self._heard: set[T] = set()
        self.bell = asyncio.Event()
        """Set as soon as there is something to take. Others may set it too, to end a wait."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._listen(), name="jobq signals")
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task

    async def _listen(self) -> None:
        async with closing(self._signals):
            async for signal in self._signals:
                self._heard.add(self._about(signal))
                self.bell.set()

    async def next(self, seconds: float) -> set[T] | None:
        """Wait until the bell is set, then take. None if that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self.bell.wait()
        except TimeoutError:
            return None
        return self.take()

    def take(self) -> set[T]:
        """What was gathered since the last call."""
        self.bell.clear()
        heard, self._heard = self._heard, set()
        return heard


_PACE_S = 0.1
"""Seconds between two reads of the job that only the log of the queue has caused. A busy queue logs
hundreds of times per second, mostly about other jobs."""


class JobUpdate(NamedTuple):
    """A job as it was found, and the lines that it has logged since the last update."""

    record: JobRecord
    lines: Sequence[str]


async def updates(
    session: Session,
    job: JobKey,
    life: int | None,
    deadline: Deadline,
    repeat_s: float | None = None,
) -> AsyncGenerator[JobUpdate, None]:
    """Yield the job as it is now, then after each change, until it has ended.

    Several changes in a row may be one update. If nothing changes for `repeat_s`, the job is
    yielded again. Raises what `waiting.ended` raises.
    """
    topics = [Topic("ended", *job), Topic("noted", *job), Topic("log", job.queue, None)]
    eyes = _Eyes(session, job, life, repeat_s)
    while True:
        with ClosedAsError(job, deadline):
            renew = time.monotonic() + RENEW_S
            async with session.store.listen(topics) as signals, _Ears(signals) as ears:
                heard: set[str] = set()
                while time.monotonic() < renew:
                    update = await eyes.update(heard)
                    if update is not None:
                        yield update
                        if update.record.state.ended:
                            return
                    if deadline.left <= 0:
                        raise over(job, deadline, eyes.record)
                    heard = await ears.until(deadline, eyes.repeat_at)


class _Eyes:
    """Reads the job, and knows what was found before."""

    def __init__(
        self, session: Session, job: JobKey, life: int | None, repeat_s: float | None
    ) -> None:
        self._session, self._job, self._life, self._repeat_s = session, job, life, repeat_s
        self.record: JobRecord | None = None
        self._lines: Sequence[str] = ()
        self._lines_read = self._shown = -inf  # monotonic: when

    @property
    def repeat_at(self) -> float | None:
        """When to yield the job again if nothing changes; by the monotonic clock."""
        return None if self._repeat_s is None else self._shown + self._repeat_s

    async def update(self, heard: Set[str]) -> JobUpdate | None:
        """The job, if it has changed or is to be repeated. `heard`: the signals since the last
        update."""
        known = None if self.record is None else self.record.created_ms
        record = await read_job(self._session, self._job, self._life, known)
        lines: Sequence[str] = ()
        if record.attempt and (record.state.ended or self._lines_may_be_new(heard)):
            lines = await self._new_lines()
        now, before = time.monotonic(), self.record
        self.record, self._life = record, record.life
        repeated = self.repeat_at is not None and now >= self.repeat_at
        if before is None or lines or repeated or _visible(before) != _visible(record):
            self._shown = now
            return JobUpdate(record, lines)
        return None

    def _lines_may_be_new(self, heard: Set[str]) -> bool:
        """Whether a signal says so, or signals about it may have been lost."""
        return "noted" in heard or time.monotonic() - self._lines_read > CHECK_AGAIN_S

    async def _new_lines(self) -> Sequence[str]:
        self._lines_read = time.monotonic()
        before, self._lines = self._lines, await self._session.store.logs(self._job)
        return new_lines(before, self._lines)


def _visible(record: JobRecord) -> tuple[object, ...]:
    return (record.state, record.attempt, record.progress, record.cancel_asked)


def new_lines(seen: Sequence[str], logged: Sequence[str]) -> Sequence[str]:
    """The lines of a log that follow those seen before.

    A log drops its oldest lines, so the longest overlap counts. Without one, all lines are new."""
    for start in range(len(seen)):
        if seen[start:] == logged[: len(seen) - start]:
            return logged[len(seen) - start :]
    return logged


class _Ears(Gathered[str]):
    """Gathers the kinds of signals, and waits a moment if only the log of the queue has grown."""

    def __init__(self, signals: AsyncIterator[Signal]) -> None:
        super().__init__(signals, attrgetter("kind"))
        self._read_at = 0.0  # monotonic

    async def until(self, deadline: Deadline, repeat_at: float | None) -> set[str]:
        """Wait for a signal, for the deadline, or until it is time to look anyway. Returns the
        kinds of signals since the last call."""
        left = deadline.left
        if repeat_at is not None:
            left = min(left, repeat_at - time.monotonic())
        await self._ring(deadline, left)
        while self._heard == {"log"} and (rest := self._read_at + _PACE_S - time.monotonic()) > 0:
            self.bell.clear()
            await self._ring(deadline, min(deadline.left, rest))
            if deadline.left <= 0:
                break
        self._read_at = time.monotonic()
        return self.take()

    async def _ring(self, deadline: Deadline, seconds: float) -> None:
        if seconds <= 0:
            return
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                deadline.timeout = timeout
                await self.bell.wait()
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            deadline.timeout = None
