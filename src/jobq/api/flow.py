"""Flows: jobs that wait for jobs, submitted whole or not at all. An argument that is another job's result is an edge.

async with queue.flow() as flow:
    paid = [flow.add(charge, "acme", n) for n in (10, 11)]
    sent = flow.add(email, [p.ref for p in paid])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from jobq.api.job import Job
from jobq.api.task import Definition, Gathered, Task
from jobq.client.ids import new_id
from jobq.client.session import CHUNK, batches
from jobq.core import checks
from jobq.core.bounds import queue_full
from jobq.core.checks import shown
from jobq.core.graph import check_flow
from jobq.core.records import Edge, JobKey, JobSpec, QueueName
from jobq.engine.builtin import GATHER
from jobq.errors import InvalidJob, QueueFull

if TYPE_CHECKING:
    from jobq.api.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


class Flow:
    """A graph of jobs in one store and one tenant, in any of its queues. Leaving the context submits it.

    With an `id` of your own, its jobs have ids that follow from it, and submitting the same flow again changes nothing.
    """

    def __init__(self, queue: Queue, id: str | None = None) -> None:
        self.id = new_id() if id is None else checks.check_id(id, "flow id")
        self._queue = queue
        self._given = id is not None
        self._queues: dict[QueueName, Queue] = {}
        self._specs: dict[JobKey, JobSpec] = {}
        self._jobs: dict[JobKey, Job[Any]] = {}
        self._submitted = False

    def __repr__(self) -> str:
        return f"<Flow {self.id!r} of {len(self._specs)} jobs>"

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """A job of the flow, with options through `task.options(…)`. `job.ref` as an argument stands for a job's result."""
        self._check_place(task)
        return self.take(task, task.linked(args, kwargs), task.definition)

    def take(self, task: Task[..., Any], spec: JobSpec, definition: Definition) -> Job[Any]:
        """A job of the flow, made elsewhere; it gets its id here unless it has one of the caller's."""
        if not spec.given_id:
            spec = replace(
                spec, id=checks.check_id(f"{self.id}.{len(self._specs)}"), given_id=self._given
            )
        key = JobKey(spec.queue, spec.id)
        if key in self._specs:
            raise InvalidJob(
                f"two jobs of the flow have the id {spec.id!r} in queue {spec.queue.queue!r}"
            )
        self._queues[spec.queue] = task.queue
        self._specs[key] = spec
        self._jobs[key] = job = Job[Any](task.queue, spec.id, spec.name, None, definition)
        return job

    async def __aenter__(self) -> Self:
        """Nothing is stored before the context is left."""
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Submit, unless an error came out of the context."""
        if t is None:
            await self.submit()

    async def submit(self) -> None:
        """Store all jobs, or none. None starts before those that wait for it are there.

        InvalidJob if the graph is not sound. QueueFull if one of the queues has no room for all of the flow's jobs there."""
        specs = check_flow(list(self._specs.values()))
        for queue in self._queues.values():
            await queue.session()  # each declares what its constructor was given
        store = await self._queue.store()
        lots = list(batches(specs, CHUNK))
        try:
            for n, lot in enumerate(lots, 1):
                results = await store.put(lot, flow=self.id, last=n == len(lots))
        except QueueFull as full:
            raise queue_full(full.queue, full.max_waiting, refused=len(specs)) from None
        self._submitted = True
        if len(lots) == 1:  # of a staged lot nobody knows yet what it found
            for spec, result in zip(specs, results, strict=True):
                self._jobs[JobKey(spec.queue, spec.id)].settle_on(result)

    def gathering(self, task: Task[..., Any], members: Sequence[Job[Any]]) -> JobSpec:
        """The job whose result is the list of the members' results. Every worker knows how to run it."""
        some = self._specs[members[0].job_key] if members else None
        return JobSpec(
            queue=task.queue.qname,
            id=new_id(),
            name=GATHER,
            payload=task.queue.codec.encode_call((), {}),
            codec=task.queue.codec.name,
            key=None
            if some is None or some.key is None
            else self.id,  # a keyed queue takes only jobs with a key
            after=tuple(Edge(member.job_key) for member in members),
            on_child_failure="fail" if some is None else some.on_child_failure,
            meta=None if some is None else some.meta,
        )

    def _check_place(self, task: Task[..., Any]) -> None:
        if self._submitted:
            raise InvalidJob(f"flow {self.id!r} is submitted: {task.name} cannot be added any more")
        if (task.queue.url, task.queue.tenant) != (self._queue.url, self._queue.tenant):
            raise InvalidJob(
                f"{task!r} is in another store or tenant than the flow: a flow lives in one"
            )


# ── the usual shapes ──────────────────────────────────────────────────────────────────────────────


async def chain(*steps: Task[..., Any], first: tuple[Any, ...] = ()) -> Job[Any]:
    """One after the other: the first step gets `first` as its arguments, each further one the result before it.

    Answers the handle of the last. A step that fails fails those behind it.
    """
    if not steps:
        raise InvalidJob("chain() has no steps")
    async with steps[0].queue.flow() as flow:
        job = flow.add(steps[0], *first)
        for step in steps[1:]:
            job = flow.add(step, job.ref)
    return job


async def group(task: Task[..., R], calls: Iterable[tuple[Any, ...]]) -> Job[list[R]]:
    """All at once: a job per call, and one more whose result is the list of theirs, in the order of the calls.

    If one fails, so does that; `task.options(on_child_failure="continue")` puts a Failure in its place, "ignore" a None.
    """
    async with task.queue.flow() as flow:
        members = [flow.add(task, *_call(n, call)) for n, call in enumerate(calls)]
        return flow.take(task, flow.gathering(task, members), Gathered(task.definition))


async def chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> Job[Any]:
    """All at once, then `then` with the list of their results as its argument. Answers the handle of the latter.

    The policy for a failed call is that of `then`: `then.options(on_child_failure=…)`.
    """
    async with task.queue.flow() as flow:
        members = [flow.add(task, *_call(n, call)) for n, call in enumerate(calls)]
        return flow.add(then, [member.ref for member in members])


def _call(n: int, call: Any) -> tuple[Any, ...]:
    if not isinstance(call, (tuple, list)):
        raise InvalidJob(f"call {n}: {shown(call)} is not a tuple of arguments")
    return tuple(call)
