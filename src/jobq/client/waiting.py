"""Waiting for a job to end: subscribe, look, then wait. Never misses, never polls tightly, never hangs on what is gone.

A signal can be lost, so every wait looks again by itself every few seconds; hundreds of waits share one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from jobq.client.deadline import Deadline
from jobq.client.session import Session
from jobq.core.bounds import queue_full
from jobq.core.records import JobKey, JobRecord, JobSpec, PutResult, Signal, Topic
from jobq.errors import JobNotFound, QueueClosed, WaitTimeout


async def ended(session: Session, job: JobKey, life: int | None, deadline: Deadline) -> JobRecord:
    """The record of a job that has ended. `life`: which of its lives (None: the one found first)."""
    topic = Topic("ended", job.queue, job.id)
    while True:
        with _Noticing(job, deadline):
            async with session.store.listen([topic]) as signals:
                record = await _look(session, job, life)
                if record.state.ended:
                    return record
                life = record.life
                found = await _told(session, job, life, signals, deadline)
        if found is not None:
            return found
        if deadline.left <= 0:
            raise _over(job, deadline)


async def put_and_wait(
    session: Session, spec: JobSpec, deadline: Deadline
) -> tuple[PutResult, JobRecord]:
    """Put a job and wait for its end: without a call to register for it, where the store can do so."""
    job = JobKey(spec.queue, spec.id)
    if session.pipeline is None:
        result = await session.sender.put(spec)
    else:
        async with session.pipeline.expect(job) as ends:
            result = await session.sender.put(spec)
            if not result.duplicate and result.full is None:
                with _Noticing(job, deadline):
                    found = await _told(session, job, result.life, ends, deadline)
                if found is not None:
                    return result, found
    if result.full is not None:
        raise queue_full(spec.queue.queue, result.full)
    if result.found is not None and result.found.state.ended:
        return result, result.found
    # Another's job, which this handle did not put, or no word for some seconds.
    if deadline.left <= 0:
        raise _over(job, deadline)
    return result, await ended(session, JobKey(spec.queue, result.id), result.life, deadline)


Heard = AsyncIterator[Signal] | AsyncIterator[JobRecord | None]
"""What says that a job has ended; it may come with the record."""


async def _told(
    session: Session, job: JobKey, life: int, signals: Heard, deadline: Deadline
) -> JobRecord | None:
    """The ended record once a signal has come; None when it is time to look again or the wait is over.

    A generator whose wait is cut short is finished for good, so this is called once per subscription.
    """
    left = deadline.left
    if left <= 0:
        return None
    limit = asyncio.timeout(left)
    try:
        async with limit, closing(signals):
            deadline.limit = limit
            async for signal in signals:
                known = isinstance(signal, JobRecord) and signal.life == life
                record = cast(JobRecord, signal) if known else await _look(session, job, life)
                if record.state.ended:
                    return record
            await asyncio.sleep(left)  # the store is closing: no more signals
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        deadline.limit = None
    return None


@asynccontextmanager
async def closing(signals: Heard) -> AsyncIterator[None]:
    """A generator is closed here and now; left to the garbage collector it would cost a task per wait."""
    try:
        yield
    finally:
        if isinstance(signals, AsyncGenerator):
            await signals.aclose()


async def _look(session: Session, job: JobKey, life: int | None) -> JobRecord:
    record = await session.reader.get(job)
    if record is None:
        raise JobNotFound(
            f"there is no job {job.id!r} in queue {job.queue.queue!r}: it was removed, or its record has expired"
        )
    if life is not None and record.life > life:
        raise JobNotFound(
            f"job {job.id!r} of queue {job.queue.queue!r} was begun anew (life {record.life}): what became of life {life} "
            "is no longer on record; ask queue.job(id) for the new one"
        )
    return record


def _over(job: JobKey, deadline: Deadline) -> WaitTimeout | QueueClosed:
    if deadline.closed:
        return QueueClosed(
            f"queue {job.queue.queue!r} was closed while job {job.id!r} was waited for; the job goes on, and `queue.job(id)` "
            "of an open queue waits for it again"
        )
    return WaitTimeout(
        f"job {job.id!r} of queue {job.queue.queue!r} has not ended within {deadline.seconds:g} s; "
        "it goes on, and waiting again is fine"
    )


class _Noticing:
    """What goes wrong while the queue is being closed went wrong because of that, and is raised as QueueClosed."""

    __slots__ = ("_deadline", "_job")

    def __init__(self, job: JobKey, deadline: Deadline) -> None:
        self._job, self._deadline = job, deadline

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, Exception) and self._deadline.closed:
            raise _over(self._job, self._deadline) from error
