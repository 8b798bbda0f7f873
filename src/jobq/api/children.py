"""Adds a child job to a running job (`current_job().add`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from jobq.api.enqueue_middleware import Enqueueing
from jobq.api.job import Job
from jobq.api.steps import current_step
from jobq.api.task import Task
from jobq.client import portal
from jobq.core.bounds import queue_full
from jobq.core.meta import inherited
from jobq.core.new_jobs import check_spec
from jobq.core.records import JobKey, JobSpec, PutResult
from jobq.core.states import State
from jobq.core.waits import child_id, child_note
from jobq.errors import InvalidJob
from jobq.executors.running import InChild, Running
from jobq.stores.base import Store

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
