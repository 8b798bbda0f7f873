"""A job's handle: what `enqueue` returns. Attributes are local; every method asks the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from jobq import errors
from jobq.api.blocking import Blocking, blocking
from jobq.api.context import Definition, QueueContext
from jobq.api.info import Failure, JobInfo, plain
from jobq.client import following, waiting
from jobq.client.portal import each, run
from jobq.core.records.commands import (
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    SendSignal,
    Update,
)
from jobq.core.records.jobs import JobKey, JobRecord, PutResult
from jobq.core.records.states import State
from jobq.core.rules.flows import Ref
from jobq.core.rules.limits import queue_full
from jobq.core.values import checks
from jobq.core.values.checks import Seconds
from jobq.core.values.codec import get_codec
from jobq.errors import InvalidJob, JobCancelled, JobFailed
from jobq.operations import jobs
from jobq.operations.listing import no_such_job


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when something changed, and the lines it has logged since the last update."""

    info: JobInfo
    lines: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The job's state."""
        return self.info.state

    @property
    def progress(self) -> Any:
        """The last value that the handler passed to `current_job().progress(…)`; None if none."""
        return self.info.progress

    @property
    def ended(self) -> bool:
        """Whether the job has ended. No update follows this one."""
        return self.info.state.ended


R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """One job of a queue.

    A handle from `enqueue` stands for one life of the job. A rerun by someone else, or a new job
    under the id of a cancelled one, starts another life: then `wait` and `result` of this handle
    raise JobNotFound. A handle from `queue.job(id)` follows the job into any life.
    """

    __slots__ = ("_context", "_definition", "_life", "duplicate", "id", "name", "snapshot")

    def __init__(
        self,
        context: QueueContext,
        id: str,
        name: str = "",
        life: int | None = None,
        definition: Definition | None = None,
        duplicate: bool = False,
        snapshot: JobInfo | None = None,
    ) -> None:
        self._context = context
        self._life = life
        self._definition = definition
        self.id = id
        self.name = name
        self.duplicate = duplicate
        self.snapshot = snapshot

    def __repr__(self) -> str:
        duplicate = ", duplicate" if self.duplicate else ""
        return f"<Job {self.id!r} ({self.name or 'any task'}) of queue {self.queue!r}{duplicate}>"

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._context.name

    @property
    def job_key(self) -> JobKey:
        """The job's tenant, queue and id."""
        return JobKey(self._context.qname, self.id)

    @property
    def sync(self) -> SyncJob[R_co]:
        """The same handle with blocking methods."""
        return SyncJob(self)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def info(self) -> JobInfo:
        """The job as it is now. Raises JobNotFound."""
        return self._info(await self._record())

    async def state(self) -> State:
        """The job's state now. Raises JobNotFound."""
        return (await self._record()).state

    async def logs(self, start: int = 0, stop: int | None = None) -> list[str]:
        """The lines that its handler logged, oldest first. The store keeps the last 1,000.

        `start` and `stop` choose a range of them as in a slice of a list: `logs(-20)` returns the
        last 20 lines, and `logs(0, 20)` the first 20."""
        return (await (await self._context.store()).logs(self.job_key))[start:stop]

    async def wait(self, *, timeout: Seconds | None = None) -> JobInfo:
        """Wait until the job has completed, failed or been cancelled, and return it.

        Raises WaitTimeout, which does not cancel the job, or JobNotFound if its record is gone."""
        return self._info(await self._ended(timeout))

    async def result(self, *, timeout: Seconds | None = None) -> R_co:
        """Wait for the job and return what its handler returned.

        Raises JobFailed, JobCancelled, WaitTimeout or JobNotFound."""
        return self._outcome(await self._ended(timeout))

    def follow(
        self, *, timeout: Seconds | None = None, repeat_after: Seconds | None = None
    ) -> AsyncGenerator[JobUpdate, None]:
        """The job as it is now, then an update after each change, until the job has ended:
        `async for update in job.follow()`.

        An update has the state, the progress and the log lines since the last update; the first one
        has all lines that are kept. Changes in quick succession may come as one update;
        `queue.events()` has every transition. With `repeat_after`, an update comes at least that
        often, so that a caller can keep its own connection alive.

        Raises WaitTimeout, QueueClosed or JobNotFound, as `wait` does.
        """
        timeout_ms = None if timeout is None else checks.to_ms(timeout, "timeout")
        repeat_s = (
            None
            if repeat_after is None
            else checks.to_ms(repeat_after, "repeat_after", positive=True) / 1000
        )
        return self._updates(timeout_ms, repeat_s)

    async def _updates(
        self, timeout_ms: int | None, repeat_s: float | None
    ) -> AsyncGenerator[JobUpdate, None]:
        deadline = self._context.connection.deadlines.new(timeout_ms)
        session = await self._context.session()
        updates = following.updates(session, self.job_key, self._life, deadline, repeat_s)
        async with aclosing(updates):
            async for record, lines in updates:
                yield JobUpdate(info=self._info(record), lines=tuple(lines))

    def _outcome(self, record: JobRecord) -> R_co:
        """The result of an ended job. Raises JobFailed or JobCancelled if it has none."""
        if record.state is State.FAILED:
            why = record.failure or Failure(
                reason="error", type="unknown", message="the store has no reason on record"
            )
            last = ", with no retry left" if why.exhausted else ""
            what = f"{self._label(record)} failed ({why.reason}) in attempt {why.attempt}{last}"
            raise JobFailed(f"{what}: {why.type}: {why.message}", why)
        if record.state is State.CANCELLED:
            raise JobCancelled(f"{self._label(record)} was {record.reason or 'cancelled'}")
        if record.result is None:
            return cast("R_co", None)
        decode = plain if self._definition is None else self._definition.decode
        value: R_co = decode(record.codec, record.result)
        return value

    # ── changing ──────────────────────────────────────────────────────────────────────────────────

    def as_actor(self, name: str) -> Job[R_co]:
        """A handle on the same job that records its commands under this name.

        The events that result carry it as `actor`: `await job.as_actor("ann").cancel()`. If that
        handle reruns the job, it stands for the new life; this one does not."""
        return Job(
            self._context.acting_as(name),
            self.id,
            self.name,
            self._life,
            self._definition,
            self.duplicate,
            self.snapshot,
        )

    async def cancel(self, *, cascade: bool = False) -> bool:
        """Cancel the job. False if it had already ended.

        A job that is not running is cancelled at once. A running handler is asked to stop. With
        `cascade`, the jobs that it waits for and the children that it has added are cancelled too.
        Raises JobNotFound, as all of these methods do.
        """
        return await self._do(
            Cancel(job=self.job_key, cascade=checks.check_bool(cascade, "cascade"))
        )

    async def rerun(self) -> bool:
        """Run an ended job again from the start. This handle then stands for its new life.

        False if the job has not ended, or if another job holds its unique lock."""
        done = await self._do(Rerun(job=self.job_key))
        if done and self._life is not None:
            self._life = (await self._record()).life
        return done

    async def promote(self) -> bool:
        """Make a delayed job due now. False if it is not delayed."""
        return await self._do(Promote(job=self.job_key))

    async def reprioritise(self, priority: int) -> bool:
        """Change the priority of a job that has not started. False if it has.

        The job queues behind those that already have this priority."""
        return await self._do(
            Reprioritise(job=self.job_key, priority=checks.check_priority(priority))
        )

    async def reschedule(self, *, delay: Seconds | None = None, at: datetime | None = None) -> bool:
        """Change when a waiting or delayed job is due, also one that waits for a retry. False if
        the job is in another state."""
        if (delay is None) == (at is None):
            raise InvalidJob(
                f"reschedule(delay={checks.shown(delay)}, at={checks.shown(at)}): give one of them"
            )
        if at is not None:
            return await self._do(Reschedule(job=self.job_key, at_ms=checks.check_at(at)))
        return await self._do(Reschedule(job=self.job_key, delay_ms=checks.check_delay(delay)))

    async def update(self, *args: Any, **kwargs: Any) -> bool:
        """Replace the arguments of a job that has not started. False if it has."""
        context = self._context
        name = self.name or (await self._record()).name
        payload = context.encode_call(self._definition, name, args, kwargs)
        return await self._do(Update(job=self.job_key, payload=payload, codec=context.codec.name))

    async def remove(self) -> bool:
        """Delete the record of an ended job, or cancel a waiting, delayed or blocked one. False if
        the job is running."""
        return await self._do(Remove(job=self.job_key))

    async def signal(self, name: str, value: Any = None) -> bool:
        """Send a signal to the job's `wait_for_signal(name)`, which may come later. False if the
        job has ended."""
        checks.check_signal(name)
        codec = get_codec((await self._record()).codec)  # the codec its handler decodes with
        data = checks.check_payload(
            codec.encode(value), self._context.max_payload, f"the value of signal {name!r} takes"
        )
        return await self._do(SendSignal(job=self.job_key, name=name, value=data))

    # ── in flows ──────────────────────────────────────────────────────────────────────────────────

    @property
    def ref(self) -> R_co:
        """In a flow: stands for the result of this job as an argument of another job."""
        return cast("R_co", Ref(self.queue, self.id))

    def _of_any_life(self) -> Job[R_co]:
        """This handle, for a job that is not stored yet: it follows the job into any life."""
        self._life = None
        return self

    def _stored_as(self, result: PutResult) -> None:
        """Take over the id and life that the store returned. QueueFull if it refused the job."""
        if result.full is not None:
            raise queue_full(self.queue, result.full)
        self.id, self._life, self.duplicate = result.id, result.life, result.duplicate
        if result.found is not None:
            self.snapshot = self._info(result.found)

    # ── internal ──────────────────────────────────────────────────────────────────────────────────

    async def _do(self, command: AnyCommand) -> bool:
        if self._context.actor is not None:
            command = msgspec.structs.replace(command, actor=self._context.actor)
        return await jobs.apply(await self._context.store(), command)

    async def _record(self) -> JobRecord:
        record = await (await self._context.session()).reader.get(self.job_key)
        if record is None:
            raise no_such_job(self.job_key)
        return record

    async def _ended(self, timeout: Seconds | None) -> JobRecord:
        deadline = self._context.connection.deadlines.new(
            None if timeout is None else checks.to_ms(timeout, "timeout")
        )
        return await waiting.ended(
            await self._context.session(), self.job_key, self._life, deadline
        )

    def _info(self, record: JobRecord) -> JobInfo:
        return self._context.job_info(record, self._definition)

    def _label(self, record: JobRecord) -> str:
        return f"job {self.id!r} ({record.name}) of queue {self.queue!r}"


if TYPE_CHECKING:

    class QueueFull(errors.QueueFull):
        """The class of `jobq.errors`, as code that knows Job sees it."""

        accepted: list[Job[Any]]

else:
    QueueFull = errors.QueueFull


class SyncJob(Blocking, Generic[R_co]):
    """A job's handle with blocking methods."""

    __slots__ = ()

    _of: Job[R_co]

    def __init__(self, job: Job[R_co]) -> None:
        self._of = job

    @property
    def id(self) -> str:
        """See `Job.id`."""
        return self._of.id

    @property
    def queue(self) -> str:
        """See `Job.queue`."""
        return self._of.queue

    @property
    def name(self) -> str:
        """See `Job.name`."""
        return self._of.name

    @property
    def duplicate(self) -> bool:
        """See `Job.duplicate`."""
        return self._of.duplicate

    @property
    def snapshot(self) -> JobInfo | None:
        """See `Job.snapshot`."""
        return self._of.snapshot

    @property
    def ref(self) -> R_co:
        """See `Job.ref`."""
        return self._of.ref

    @property
    def job_key(self) -> JobKey:
        """See `Job.job_key`: for `after=[…]`."""
        return self._of.job_key

    def __repr__(self) -> str:
        return repr(self._of)

    def result(self, *, timeout: Seconds | None = None) -> R_co:
        """See `Job.result`."""
        return run(self._of.result(timeout=timeout))

    def follow(
        self, *, timeout: Seconds | None = None, repeat_after: Seconds | None = None
    ) -> Iterator[JobUpdate]:
        """See `Job.follow`: `for update in job.sync.follow()`."""
        return each(self._of.follow(timeout=timeout, repeat_after=repeat_after))

    def as_actor(self, name: str) -> SyncJob[R_co]:
        """See `Job.as_actor`."""
        return SyncJob(self._of.as_actor(name))

    info = blocking(Job.info)
    state = blocking(Job.state)
    logs = blocking(Job.logs)
    wait = blocking(Job.wait)
    cancel = blocking(Job.cancel)
    rerun = blocking(Job.rerun)
    promote = blocking(Job.promote)
    reprioritise = blocking(Job.reprioritise)
    reschedule = blocking(Job.reschedule)
    update = blocking(Job.update)
    remove = blocking(Job.remove)
    signal = blocking(Job.signal)
