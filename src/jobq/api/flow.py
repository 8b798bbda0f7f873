"""Flows: jobs that wait for other jobs, stored all together or not at all.

An argument that is another job's result (`job.ref`) makes the job wait for that one:

async with queue.flow() as flow:
    paid = [flow.add(charge, "acme", n) for n in (10, 11)]
    sent = flow.add(email, [p.ref for p in paid])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from jobq.api.context import Definition, Gathered, QueueContext
from jobq.api.enqueueing import Enqueueing
from jobq.api.job import Job, SyncJob
from jobq.api.task import Task
from jobq.client import transaction
from jobq.client.connection import CHUNK, batches
from jobq.client.ids import new_id
from jobq.client.portal import run
from jobq.client.transaction import AfterCommit
from jobq.core.records.jobs import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.rules.flows import check_flow
from jobq.core.rules.limits import queue_full
from jobq.core.rules.new_jobs import Checked
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.engine.builtin import GATHER
from jobq.errors import InvalidJob, QueueFull
from jobq.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")


class Flow:
    """A graph of jobs in the queues of one store and tenant. Leaving `async with` submits it.

    If you give the flow an `id`, the ids of its jobs are made from it, and submitting the same flow
    again changes nothing.
    """

    def __init__(self, context: QueueContext, id: str | None = None) -> None:
        self.id = new_id() if id is None else checks.check_id(id, "flow id")
        self._context = context
        self._given = id is not None
        self._contexts: dict[QueueName, QueueContext] = {}
        self._specs: dict[JobKey, JobSpec] = {}
        self._jobs: dict[JobKey, Job[Any]] = {}
        # Calls whose queue has enqueue middleware: the task and the arguments.
        self._within: dict[JobKey, tuple[Task[..., Any], tuple[Any, ...], Mapping[str, Any]]] = {}
        self._submitted = False

    def __repr__(self) -> str:
        return f"<Flow {self.id!r} of {len(self._specs)} jobs>"

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job and return its handle. Give options through `task.options(…)`.

        `job.ref` of a job of the flow may be used as an argument: it stands for that job's result.
        """
        self._check_task(task)
        job = self._add(task, task._linked_spec(args, kwargs), task._definition)
        if task._context.enqueue_middleware:
            self._within[job.job_key] = (task, args, kwargs)
        return job

    def _add(self, task: Task[..., Any], spec: JobSpec, definition: Definition) -> Job[Any]:
        """Add a job. It gets an id made from the flow's unless the caller chose one."""
        if not spec.given_id:
            spec = replace(
                spec, id=checks.check_id(f"{self.id}.{len(self._specs)}"), given_id=self._given
            )
        key = JobKey(spec.queue, spec.id)
        if key in self._specs:
            raise InvalidJob(
                f"two jobs of the flow have the id {spec.id!r} in queue {spec.queue.queue!r}"
            )
        self._contexts[spec.queue] = task._context
        self._specs[key] = spec
        self._jobs[key] = job = Job[Any](task._context, spec.id, spec.name, None, definition)
        return job

    async def __aenter__(self) -> Self:
        """Nothing is stored before the block ends."""
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Submit the flow, unless the block raised an error."""
        if t is None:
            await self.submit()

    async def submit(self) -> None:
        """Store all jobs or none. No job starts before all of them are stored.

        Raises InvalidJob if the graph is not valid, and QueueFull if one of the queues has no room
        for all of the flow's jobs there."""
        specs = check_flow(await self._revised())
        store = await self._opened()
        if (joined := transaction.current()) is not None:
            self._stored_as(specs, await joined.put(store, specs))
        else:
            await self._put(store, specs)

    async def _put(self, store: Store, specs: Checked) -> None:
        chunks = [Checked(chunk) for chunk in batches(specs, CHUNK)]
        try:
            for n, chunk in enumerate(chunks, 1):
                results = await store.put(chunk, flow=self.id, last=n == len(chunks))
        except QueueFull as full:
            raise queue_full(full.queue, full.max_waiting, refused=len(specs)) from None
        # The results of a larger flow's earlier chunks are not final.
        self._stored_as(specs, results if len(chunks) == 1 else None)

    def _submit_blocking(self) -> None:
        """The same for code without an event loop."""
        joined = self._context.surrounding()
        if joined is None:
            run(self.submit())
            return
        specs = check_flow(run(self._revised()))
        if isinstance(joined, AfterCommit):
            self._submitted = True
            joined.on_commit(lambda: run(self._put_later(specs)))
        else:
            self._stored_as(specs, joined.put_blocking(run(self._opened()), specs))

    async def _put_later(self, specs: Checked) -> None:
        await self._put(await self._opened(), specs)

    async def _revised(self) -> list[JobSpec]:
        """The jobs as the enqueue middleware of their queues left them."""
        return [
            spec
            if (call := self._within.get(key)) is None
            else await Enqueueing(call[0], spec, call[1], call[2], "flow").revised()
            for key, spec in self._specs.items()
        ]

    async def _opened(self) -> Store:
        """The store of the flow. Opening a queue declares its configuration."""
        for context in self._contexts.values():
            await context.session()
        return await self._context.store()

    def _stored_as(self, specs: Sequence[JobSpec], results: Sequence[PutResult] | None) -> None:
        self._submitted = True
        for spec, result in zip(specs, results or (), strict=results is not None):
            self._jobs[JobKey(spec.queue, spec.id)]._stored_as(result)

    def _gather(self, task: Task[..., Any], members: Sequence[Job[Any]]) -> JobSpec:
        """The job whose result is the list of the members' results. Every worker can run it."""
        first = self._specs[members[0].job_key] if members else None
        codec = task._context.codec
        return JobSpec(
            queue=task._context.qname,
            id=new_id(),
            name=GATHER,
            payload=codec.for_task(GATHER).encode_call((), {}),
            codec=codec.name,
            # A keyed queue accepts only jobs with a key.
            key=None if first is None or first.key is None else self.id,
            after=tuple(Edge(member.job_key) for member in members),
            on_child_failure="fail" if first is None else first.on_child_failure,
            meta=None if first is None else first.meta,
        )

    def _check_task(self, task: Task[..., Any]) -> None:
        if not isinstance(task, Task):
            raise InvalidJob(
                f"flow.add({shown(task)}): give the task, then its arguments: flow.add(task, 1, 2)"
            )
        if self._submitted:
            raise InvalidJob(
                f"flow {self.id!r} was already submitted: {task.name} cannot be added to it"
            )
        own, other = self._context, task._context
        if (other.url, other.qname.tenant) != (own.url, own.qname.tenant):
            raise InvalidJob(
                f"{task!r} is in another store or tenant than the flow: all jobs of a flow must be "
                "in the same one"
            )


class SyncFlow:
    """A flow with blocking methods: `with queue.sync.flow() as flow:`."""

    __slots__ = ("_flow", "id")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.id = flow.id

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """See `Flow.add`."""
        return SyncJob(self._flow.add(task, *args, **kwargs))

    def submit(self) -> None:
        """See `Flow.submit`."""
        self._flow._submit_blocking()

    def __enter__(self) -> Self:
        """Nothing is stored before the block ends."""
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Submit the flow, unless the block raised an error."""
        if t is None:
            self.submit()


# ── the usual shapes ──────────────────────────────────────────────────────────────────────────────


async def chain(*steps: Task[..., Any], first: tuple[Any, ...] = ()) -> Job[Any]:
    """Run tasks one after the other and return the handle of the last job.

    The first task gets `first` as its arguments, every other one the result of the task before it.
    If a step fails, the steps after it fail too.
    """
    flow, job = flow_of_chain(steps, first)
    await flow.submit()
    return job


async def group(task: Task[..., R], calls: Iterable[tuple[Any, ...]]) -> Job[list[R]]:
    """Run a job per call side by side, and one more whose result is the list of their results.

    The list is in the order of the calls. If a job fails, so does the last one, unless
    `task.options(on_child_failure=…)` says otherwise: "continue" puts a Failure into the list,
    "ignore" a None.
    """
    flow, job = flow_of_group(task, calls)
    await flow.submit()
    return job


async def chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> Job[Any]:
    """Run a job per call side by side, then `then` with the list of their results.

    Returns the handle of the `then` job. `then.options(on_child_failure=…)` decides what a failed
    call means for it.
    """
    flow, job = flow_of_chord(task, calls, then)
    await flow.submit()
    return job


def flow_of_chain(steps: Sequence[Task[..., Any]], first: tuple[Any, ...]) -> tuple[Flow, Job[Any]]:
    """The flow of `chain`, not submitted, and its last job."""
    if not steps:
        raise InvalidJob("chain() has no steps")
    flow = Flow(steps[0]._context)
    job = flow.add(steps[0], *first)
    for step in steps[1:]:
        job = flow.add(step, job.ref)
    return flow, job


def flow_of_group(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]]
) -> tuple[Flow, Job[list[R]]]:
    """The flow of `group`, not submitted, and its last job."""
    flow = Flow(task._context)
    members = [flow.add(task, *_call(n, call)) for n, call in enumerate(calls)]
    return flow, flow._add(task, flow._gather(task, members), Gathered(task._definition))


def flow_of_chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> tuple[Flow, Job[Any]]:
    """The flow of `chord`, not submitted, and its last job."""
    flow = Flow(task._context)
    members = [flow.add(task, *_call(n, call)) for n, call in enumerate(calls)]
    return flow, flow.add(then, [member.ref for member in members])


def _call(n: int, call: Any) -> tuple[Any, ...]:
    if not isinstance(call, (tuple, list)):
        raise InvalidJob(f"call {n}: {shown(call)} is not a tuple of arguments")
    return tuple(call)
