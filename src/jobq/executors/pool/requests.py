"""Carries out what a run in a child process asks its worker for."""

from __future__ import annotations

import asyncio

from jobq.core.new_jobs import check_spec
from jobq.core.records import JobKey, PutResult
from jobq.core.waits import child_note
from jobq.errors import InvalidJob
from jobq.executors.pool.messages import AddRequest, KeepRequest, NoteRequest, Reply, Request
from jobq.executors.running import Running


async def serve(run: Running, request: Request) -> Reply:
    """Carry out a request. An error is part of the reply, and is raised in the child."""
    try:
        if isinstance(request, NoteRequest):
            await run.note(request.progress, request.lines)
            return Reply(request.n)
        if isinstance(request, KeepRequest):
            run.steps.admit(request.steps)
            await run.keep(saved=request.saved, steps=request.steps)
            return Reply(request.n)
        return Reply(request.n, await _add(run, request))
    except Exception as error:
        return Reply(request.n, None, (type(error).__name__, str(error)))


async def _add(run: Running, request: AddRequest) -> PutResult:
    """Enqueue a child, as `CurrentJob.add` does."""
    spec, lease, store = check_spec(request.spec), run.lease, run.store
    if spec.queue.tenant != lease.queue.tenant or not run.is_stored_at(request.url):
        raise InvalidJob(
            f"task {spec.name} of queue {spec.queue.queue} is in another store or tenant than job "
            f"{lease.id} ({lease.name}): it cannot be its child"
        )
    parent = JobKey(lease.queue, lease.id)
    note = child_note(parent, request.label, JobKey(spec.queue, spec.id))
    if request.note:
        _, (result,) = await asyncio.gather(store.alter([note]), store.put([spec]))
    else:
        (result,) = await store.put([spec])
    if result.full is None and result.id != spec.id:
        # Another job has the child's unique lock. Record which one.
        other = child_note(parent, request.label, JobKey(spec.queue, result.id))
        await store.alter([other])
    return result
