"""Waiting for a job to end: subscribe to its signal, read the job, then wait for the signal.

Reading after subscribing means that no end is missed. A signal can be lost, so every wait also
reads the job every few seconds; hundreds of waits share one read. If the job is removed, the wait
ends with JobNotFound. A store that restarts meanwhile ends no wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from jobq.client.connection import Session
from jobq.client.deadlines import Deadline
from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, PutResult, Signal, Topic
from jobq.core.rules.deferral import sentence
from jobq.core.rules.limits import queue_full
from jobq.errors import JobNotFound, JobqError, QueueClosed, StoreUnavailable, WaitTimeout

log = logging.getLogger("jobq")

_OUTAGE_S = 60.0
"""Seconds that a wait without a timeout lets its store be unavailable. A restart takes less."""
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 2.0
"""Seconds between two tries; the rest doubles. Some of it is random: a thousand waits try apart."""
_LAST_READ_S = 1.0
"""Seconds for the look at a job whose wait is over, to say why it has not ended."""


async def ended(session: Session, job: JobKey, life: int | None, deadline: Deadline) -> JobRecord:
    """Wait until a job has ended and return its record. `life`: which of its lives; None: the one
    that is found first."""
    topic = Topic("ended", job.queue, job.id)
    created_ms: int | None = None
    outage = _Outage(deadline)
    while True:
        if deadline.closed:  # a closed store must not be listened to again
            raise over(job, deadline)
        try:
            with ClosedAsError(job, deadline):
                async with session.store.listen([topic]) as signals:
                    record = await read_job(session, job, life, created_ms)
                    if record.state.ended:
                        return record
                    outage.over(job)
                    life, created_ms = record.life, record.created_ms
                    found = await _signalled(session, job, life, signals, deadline, created_ms)
        except StoreUnavailable as error:
            await outage.rest(job, error)
            continue
        if found is not None:
            return found
        if deadline.left <= 0:
            found = None if deadline.closed else await _last_read(session, job, life, created_ms)
            if found is not None and found.state.ended:
                return found
            raise over(job, deadline, found)


async def put_and_wait(
    session: Session, spec: JobSpec, deadline: Deadline
) -> tuple[PutResult, JobRecord]:
    """Store a job and wait until it has ended. On a Pipelined store this needs no call to
    subscribe."""
    job = JobKey(spec.queue, spec.id)
    if session.pipeline is None:
        result = await session.sender.put(spec)
    else:
        async with session.pipeline.expect(job) as ends:
            result = await session.sender.put(spec)
            if not result.duplicate and result.full is None:
                with ClosedAsError(job, deadline), suppress(StoreUnavailable):
                    found = await _signalled(session, job, result.life, ends, deadline)
                    if found is not None:
                        return result, found
    if result.full is not None:
        raise queue_full(spec.queue.queue, result.full)
    if result.found is not None and result.found.state.ended:
        return result, result.found
    # The job is a duplicate of an earlier one, or no signal has come for some seconds.
    return result, await ended(session, JobKey(spec.queue, result.id), result.life, deadline)


Signals = AsyncIterator[Signal] | AsyncIterator[JobRecord | None]
"""Each item says that the job may have ended, and may be its record."""


async def _signalled(
    session: Session,
    job: JobKey,
    life: int,
    signals: Signals,
    deadline: Deadline,
    created_ms: int | None = None,
) -> JobRecord | None:
    """The record, once a signal says that the job has ended. None if it is time to read the job
    again, or if the wait is over.

    A timeout finishes the generator `signals`, so call this once per subscription."""
    left = deadline.left
    if left <= 0:
        return None
    timeout = asyncio.timeout(left)
    try:
        async with timeout, closing(signals):
            deadline.timeout = timeout
            async for signal in signals:
                record = (
                    signal
                    if isinstance(signal, JobRecord)
                    and signal.life == life
                    and created_ms in (None, signal.created_ms)
                    else await read_job(session, job, life, created_ms)
                )
                if record.state.ended:
                    return record
            await asyncio.sleep(left)  # the store is closing and sends no more signals
    except TimeoutError:
        if not timeout.expired():
            raise
    finally:
        deadline.timeout = None
    return None


@asynccontextmanager
async def closing(signals: Signals) -> AsyncIterator[None]:
    """Close a generator at once. The garbage collector would start an asyncio task to close it."""
    try:
        yield
    finally:
        if isinstance(signals, AsyncGenerator):
            await signals.aclose()


class _Outage:
    """Lets one wait go on while its store is unavailable."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._since: float | None = None
        self._rest_s = _FIRST_REST_S

    def over(self, job: JobKey) -> None:
        """The store has replied."""
        if self._since is not None:
            log.info("the wait for job %s goes on, its store works again", job.id)
        self._since, self._rest_s = None, _FIRST_REST_S

    async def rest(self, job: JobKey, error: StoreUnavailable) -> None:
        """Wait a little before the next try.

        Raises WaitTimeout when the wait is over, and the error if a wait without a timeout has
        lasted too long.
        """
        deadline, now = self._deadline, asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
            log.info("the wait for job %s goes on, its store is unavailable: %s", job.id, error)
        if deadline.seconds is None and now - self._since >= _OUTAGE_S:
            raise error
        timeout = asyncio.timeout(min(deadline.left, self._rest_s * random.uniform(0.5, 1.0)))
        self._rest_s = min(_LONGEST_REST_S, 2 * self._rest_s)
        try:
            async with timeout:
                deadline.timeout = timeout
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            if deadline.left <= 0:
                raise over(job, deadline, why=f"its store is unavailable ({error})") from error
        finally:
            deadline.timeout = None


async def _last_read(
    session: Session, job: JobKey, life: int, created_ms: int | None
) -> JobRecord | None:
    """The job at the end of a wait. None if that cannot be told."""
    try:
        async with asyncio.timeout(_LAST_READ_S):
            return await read_job(session, job, life, created_ms)
    except (JobqError, TimeoutError):
        return None


async def read_job(
    session: Session, job: JobKey, life: int | None, created_ms: int | None = None
) -> JobRecord:
    """The record of a job in this life (None: in any), created then. Raises JobNotFound.

    The life alone does not tell a job from a new one under its id: that begins in life 0 as well,
    if the record of the first was removed.
    """
    record = await session.reader.get(job)
    if record is None or created_ms not in (None, record.created_ms):
        raise JobNotFound(
            f"there is no job {job.id!r} in queue {job.queue.queue!r}: it was removed, or its "
            "record has expired"
        )
    if life is not None and record.life < life:  # its record was removed, and the id used again
        raise JobNotFound(
            f"job {job.id!r} of queue {job.queue.queue!r} was removed, and another one has its id"
        )
    if life is not None and record.life > life:
        raise JobNotFound(
            f"job {job.id!r} of queue {job.queue.queue!r} was started over (life {record.life}), "
            f"and the result of life {life} is gone; queue.job(id) gives a handle on the new life"
        )
    return record


def over(
    job: JobKey, deadline: Deadline, record: JobRecord | None = None, *, why: str | None = None
) -> WaitTimeout | QueueClosed:
    """The error of a wait that its deadline has ended. It says why, or why the job `record` has not
    ended."""
    if deadline.closed:
        return QueueClosed(
            f"queue {job.queue.queue!r} was closed while a call waited for job {job.id!r}; the job "
            "continues, and `queue.job(id)` of an open queue can wait for it again"
        )
    why = why or (None if record is None else sentence(record))
    return WaitTimeout(
        f"job {job.id!r} of queue {job.queue.queue!r} has not ended within {deadline.seconds:g} s"
        f"{'' if why is None else f': {why}'}; the job continues, and you can wait for it again"
    )


class ClosedAsError:
    """Raises QueueClosed instead of any error that happens after the queue was closed."""

    __slots__ = ("_deadline", "_job")

    def __init__(self, job: JobKey, deadline: Deadline) -> None:
        self._job, self._deadline = job, deadline

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, Exception) and self._deadline.closed:
            raise over(self._job, self._deadline) from error
