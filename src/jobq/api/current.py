"""`current_job()`: the job a handler finds itself in. The engine sets it for each run; it follows
into threads and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from jobq.api.job import Job
from jobq.api.task import Task
from jobq.core.bounds import queue_full
from jobq.core.checks import Seconds, to_ms
from jobq.core.meta import inherited
from jobq.core.moments import moment
from jobq.core.records import JobKey, PutResult
from jobq.core.states import State
from jobq.core.waits import child_id, child_note
from jobq.errors import InvalidJob, JobNotFound
from jobq.executors.running import Running, running
from jobq.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


LINE_LENGTH = 10_000


class CurrentJob:
    """The job that is running here. Reading costs nothing; `progress` and `log` return when the
    store has it."""

    __slots__ = ("_run",)

    def __init__(self, run: Running) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} ({self.name}) of queue {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """Unique in its queue."""
        return self._run.lease.id

    @property
    def name(self) -> str:
        """Its task's name."""
        return self._run.lease.name

    @property
    def queue(self) -> str:
        """Its queue's name."""
        return self._run.lease.queue.queue

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._run.lease.queue.tenant

    @property
    def attempt(self) -> int:
        """Which run this is, from 1: every claim counts, whatever it led to."""
        return self._run.lease.attempt

    @property
    def created_at(self) -> datetime:
        """When it was accepted, by the store's clock."""
        return moment(self._run.lease.created_ms)

    @property
    def failures(self) -> int:
        """How many of its runs have failed before this one, in this life. Stalls and snoozes do not
        count."""
        return self._run.lease.failures

    @property
    def max_retries(self) -> int:
        """How many failures are retried, by the policy that applies: its call's, else its task's.

        With `failures >= max_retries`, the job fails for good if this run fails."""
        return self._run.max_retries

    @property
    def key(self) -> str | None:
        """Its ordering key."""
        return self._run.lease.key

    @property
    def meta(self) -> Mapping[str, str]:
        """The strings that travel with the job (`task.options(meta=…)`), read-only. Children it
        adds inherit them."""
        return MappingProxyType(self._run.lease.meta or {})

    @property
    def saved(self) -> Any:
        """What an earlier run kept with `Snooze(saved=…)`; None if nothing."""
        data = self._run.lease.saved
        return None if data is None else self._run.decode(data)

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to stop: a cancel, its timeout, a worker handing back, a lost
        lease.

        An async handler is interrupted as well, at its next `await`; a plain function has to
        look."""
        return self._run.cancelled

    async def progress(self, value: Any) -> None:
        """Say how far it is, in any form; the last one is kept."""
        await self._run.note(self._run.encode(value, "the progress"), ())

    async def log(self, line: str) -> None:
        """Add a line to the job's log. Past 10,000 characters it is cut."""
        if len(line) > LINE_LENGTH:
            line = f"{line[:LINE_LENGTH]}… ({len(line) - LINE_LENGTH:,} characters more)"
        await self._run.note(None, (line,))

    async def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """A child of this job, accepted now; `wait_for_children` waits for it. Options through
        `task.options(…)`. QueueFull if its queue takes no more: let it pass, and a retry of this
        job tries again.

        Its id follows from this job's and its number, so a run that begins again adds nothing
        twice. That takes a handler that adds the same children in the same order whenever it is run
        with the same arguments and results. The child inherits this job's meta; what
        `task.options(meta=…)` names wins.
        """
        run = self._run
        ordinal = run.children.next()
        spec = task._linked_spec(args, kwargs)
        if run.lease.meta is not None:
            spec = replace(spec, meta=inherited(run.lease.meta, spec.meta))
        if not spec.given_id:
            spec = replace(spec, id=child_id(run.lease, spec.queue, ordinal), given_id=True)
        child = run.children.found(ordinal, JobKey(spec.queue, spec.id))
        if child is None:
            session = await task._context.session()
            self._check_place(task, session.store)
            _, result = await asyncio.gather(
                self._note(ordinal, JobKey(spec.queue, spec.id)), session.sender.put(spec)
            )
            if result.full is not None:
                raise queue_full(spec.queue.queue, result.full)
            if (
                result.id != spec.id
            ):  # its unique lock is another's, which may be free when this handler comes by again
                await self._note(ordinal, JobKey(spec.queue, result.id))
        else:
            result = PutResult(id=child.id, life=0, state=State.COMPLETED)
        run.children.add(ordinal, JobKey(spec.queue, result.id), task._definition.returns)
        return task._child(result, spec.id)

    async def wait_for_children(self) -> Mapping[str, Any]:
        """The results of the children added so far, by id; what failed by this job's
        `on_child_failure`.

        While any of them is unfinished this ends the run: the job is `blocked`, its slot free, and
        the handler starts again from its top when all have ended. (It does so by an exception that
        is not an Exception: let it pass.)
        """
        return self._run.children.results()

    async def wait_for_signal(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """The value of the next signal of that name, sent by `job.signal(name, value)` at any time
        since it was enqueued.

        If there is none yet this ends the run, like `wait_for_children`, until it comes. Past
        `timeout` it raises WaitTimeout here. A handler that begins again finds the signals it took
        before, in the same order.
        """
        return self._signal(name, timeout)

    @property
    def sync(self) -> SyncCurrentJob:
        """The same, for plain functions."""
        return SyncCurrentJob(self._run)

    def _signal(self, name: str, timeout: Seconds | None) -> Any:
        return self._run.decode(
            self._run.inbox.take(
                name, None if timeout is None else to_ms(timeout, "timeout", positive=True)
            )
        )

    def _check_place(self, task: Task[..., Any], store: Store) -> None:
        if task._context.qname.tenant != self.tenant or store.url != self._run.store.url:
            raise InvalidJob(
                f"{task!r} is in another store or tenant than job {self.id} ({self.name}): it cannot be its child"
            )

    async def _note(self, ordinal: int, child: JobKey) -> None:
        if not self._run.children.noted(ordinal, child):
            await self._run.store.alter(
                [child_note(JobKey(self._run.lease.queue, self.id), ordinal, child)]
            )


class SyncCurrentJob(CurrentJob):
    """Methods that block, for handlers that run in a thread."""

    __slots__ = ()

    def progress(self, value: Any) -> None:  # type: ignore[override]  # its blocking twin, on purpose; so are the others
        """See `CurrentJob.progress`."""
        self._wait(super().progress(value))

    def log(self, line: str) -> None:  # type: ignore[override]
        """See `CurrentJob.log`."""
        self._wait(super().log(line))

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:  # type: ignore[override]
        """See `CurrentJob.add`."""
        return self._wait(super().add(task, *args, **kwargs))

    def wait_for_children(self) -> Mapping[str, Any]:  # type: ignore[override]
        """See `CurrentJob.wait_for_children`."""
        return self._run.children.results()

    def wait_for_signal(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """See `CurrentJob.wait_for_signal`."""
        return self._signal(name, timeout)

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        loop = self._run.loop
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            step.close()
            raise RuntimeError(
                "current_job().sync would block the worker's own event loop: use `await current_job().…` here"
            )
        return asyncio.run_coroutine_threadsafe(step, loop).result()


def current_job() -> CurrentJob:
    """The job this code runs in. JobNotFound outside of one."""
    run = running.get(None)
    if run is None:
        raise JobNotFound(
            "current_job(): no job is running here; it works in a handler that a worker runs"
        )
    return CurrentJob(run)
