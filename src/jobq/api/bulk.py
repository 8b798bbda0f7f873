"""Enqueueing many jobs: encoded, stored and turned into handles a chunk at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobq.api.context import QueueContext
from jobq.api.enqueue_middleware import Enqueueing, Via
from jobq.api.job import Job, QueueFull
from jobq.client import transaction
from jobq.client.portal import run
from jobq.client.session import CHUNK, Session, batches
from jobq.client.transaction import AfterCommit, Transaction
from jobq.core.bounds import queue_full
from jobq.core.records import JobSpec, PutResult

if TYPE_CHECKING:
    from jobq.api.task import Task  # Task.enqueue_many calls this module

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
