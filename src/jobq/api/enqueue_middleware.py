"""Middleware around the enqueueing of jobs: `Queue(enqueue_middleware=[…])`.

async def tagged(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    request.meta["user"] = current_user()
    return await call_next(request)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from msgspec.structs import replace

from jobq.api.job import Job
from jobq.api.options import JobOptions
from jobq.core.checks import shown
from jobq.core.meta import check_meta
from jobq.core.records import JobSpec
from jobq.errors import InvalidJob

if TYPE_CHECKING:
    from jobq.api.task import Task  # Task calls this module

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
