"""For web applications: jobs as HTTP responses, jobs as server-sent events, and a lifespan.

    app = FastAPI(lifespan=queues_lifespan(reports))

    @app.get("/reports/{id}")
    async def report(id: str) -> Response:
        return Response(*await job_reply(reports.job(id), timeout=10))

Nothing here imports a web framework. A Reply has its fields in the order in which the Response of
FastAPI, Starlette and Flask takes them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from jobq.api.info import JobInfo
from jobq.api.job import Job, JobUpdate, SyncJob
from jobq.api.queue import Queue
from jobq.client.portal import each, run
from jobq.core.records.states import State
from jobq.core.values.checks import Seconds
from jobq.core.values.codec import JSON
from jobq.errors import (
    ConfigError,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobqError,
    LockTimeout,
    PayloadTooLarge,
    QueueClosed,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
    WaitTimeout,
)

__all__ = [
    "Reply",
    "error_reply",
    "job_events",
    "job_reply",
    "queues_lifespan",
    "sync_job_events",
    "sync_job_reply",
]

log = logging.getLogger("jobq.http")

RETRY_AFTER_S = 5
"""Seconds after which a client may try again: about as long as a store takes to fail over."""
KEEP_ALIVE_S = 15.0
"""Seconds without a change after which a stream sends a comment. Proxies close connections that are
silent for 30 to 60 seconds."""

_STATUS: tuple[tuple[type[JobqError], int, str], ...] = (
    (PayloadTooLarge, 413, "The arguments of the job are too large"),
    (InvalidJob, 400, "The job was refused"),
    (JobNotFound, 404, "There is no such job"),
    (JobCancelled, 410, "The job was cancelled"),
    (JobFailed, 500, "The job failed"),
    (WaitTimeout, 504, "The job has not ended in time"),
    (QueueFull, 503, "The queue is full"),
    (QuotaExceeded, 503, "The quota is used up"),
    (QueueClosed, 503, "The application is shutting down"),
    (LockTimeout, 503, "The queue is busy"),
    (StoreUnavailable, 503, "The queue is unavailable"),
)
"""The status and the title of each error. Any other error of jobq is a 500."""

_OF_REASON = {
    "rejected": (422, "The job was rejected"),
    "timeout": (504, "The job took too long"),
}
"""The same for a JobFailed whose failure has this reason."""


class Reply(NamedTuple):
    """An HTTP response: `Response(*reply)` in FastAPI, Starlette and Flask."""

    content: bytes
    status: int
    headers: dict[str, str]


# ── replies ───────────────────────────────────────────────────────────────────────────────────────


def error_reply(error: JobqError, *, expose: bool = False) -> Reply:
    """An error of jobq as a response, in the format of RFC 9457 (`application/problem+json`).

    The response does not contain the error's message, which may show internals. With `expose` it
    does, as `detail`. A status of 500 is logged with the error.
    """
    status, title = _status(error)
    if status == 500:
        log.error("%s: %s", title, error, exc_info=error)
    problem: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    if expose:
        problem["detail"] = str(error)
    headers = {"Content-Type": "application/problem+json"}
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Reply(JSON.encode(problem), status, headers)


async def job_reply(
    job: Job[Any], *, timeout: Seconds = 0, location: str | None = None, expose: bool = False
) -> Reply:
    """The job as a response, after waiting up to `timeout` for its end.

    200 with the result, or 202 with the state and progress if the job has not ended. `location` is
    the URL where the client asks again, sent with a 202. Any other outcome is an `error_reply`.
    """
    try:
        return _info_reply(await _waited(job, timeout), location, expose)
    except JobqError as error:
        return error_reply(error, expose=expose)


def sync_job_reply(
    job: SyncJob[Any], *, timeout: Seconds = 0, location: str | None = None, expose: bool = False
) -> Reply:
    """See `job_reply`. Blocks."""
    return run(job_reply(job._of, timeout=timeout, location=location, expose=expose))


async def _waited(job: Job[Any], timeout: Seconds) -> JobInfo:
    if timeout:
        try:
            return await job.wait(timeout=timeout)
        except WaitTimeout:
            pass
    return await job.info()


def _info_reply(info: JobInfo, location: str | None, expose: bool) -> Reply:
    if info.state is State.FAILED and info.failure is not None:
        what = f"job {info.id!r} ({info.name}) failed: {info.failure.type}: {info.failure.message}"
        return error_reply(JobFailed(what, info.failure), expose=expose)
    if info.state is State.CANCELLED:
        return error_reply(JobCancelled(f"job {info.id!r} was cancelled"), expose=expose)
    headers = {"Content-Type": "application/json"}
    if info.state.ended:
        return Reply(JSON.encode(_shown(info)), 200, headers)
    if location is not None:
        headers["Location"] = location
    return Reply(JSON.encode(_shown(info)), 202, headers)


def _shown(info: JobInfo) -> dict[str, Any]:
    shown = {"id": info.id, "state": info.state, "progress": info.progress}
    if info.state is State.COMPLETED:
        shown["result"] = info.result
    return shown


def _status(error: JobqError) -> tuple[int, str]:
    if isinstance(error, JobFailed) and error.failure.reason in _OF_REASON:
        return _OF_REASON[error.failure.reason]
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            return status, title
    return 500, "The job queue reported an error"


# ── server-sent events ────────────────────────────────────────────────────────────────────────────


async def job_events(
    job: Job[Any], *, timeout: Seconds | None = None, expose: bool = False
) -> AsyncGenerator[bytes, None]:
    """The job as server-sent events, for a response of type `text/event-stream`:
    `StreamingResponse(await job_events(job), media_type="text/event-stream")`.

    Each change of the job is an event `update` with its state, its progress and its new log lines
    as JSON. The last one is an event `end`, with the result if there is one. Raises JobNotFound
    before the response begins. After `timeout`, the stream ends without an event `end`, and a
    browser connects again. With `expose`, the end of a failed job has the error's message.
    """
    updates = job.follow(timeout=timeout, repeat_after=KEEP_ALIVE_S)
    try:
        first = await anext(updates)
    except BaseException:
        await updates.aclose()
        raise
    return _frames(first, updates, expose)


def sync_job_events(
    job: SyncJob[Any], *, timeout: Seconds | None = None, expose: bool = False
) -> Iterator[bytes]:
    """See `job_events`. The stream occupies a thread of the server until the job ends."""
    return each(run(job_events(job._of, timeout=timeout, expose=expose)))


async def _frames(
    update: JobUpdate, updates: AsyncGenerator[JobUpdate, None], expose: bool
) -> AsyncGenerator[bytes, None]:
    before: JobUpdate | None = None
    try:
        while True:
            if before is not None and not update.lines and update.info == before.info:
                yield b": the job has not changed\n\n"
            else:
                yield _frame(update, expose)
            if update.ended:
                return
            before, update = update, await anext(updates)
    except WaitTimeout:  # the response has begun: an error would only break the connection
        return
    finally:
        await updates.aclose()


def _frame(update: JobUpdate, expose: bool) -> bytes:
    shown = {**_shown(update.info), "lines": update.lines}
    if (failure := update.info.failure) is not None and update.state is State.FAILED:
        shown["reason"] = failure.reason
        if expose:
            shown["error"] = f"{failure.type}: {failure.message}"
    kind = b"end" if update.ended else b"update"
    return b"event: " + kind + b"\ndata: " + JSON.encode(shown) + b"\n\n"


# ── lifespan ──────────────────────────────────────────────────────────────────────────────────────


def queues_lifespan(*queues: Queue) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan that opens the queues when an ASGI application starts, and closes them when it
    stops: `FastAPI(lifespan=queues_lifespan(reports))`.

    The application does not start if a queue cannot be opened. In a lifespan of your own, write
    `async with queues_lifespan(reports)(app):`.
    """
    if not queues:
        raise ConfigError("queues_lifespan() has no queue: give the queues of the application")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for queue in queues:
                await stack.enter_async_context(queue)
            yield

    return lifespan
