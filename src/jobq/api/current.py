"""`current_job()`: the job that a handler is running, its steps and its children. The engine sets
it for each run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar, Token
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast, overload

from msgspec.structs import replace

from jobq.api.enqueueing import Enqueueing
from jobq.api.job import Job
from jobq.api.task import Task
from jobq.api.task_handler import runs_async
from jobq.client import portal
from jobq.core.control import Reject
from jobq.core.records.defaults import LOG_LINE
from jobq.core.records.jobs import JobKey, JobSpec, PutResult, Steps
from jobq.core.records.states import State
from jobq.core.rules import waits
from jobq.core.rules.calls import returns_of
from jobq.core.rules.limits import queue_full
from jobq.core.rules.new_jobs import check_spec
from jobq.core.rules.waits import StepRecord, child_id, child_note
from jobq.core.values.checks import Seconds, shown, to_ms
from jobq.core.values.codec import get_codec
from jobq.core.values.meta import inherited
from jobq.core.values.units import moment
from jobq.errors import ConfigError, InvalidJob, JobNotFound
from jobq.executors.running import InChild, Running, running
from jobq.stores.base import CallerTransaction, Store, transactional_of

# One call of `current_job().step(…)`, from its beginning until it is recorded.


class Step:
    """A step of a run. While its function runs, it is the context `with step:`.

    `record` is None if the function has to be called.
    """

    def __init__(self, run: Running, name: str, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise InvalidJob(
                f"step({shown(name)}, {shown(fn)}): the second argument must be a function. Give "
                "its arguments behind it, and do not call it"
            )
        self._run = run
        self.name, self.record = run.steps.begin(name)
        self._returns = fn._definition.returns if isinstance(fn, Task) else returns_of(fn)
        self._outer = current_step(run)
        self._children: list[JobKey] = []
        self._token: Token[Step] | None = None
        if self.record is None:
            run.check(self.name)
        else:
            run.children.add_of_step(self.name, self.record.children)
            for child in self.record.children:
                if self._outer is not None:
                    self._outer.added(child)

    def __enter__(self) -> None:
        self._token = _step.set(self)

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._token is not None
        _step.reset(self._token)

    def added(self, child: JobKey) -> None:
        """A child job was added inside this step."""
        self._children.append(child)
        if self._outer is not None:
            self._outer.added(child)

    def recorded(self, value: Any) -> Steps:
        """The record of the step, whose function has returned this value.

        Raises Reject if the value cannot be recorded: a retry would repeat what the step has done.
        """
        run = self._run
        try:
            record = StepRecord(
                n=len(run.steps),
                result=run.encode(value, f"the result of step {self.name!r}"),
                attempt=run.lease.attempt,
                at_ms=run.now_ms,
                children=tuple(self._children),
            )
            packed: Steps = ((self.name, waits.pack_step(record)),)
            run.steps.admit(packed)
        except Exception as error:  # a custom codec may raise anything
            raise Reject(
                f"step {self.name!r} has run, and its result cannot be recorded: {error}. The job "
                "fails without a retry, because a retry would repeat the step"
            ) from error
        self.record = record
        return packed

    def result(self) -> Any:
        """The result as every run gets it: encoded, and decoded by the function's annotation."""
        assert self.record is not None
        return get_codec(self._run.lease.codec).decode(self.record.result, self._returns)


_step: ContextVar[Step] = ContextVar("jobq_step")


def current_step(run: Running) -> Step | None:
    """The step of this run that the calling code is part of."""
    step = _step.get(None)
    # A worker that was started inside a step inherits the context of that step.
    return step if step is not None and step._run is run else None


# Adds a child job to a running job (`current_job().add`).

P = ParamSpec("P")
R = TypeVar("R")


async def add_child(
    run: Running, task: Task[P, R], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Job[R]:
    """Enqueue a child of the run's job, unless an earlier pass has done it."""
    step = current_step(run)
    label = run.children.next(None if step is None else step.name)
    spec = task._linked_spec(args, kwargs)
    if run.lease.meta is not None:
        spec = replace(spec, meta=inherited(run.lease.meta, spec.meta))
    if not spec.given_id:
        spec = replace(spec, id=child_id(run.lease, spec.queue, label), given_id=True)
    child = run.children.found(label, JobKey(spec.queue, spec.id))
    if child is None:
        if task._context.enqueue_middleware:
            spec = await _revised(run, Enqueueing(task, spec, args, kwargs, "child"))
        spec = check_spec(spec)  # before a note says that there is such a child
        result = await _put(run, task, label, spec)
        if result.full is not None:
            raise queue_full(spec.queue.queue, result.full)
    else:
        result = PutResult(id=child.id, life=0, state=State.COMPLETED)
    added = JobKey(spec.queue, result.id)
    run.children.add(label, added, task._definition.returns)
    if step is not None:
        step.added(added)
    return task._child(result, spec.id)


async def _revised(run: Running, enqueueing: Enqueueing) -> JobSpec:
    """The child as the enqueue middleware of its queue left it."""
    if run.loop is None:  # a plain function in a child process: it has no event loop
        return portal.run(enqueueing.revised())
    return await enqueueing.revised()


async def _put(run: Running, task: Task[..., Any], label: str, spec: JobSpec) -> PutResult:
    """Store a child, and a note which child it is."""
    child = JobKey(spec.queue, spec.id)
    if isinstance(run, InChild):
        note = not run.children.noted(label, child)
        return await run.put_child(label, spec, task._context.url, note=note)
    session = await task._context.session()
    _check_same_store(run, task, session.store)
    _, result = await asyncio.gather(_note(run, label, child), session.sender.put(spec))
    if result.full is None and result.id != spec.id:
        # Another job has the child's unique lock. Record which one: the lock may be free when the
        # handler starts over.
        await _note(run, label, JobKey(spec.queue, result.id))
    return result


def _check_same_store(run: Running, task: Task[..., Any], store: Store) -> None:
    lease = run.lease
    if task._context.qname.tenant != lease.queue.tenant or store.url != run.store.url:
        raise InvalidJob(
            f"{task!r} is in another store or tenant than job {lease.id} ({lease.name}): it "
            "cannot be its child"
        )


async def _note(run: Running, label: str, child: JobKey) -> None:
    if not run.children.noted(label, child):
        parent = JobKey(run.lease.queue, run.lease.id)
        await run.store.alter([child_note(parent, label, child)])


T = TypeVar("T")


class CurrentJob:
    """The running job. Attributes are local; `progress` and `log` return when the store has
    them."""

    __slots__ = ("_run",)

    def __init__(self, run: Running) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} ({self.name}) of queue {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id, unique in its queue."""
        return self._run.lease.id

    @property
    def name(self) -> str:
        """The name of the job's task."""
        return self._run.lease.name

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return self._run.lease.queue.queue

    @property
    def tenant(self) -> str:
        """The tenant that the job's queue belongs to."""
        return self._run.lease.queue.tenant

    @property
    def attempt(self) -> int:
        """The number of this run, from 1. Every claim of the job counts, however it ended."""
        return self._run.lease.attempt

    @property
    def created_at(self) -> datetime:
        """When the job was accepted, by the store's clock."""
        return moment(self._run.lease.created_ms)

    @property
    def failures(self) -> int:
        """How many runs have failed before this one, since the job was enqueued or rerun. Stalls
        and snoozes do not count."""
        return self._run.lease.failures

    @property
    def max_retries(self) -> int:
        """How many failures are retried, by the policy of the call or else of the task.

        If `failures >= max_retries` and this run fails, the job fails for good."""
        return self._run.max_retries

    @property
    def key(self) -> str | None:
        """The job's ordering key."""
        return self._run.lease.key

    @property
    def meta(self) -> Mapping[str, str]:
        """The strings of `task.options(meta=…)`, read-only. Children that the job adds inherit
        them."""
        return MappingProxyType(self._run.lease.meta or {})

    @property
    def saved(self) -> Any:
        """What this or an earlier run has saved last, with `save` or `Snooze(saved=…)`; None if
        nothing."""
        run = self._run
        data = run.lease.saved if run.checkpoint is None else run.checkpoint.data
        return None if data is None else self._run.decode(data)

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to stop: by a cancel, its timeout, a stopping worker or a lost
        lease.

        An async handler is also interrupted at its next `await`. A plain function has to check
        this."""
        return self._run.cancelled

    @property
    def batch(self) -> tuple[CurrentJob, ...]:
        """In a middleware around a batch task: all jobs of the call. Empty for other tasks."""
        batch = getattr(self._run, "batch", None)
        return () if batch is None else tuple(CurrentJob(run) for run in batch.called)

    def lifespan(self, kind: type[T]) -> T:
        """The value that the worker's lifespan yielded. ConfigError if it is not of this type."""
        value = self._run.state
        if not isinstance(value, kind):
            found = f"yielded a {type(value).__name__}"
            if value is None:
                found = "yielded nothing: give Worker(…, lifespan=…)"
                if isinstance(self._run, InChild):
                    found += ". A child process whose task has permissions has no lifespan"
            raise ConfigError(
                f"job {self.id} ({self.name}) needs a {kind.__name__} from the worker's lifespan, "
                f"which {found}"
            )
        return value

    async def progress(self, value: Any) -> None:
        """Store the progress, any value that the codec can encode. Only the last one is kept."""
        self._check_not_completing("progress")
        await self._run.note(self._run.encode(value, "the progress"), ())

    async def log(self, line: str) -> None:
        """Add a line to the job's log. Lines over 10,000 characters are cut."""
        self._check_not_completing("log")
        if len(line) > LOG_LINE:
            line = f"{line[:LOG_LINE]}… ({len(line) - LOG_LINE:,} characters more)"
        await self._run.note(None, (line,))

    async def save(self, value: Any) -> None:
        """Save a value, for example the position in a long loop, and go on. If this run does not
        complete the job, the next run finds the value in `saved`. Each value replaces the last one.

        Returns when the store has confirmed the value. Raises LeaseLost if another worker may run
        the job: the value was not saved.
        """
        self._check_not_completing("save")
        await self._run.keep(saved=self._run.encode(value, "the saved value"))

    @overload
    async def step(
        self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step(
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn(*args, **kwargs)` once and record its result with the job. If the handler starts
        over after a retry, a stall, a snooze or a wait, this returns the recorded result and does
        not call the function. A rerun of the job forgets all steps.

        Returns when the store has confirmed the record. Raises LeaseLost if another worker may run
        the job: the step was not recorded, and the other run calls the function again. The same
        happens if the worker dies after the function has done its work and before the record is
        stored, so give an idempotency key to the service that the function calls.

        A run may use each name once. The result must be small: all steps of a job together may take
        1 MiB. It is decoded by the return annotation of the function, in this run too. A plain
        function blocks the event loop while it runs.
        """
        step = self._begin(name, fn)
        if step.record is None:
            with step:
                value = fn(*args, **kwargs)
                if inspect.isawaitable(value):
                    value = await value
            await self._run.keep(steps=step.recorded(value))
        return step.result()

    async def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a child of this job now; `wait_for_children` waits for it. Give options through
        `task.options(…)`. Raises QueueFull if the child's queue is full: do not catch it, and a
        retry of this job tries again.

        The child's id is made from this job's id and a running number, so a handler that starts
        over adds no child twice. This requires that the handler adds the same children in the same
        order whenever it runs with the same arguments and results. Inside a step, the number counts
        the step's own children and follows the step's name. The child inherits this job's meta;
        `task.options(meta=…)` overrides single names.
        """
        return await add_child(self._run, task, args, kwargs)

    async def wait_for_children(self) -> Mapping[str, Any]:
        """The results of the children added so far, by id. This job's `on_child_failure` decides
        what a failed child means.

        If a child has not ended, this ends the run: the job is `blocked` and holds no slot, and the
        handler starts again from its top when all children have ended. Waiting raises a
        `BaseException`, so `except Exception` does not catch it.
        """
        return self._run.children.results()

    async def wait_for_signal(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """The value of the next signal of that name, which `job.signal(name, value)` sends. A
        signal that was sent before, even before the job started, counts.

        If there is none yet, this ends the run until one comes, like `wait_for_children`. After
        `timeout` it raises WaitTimeout. A handler that starts over gets the signals it has already
        taken again, in the same order.
        """
        return self._signal(name, timeout)

    async def complete_in(self, connection: object, result: Any = None) -> None:
        """Complete this job in the transaction of your own database connection, so that your
        writes and the end of the job are committed together, exactly once.

        The job must be stored in the PostgreSQL database that the connection leads to. Call this
        as the last step of the transaction, and commit before the handler returns. `result` is the
        job's result; the value that the handler returns is not used.

        Raises LeaseLost if another worker may run the job: let it abort your transaction. If the
        transaction is rolled back, or not committed when the handler returns, the run has failed.
        If the handler raises after the commit, the job stays completed and a warning is logged.
        See `jobq.transaction` for the connections that can be used.
        """
        joined, data = self._joined(connection, result)
        await joined.complete_async(self._run.ref, data)
        self._run.completing = True

    @property
    def sync(self) -> SyncCurrentJob:
        """The same job with blocking methods, for plain functions."""
        return SyncCurrentJob(self._run)

    def _joined(self, connection: object, result: Any) -> tuple[CallerTransaction, bytes]:
        run = self._run
        if isinstance(run, InChild):
            raise ConfigError(
                f"complete_in: job {self.id} ({self.name}) runs in a process of its own, which has "
                "no store; use executor='thread', or an async handler"
            )
        if getattr(run, "batch", None) is not None:
            raise ConfigError(f"complete_in: {self.name} is a batch task, whose jobs end together")
        transactional = transactional_of(run.store)
        if transactional is None:
            raise ConfigError(
                f"complete_in: job {self.id} ({self.name}) is stored in {run.store.url}; this "
                "needs a queue that is stored in PostgreSQL"
            )
        return transactional.join(connection), run.encode(result, "the result")

    def _begin(self, name: str, fn: Callable[..., Any]) -> Step:
        self._check_not_completing("step")
        return Step(self._run, name, fn)

    def _signal(self, name: str, timeout: Seconds | None) -> Any:
        return self._run.decode(
            self._run.inbox.take(
                name, None if timeout is None else to_ms(timeout, "timeout", positive=True)
            )
        )

    def _check_not_completing(self, what: str) -> None:
        if self._run.completing:
            raise InvalidJob(
                f"{what}() after complete_in: the transaction has locked job {self.id}; call it "
                "before"
            )


class SyncCurrentJob(CurrentJob):
    """The running job with blocking methods, for handlers that run in a thread."""

    __slots__ = ()

    def progress(self, value: Any) -> None:  # type: ignore[override]  # blocking on purpose, like the others
        """See `CurrentJob.progress`."""
        self._wait(super().progress(value))

    def log(self, line: str) -> None:  # type: ignore[override]
        """See `CurrentJob.log`."""
        self._wait(super().log(line))

    def save(self, value: Any) -> None:  # type: ignore[override]
        """See `CurrentJob.save`."""
        self._wait(super().save(value))

    def step(  # type: ignore[override]
        self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """See `CurrentJob.step`. The function is a plain one, and the calling thread runs it."""
        self._check_thread()
        if runs_async(fn):
            raise InvalidJob(
                f"sync.step({shown(name)}, …): {shown(fn)} is async; a plain handler can only call "
                "plain functions"
            )
        step = self._begin(name, fn)
        if step.record is None:
            with step:
                value = fn(*args, **kwargs)
            self._wait(self._run.keep(steps=step.recorded(value)))
        return cast("R", step.result())

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:  # type: ignore[override]
        """See `CurrentJob.add`."""
        return self._wait(super().add(task, *args, **kwargs))

    def wait_for_children(self) -> Mapping[str, Any]:  # type: ignore[override]
        """See `CurrentJob.wait_for_children`."""
        return self._run.children.results()

    def wait_for_signal(self, name: str, *, timeout: Seconds | None = None) -> Any:
        """See `CurrentJob.wait_for_signal`."""
        return self._signal(name, timeout)

    def complete_in(self, connection: object, result: Any = None) -> None:  # type: ignore[override]
        """See `CurrentJob.complete_in`. The calling thread uses the connection."""
        joined, data = self._joined(connection, result)
        joined.complete(self._run.ref, data)
        self._run.completing = True

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._run.loop
        if loop is None:  # a child process runs a plain function: requests block, as they should
            return _driven(work)
        try:
            self._check_thread()
        except RuntimeError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _check_thread(self) -> None:
        """Raise RuntimeError if the calling thread is that of the worker's event loop."""
        loop = self._run.loop
        if loop is not None and loop is asyncio._get_running_loop():
            raise RuntimeError(
                "current_job().sync would block the worker's event loop: use "
                "`await current_job().…` here"
            )


def _driven(step: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a request of a plain function in a child process was suspended")


def current_job() -> CurrentJob:
    """The job that this code runs in. Raises JobNotFound outside of a job."""
    run = running.get(None)
    if run is None:
        raise JobNotFound(
            "current_job(): no job is running here; call it in a handler that a worker runs"
        )
    return CurrentJob(run)
