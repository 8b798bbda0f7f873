"""Carries out what a run in a child process asks its worker for.

A request is checked like anything from outside: the process may send what `current_job()` would
refuse.
"""

from __future__ import annotations

import asyncio

from jobq.core.records.failures import bounded
from jobq.core.records.jobs import JobKey, PutResult
from jobq.core.rules.new_jobs import check_spec
from jobq.core.rules.waits import MAX_LABEL, child_note
from jobq.core.values.checks import check_payload, check_short_name
from jobq.errors import InvalidJob
from jobq.executors.pool.messages import AddRequest, KeepRequest, NoteRequest, Reply, Request
from jobq.executors.running import Running


async def serve(run: Running, request: Request, max_payload: int | None = None) -> Reply:
    """Carry out a request of a run whose handler may encode `max_payload` bytes.

    An error is part of the reply, and is raised in the child.
    """
    try:
        if isinstance(request, NoteRequest):
            _check_size(request.progress, max_payload, "the progress")
            await run.note(request.progress, request.lines)
            return Reply(request.n)
        if isinstance(request, KeepRequest):
            _check_size(request.saved, max_payload, "the saved value")
            run.steps.admit(request.steps)
            await run.keep(saved=request.saved, steps=request.steps)
            return Reply(request.n)
        return Reply(request.n, await _add(run, request))
    except Exception as error:
        return Reply(request.n, None, (type(error).__name__, bounded(str(error))))


def _check_size(data: bytes | None, limit: int | None, what: str) -> None:
    if data is not None and limit is not None:
        check_payload(data, limit, f"{what} takes")


async def _add(run: Running, request: AddRequest) -> PutResult:
    """Enqueue a child, as `CurrentJob.add` does."""
    spec, lease, store = check_spec(request.spec), run.lease, run.store
    check_short_name(request.label, "label", MAX_LABEL)
    if spec.schedule is not None or spec.origin is not None:
        raise InvalidJob(f"job {spec.id} is a child: no schedule and no other job has made it")
    if spec.queue.tenant != lease.queue.tenant or not _is_stored_at(run, request.url):
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


def _is_stored_at(run: Running, url: str) -> bool:
    try:
        return run.is_stored_at(url)
    except Exception:  # what is wrong with a URL is not for the child to know
        return False
