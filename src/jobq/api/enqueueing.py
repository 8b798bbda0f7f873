"""Enqueueing: the middleware around it, and many jobs at once, a chunk at a time.

async def tagged(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    request.meta["user"] = current_user()
    return await call_next(request)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from msgspec.structs import replace

from jobq.api.context import QueueContext
from jobq.api.job import Job, QueueFull
from jobq.api.options import JobOptions
from jobq.client import transaction
from jobq.client.connection import CHUNK, Session, batches
from jobq.client.portal import run
from jobq.client.transaction import AfterCommit, Transaction
from jobq.core.records.jobs import JobSpec, PutResult
from jobq.core.rules.limits import queue_full
from jobq.core.values.checks import shown
from jobq.core.values.meta import check_meta
from jobq.errors import InvalidJob

if TYPE_CHECKING:
    from jobq.api.task import Task

Via = Literal["enqueue", "call", "enqueue_many", "flow", "child", "schedule"]
"""How a job is enqueued. For a schedule, the request is the call that it makes again and again."""
_FIXED_ID = frozenset({"flow", "child", "schedule"})
"""Here, ids are made from the id of the flow, the parent or the schedule."""


class EnqueueRequest:
    """A job that is about to be enqueued. A middleware may change `options` and `meta`.

    Its arguments have been checked already. `id` is the id that the job will have, unless a
    middleware sets `options["id"]`.
    """

    __slots__ = ("args", "id", "kwargs", "meta", "name", "options", "queue", "tenant", "via")

    def __init__(
        self,
        spec: JobSpec,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        via: Via,
    ) -> None:
        self.name = spec.name  # the task's
        self.queue = spec.queue.queue
        self.tenant = spec.queue.tenant
        self.id = spec.id
        self.args = tuple(args)
        self.kwargs: Mapping[str, Any] = MappingProxyType(dict(kwargs))
        self.options = cast("JobOptions", dict(options))  # without meta
        self.meta: dict[str, str] = dict(spec.meta or {})
        self.via: Via = via

    def __repr__(self) -> str:
        return f"<EnqueueRequest {self.name} {self.id!r} by {self.via}>"


class EnqueueNext(Protocol):
    """Enqueues the job, inside the remaining middleware, and returns its handle."""

    def __call__(self, request: EnqueueRequest | None = None, /) -> Awaitable[Job[Any]]:
        """Can be awaited once. The argument is optional and changes nothing.

        With `enqueue` the job is stored when this returns. Otherwise jobs are stored together, so
        this returns a handle, and the job is stored after the last middleware has returned.
        """
        ...


EnqueueMiddleware = Callable[[EnqueueRequest, EnqueueNext], Coroutine[Any, Any, Job[Any]]]
"""`async def middleware(request, call_next)`. To refuse a job, raise: the caller gets the error."""


class Enqueueing:
    """One job on its way through the middleware."""

    def __init__(
        self,
        task: Task[..., Any],
        spec: JobSpec,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        via: Via,
    ) -> None:
        self._task = task
        self._spec = spec
        self._options = {k: v for k, v in task._options.given.items() if k != "meta"}
        self.request = EnqueueRequest(spec, args, kwargs, self._options, via)

    async def put_with(self, put: Callable[[JobSpec], Awaitable[Job[Any]]]) -> Job[Any]:
        """Call the middleware around `put`, which gets the job as they left it."""
        calls = 0

        async def core(request: EnqueueRequest | None = None, /) -> Job[Any]:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise InvalidJob(f"{self._where}: call_next was called twice")
            return await put(self._revised())

        step: EnqueueNext = core
        for middleware in reversed(self._task._context.enqueue_middleware):
            step = _step(middleware, self.request, step)
        job = await step()
        if not isinstance(job, Job):
            raise InvalidJob(
                f"{self._where} returned {shown(job)}: return what call_next returned, or raise an "
                "error to refuse the job"
            )
        return job

    async def revised(self) -> JobSpec:
        """The job as the middleware left it, to be stored by the caller."""
        found: list[JobSpec] = []
        task = self._task

        async def put(spec: JobSpec) -> Job[Any]:
            found.append(spec)
            return Job(task._context, spec.id, spec.name, None, task._definition)

        await self.put_with(put)
        if not found:
            raise InvalidJob(
                f"{self._where} did not call call_next: raise an error to refuse the job"
            )
        return found[0]

    @property
    def _where(self) -> str:
        return f"enqueue middleware of queue {self.request.queue!r}, task {self.request.name}"

    def _revised(self) -> JobSpec:
        """The job with the options and the meta of the request."""
        spec, request = self._spec, self.request
        if request.options != self._options:
            spec = self._with_options(request.options)
        meta = check_meta(request.meta) if request.meta else None
        return spec if meta == spec.meta else replace(spec, meta=meta)

    def _with_options(self, options: Mapping[str, Any]) -> JobSpec:
        request = self.request
        if "meta" in options:
            raise InvalidJob(f"{self._where}: options['meta']: change request.meta instead")
        new_id = "id" in options and options["id"] != self._options.get("id")
        if new_id and request.via in _FIXED_ID:
            raise InvalidJob(
                f"{self._where}: options['id']={shown(options['id'])}: the id of a {request.via} "
                "job is fixed"
            )
        spec = self._task._with_only(options)._linked_spec(request.args, request.kwargs)
        if new_id:
            return spec
        return replace(spec, id=self._spec.id, given_id=self._spec.given_id)


def _step(
    middleware: EnqueueMiddleware, request: EnqueueRequest, inner: EnqueueNext
) -> EnqueueNext:
    def call_next(_: EnqueueRequest | None = None, /) -> Awaitable[Job[Any]]:
        return middleware(request, inner)

    return call_next


# Enqueueing many jobs: encoded, stored and turned into handles a chunk at a time.

NewJob = tuple["Task[..., Any]", JobSpec, Sequence[Any], Mapping[str, Any]]
"""A job to store: its task, its spec and the arguments that the spec has encoded."""


async def put_all(
    context: QueueContext, jobs: Iterable[NewJob], via: Via = "enqueue_many"
) -> list[Job[Any]]:
    """Store jobs in chunks and return their handles in order. A generator is read as it goes.

    Raises QueueFull after the last chunk if some jobs were refused; it has the other handles."""
    session = await context.session()
    if (joined := transaction.current()) is not None:
        return await _put_in_transaction(context, joined, session, jobs, via)
    chunks = batches(jobs, CHUNK)
    chunk = await _next(context, chunks, via)
    specs = _prepared(session, chunk)
    handles: list[Job[Any]] = []
    refused: list[int] = []
    accepted: tuple[Sequence[NewJob], list[PutResult]] = ([], [])
    while chunk is not None:
        putting = asyncio.create_task(session.sender.put_many(specs))  # awaited below
        try:
            # Let the put start. While the store works on it, make the handles of the previous
            # chunk and encode the next one.
            await asyncio.sleep(0)
            handles += _handles(*accepted, refused)
            following = await _next(context, chunks, via)
            specs = _prepared(session, following)
        except asyncio.CancelledError:
            putting.cancel()
            raise
        except Exception:  # the next chunk is bad; this one is accepted all the same
            await putting
            raise
        accepted, chunk = (chunk, await putting), following
    handles += _handles(*accepted, refused)
    return _complete(context, handles, refused)


async def _put_in_transaction(
    context: QueueContext,
    joined: Transaction,
    session: Session,
    jobs: Iterable[NewJob],
    via: Via,
) -> list[Job[Any]]:
    handles: list[Job[Any]] = []
    refused: list[int] = []
    for given in batches(jobs, CHUNK):
        chunk = await _revised(context, given, via)
        results = await joined.put(session.store, [job[1] for job in chunk])
        handles += _handles(chunk, results, refused)
    return _complete(context, handles, refused)


def _complete(
    context: QueueContext, handles: list[Job[Any]], refused: Sequence[int]
) -> list[Job[Any]]:
    if refused:
        raise queue_full(context.name, refused[-1], accepted=handles, refused=len(refused))
    return handles


def put_all_blocking(
    context: QueueContext, jobs: Iterable[NewJob], via: Via = "enqueue_many"
) -> list[Job[Any]]:
    """Like `put_all`, for code without an event loop. A generator is read in the caller's thread,
    so it may use the caller's database connection."""
    handles: list[Job[Any]] = []
    joined = context.surrounding()
    if isinstance(joined, AfterCommit):
        return _put_after_commit(context, joined, _revised_here(context, list(jobs), via))
    if joined is not None:
        refusals: list[int] = []
        store = run(context.store())
        for given in batches(jobs, CHUNK):
            chunk = _revised_here(context, given, via)
            results = joined.put_blocking(store, [job[1] for job in chunk])
            handles += _handles(chunk, results, refusals)
        return _complete(context, handles, refusals)
    max_waiting = refused = 0
    for chunk in batches(jobs, CHUNK):
        try:
            handles += run(put_all(context, chunk, via))
        except QueueFull as full:
            handles += full.accepted
            max_waiting, refused = full.max_waiting, refused + full.refused
    if refused:
        raise queue_full(context.name, max_waiting, accepted=handles, refused=refused)
    return handles


def _put_after_commit(
    context: QueueContext, transaction: AfterCommit, jobs: Sequence[NewJob]
) -> list[Job[Any]]:
    """Return the handles of jobs that are stored when the caller's transaction has committed.

    The handles take over what the store returns then. QueueFull is raised to the code that ends
    the transaction."""
    handles = [
        job[0]._handle(PutResult(id=job[1].id, life=0, state=None))._of_any_life() for job in jobs
    ]

    async def put() -> list[PutResult]:
        return await (await context.session()).sender.put_many([job[1] for job in jobs])

    def store() -> None:
        refused: list[int] = []
        stored: list[Job[Any]] = []
        for job, result in zip(handles, run(put()), strict=True):
            if result.full is None:
                job._stored_as(result)
                stored.append(job)
            else:
                refused.append(result.full)
        _complete(context, stored, refused)

    if jobs:
        transaction.on_commit(store)
    return handles


async def _next(
    context: QueueContext, chunks: Iterator[Sequence[NewJob]], via: Via
) -> Sequence[NewJob] | None:
    chunk = next(chunks, None)
    return None if chunk is None else await _revised(context, chunk, via)


async def _revised(context: QueueContext, chunk: Sequence[NewJob], via: Via) -> Sequence[NewJob]:
    """The jobs as the queue's enqueue middleware left them, one after the other."""
    if not context.enqueue_middleware:
        return chunk
    return [
        (task, await Enqueueing(task, spec, args, kwargs, via).revised(), args, kwargs)
        for task, spec, args, kwargs in chunk
    ]


def _revised_here(context: QueueContext, chunk: Sequence[NewJob], via: Via) -> Sequence[NewJob]:
    return run(_revised(context, chunk, via)) if context.enqueue_middleware else chunk


def _prepared(session: Session, chunk: Sequence[NewJob] | None) -> Sequence[JobSpec]:
    specs = [job[1] for job in chunk or ()]
    return specs if session.pipeline is None or not specs else session.pipeline.prepare(specs)


def _handles(
    chunk: Sequence[NewJob], results: Sequence[PutResult], refused: list[int]
) -> list[Job[Any]]:
    """The handles of accepted jobs. For each refused job, `refused` gets the queue's limit."""
    try:
        return [job[0]._handle(result) for job, result in zip(chunk, results, strict=True)]
    except QueueFull:  # rare, so only this path looks at each result
        refused += [result.full for result in results if result.full is not None]
        pairs = zip(chunk, results, strict=True)
        return [job[0]._handle(result) for job, result in pairs if result.full is None]
