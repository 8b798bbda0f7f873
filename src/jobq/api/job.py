"""A job's handle: what `enqueue` returns. Reading a field costs nothing; each method asks the store."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from jobq.api.info import Failure, JobInfo
from jobq.client import waiting
from jobq.core import checks
from jobq.core.bounds import queue_full
from jobq.core.checks import Seconds
from jobq.core.codec import get_codec
from jobq.core.commands import (
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
from jobq.core.records import JobKey, JobRecord, PutResult
from jobq.core.refs import Ref
from jobq.core.states import State
from jobq.errors import InvalidJob, JobCancelled, JobFailed, JobNotFound

if TYPE_CHECKING:
    from jobq.api.queue import Queue
    from jobq.api.sync import SyncJob
    from jobq.api.task import Definition

R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """One job of a queue.

    A handle that came from `enqueue` stands for that life of the job: once the job is begun anew (a rerun by another, a
    cancelled id used again) its `wait` and `result` raise JobNotFound. One from `queue.job(id)` takes the job as it is.
    """

    __slots__ = ("_definition", "_life", "_queue", "duplicate", "id", "name", "snapshot")

    def __init__(
        self,
        queue: Queue,
        id: str,
        name: str = "",
        life: int | None = None,
        definition: Definition | None = None,
        duplicate: bool = False,
        snapshot: JobInfo | None = None,
    ) -> None:
        self._queue = queue
        self._life = life
        self._definition = definition
        self.id = id
        self.name = name
        self.duplicate = duplicate
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return f"<Job {self.id!r} ({self.name or 'any task'}) of queue {self.queue!r}{', duplicate' if self.duplicate else ''}>"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._queue.name

    @property
    def job_key(self) -> JobKey:
        """Its whole name."""
        return JobKey(self._queue.qname, self.id)

    @property
    def sync(self) -> SyncJob[R_co]:
        """The same handle with blocking methods."""
        from jobq.api.sync import SyncJob

        return SyncJob(self)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    async def info(self) -> JobInfo:
        """The job as it is now. Raises JobNotFound."""
        return self._info(await self._record())

    async def state(self) -> State:
        """Where it stands. Raises JobNotFound."""
        return (await self._record()).state

    async def logs(self) -> list[str]:
        """Its log lines, oldest first."""
        return await (await self._queue.store()).logs(self.job_key)

    async def wait(self, *, timeout: Seconds | None = None) -> JobInfo:
        """The job once it has ended, however. Raises WaitTimeout, which cancels nothing, or JobNotFound if it is gone."""
        return self._info(await self._ended(timeout))

    async def result(self, *, timeout: Seconds | None = None) -> R_co:
        """What the handler returned, once it has. Raises JobFailed, JobCancelled, WaitTimeout, JobNotFound."""
        return self.outcome(await self._ended(timeout))

    def outcome(self, record: JobRecord) -> R_co:
        """The result in the record of an ended job, or the error that stands for how it ended."""
        if record.state is State.FAILED:
            why = record.failure or Failure(
                reason="error", type="unknown", message="no reason is on record"
            )
            last = ", with no retry left" if why.exhausted else ""
            told = f"{self._told(record)} failed ({why.reason}) in attempt {why.attempt}{last}"
            raise JobFailed(f"{told}: {why.type}: {why.message}", why)
        if record.state is State.CANCELLED:
            raise JobCancelled(f"{self._told(record)} was {record.reason or 'cancelled'}")
        value: R_co = self._queue.decode_result(record, self._definition)
        return value

    # ── acting ────────────────────────────────────────────────────────────────────────────────────

    def as_actor(self, name: str) -> Job[R_co]:
        """A handle on the same job whose commands are recorded under this name: `await job.as_actor("ann").cancel()`.

        The events that result have it as their `actor`. After a rerun, the handle that ran it stands for the new life."""
        queue = self._queue.as_actor(name)
        return Job(
            queue, self.id, self.name, self._life, self._definition, self.duplicate, self.snapshot
        )

    async def cancel(self, *, cascade: bool = False) -> bool:
        """Not started: at once. Running: the handler is asked to stop. False if the job had already ended.

        With `cascade` the jobs it waits for are cancelled as well. Raises JobNotFound, as all of these do.
        """
        return await self._do(
            Cancel(job=self.job_key, cascade=checks.check_bool(cascade, "cascade"))
        )

    async def rerun(self) -> bool:
        """Run an ended job again, from the start; this handle then stands for its new life.

        False if it has not ended, or if another job holds its unique lock."""
        done = await self._do(Rerun(job=self.job_key))
        if done and self._life is not None:
            self._life = (await self._record()).life
        return done

    async def promote(self) -> bool:
        """A delayed job runs now. False if it is not delayed."""
        return await self._do(Promote(job=self.job_key))

    async def reprioritise(self, priority: int) -> bool:
        """Another priority, behind those that have it already. False if it has started."""
        return await self._do(
            Reprioritise(job=self.job_key, priority=checks.check_priority(priority))
        )

    async def reschedule(self, *, delay: Seconds | None = None, at: datetime | None = None) -> bool:
        """Another time for a job that has not started. False if it has."""
        if (delay is None) == (at is None):
            raise InvalidJob(
                f"reschedule(delay={checks.shown(delay)}, at={checks.shown(at)}): give one of them"
            )
        if at is not None:
            return await self._do(Reschedule(job=self.job_key, at_ms=checks.check_at(at)))
        return await self._do(Reschedule(job=self.job_key, delay_ms=checks.check_delay(delay)))

    async def update(self, *args: Any, **kwargs: Any) -> bool:
        """New arguments for a job that has not started. False if it has."""
        payload = self._queue.encode_call(self._definition, self.name, args, kwargs)
        return await self._do(
            Update(job=self.job_key, payload=payload, codec=self._queue.codec.name)
        )

    async def remove(self) -> bool:
        """Forget an ended job; cancel one that has not started. False if it is running."""
        return await self._do(Remove(job=self.job_key))

    async def signal(self, name: str, value: Any = None) -> bool:
        """Wake its `wait_for_signal(name)`, now or when it gets there. False if the job has ended."""
        checks.check_signal(name)
        codec = get_codec((await self._record()).codec)  # the one its handler reads with
        data = checks.check_payload(
            codec.encode(value), self._queue.max_payload, f"the value of signal {name!r} takes"
        )
        return await self._do(SendSignal(job=self.job_key, name=name, value=data))

    # ── in flows ──────────────────────────────────────────────────────────────────────────────────

    @property
    def ref(self) -> R_co:
        """In a flow: "the result of this job", as an argument of another."""
        return cast("R_co", Ref(self.queue, self.id))

    def settle_on(self, result: PutResult) -> None:
        """The store has taken it in, or found another in its place. QueueFull if it did neither."""
        if result.full is not None:
            raise queue_full(self.queue, result.full)
        self.id, self._life, self.duplicate = result.id, result.life, result.duplicate
        if result.found is not None:
            self.snapshot = self._info(result.found)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    async def _do(self, command: AnyCommand) -> bool:
        if self._queue.actor is not None:
            command = msgspec.structs.replace(command, actor=self._queue.actor)
        (answer,) = await (await self._queue.store()).alter([command])
        if answer == "missing":
            raise self._missing()
        return answer == "done"

    async def _record(self) -> JobRecord:
        record = await (await self._queue.session()).reader.get(self.job_key)
        if record is None:
            raise self._missing()
        return record

    def _missing(self) -> JobNotFound:
        return JobNotFound(
            f"there is no job {self.id!r} in queue {self.queue!r}: it was removed, or its record has expired"
        )

    async def _ended(self, timeout: Seconds | None) -> JobRecord:
        deadline = self._queue.deadlines.new(
            None if timeout is None else checks.to_ms(timeout, "timeout")
        )
        return await waiting.ended(await self._queue.session(), self.job_key, self._life, deadline)

    def _info(self, record: JobRecord) -> JobInfo:
        return self._queue.job_info(record, self._definition)

    def _told(self, record: JobRecord) -> str:
        return f"job {self.id!r} ({record.name}) of queue {self.queue!r}"
