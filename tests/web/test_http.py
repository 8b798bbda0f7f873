"""`jobq.http`: jobs and errors as HTTP responses, jobs as server-sent events, and a lifespan."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

import jobq
from jobq import (
    AccessDenied,
    ConfigError,
    Failure,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobqError,
    LockTimeout,
    PayloadTooLarge,
    Queue,
    QueueClosed,
    QueueFull,
    QuotaExceeded,
    Reject,
    StoreUnavailable,
    Unauthenticated,
    WaitTimeout,
    Worker,
    current_job,
    http,
    testing,
)
from jobq.http import Reply, error_reply, job_events, job_reply, queues_lifespan
from tests.waiting import PATIENCE_S


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with testing.queue() as queue:
        yield queue


def failed(reason: Any) -> JobFailed:
    return JobFailed("secret", Failure(reason=reason, type="T", message="secret"))


ERRORS: list[tuple[JobqError, int]] = [
    (PayloadTooLarge("secret"), 413),
    (InvalidJob("secret"), 400),
    (JobNotFound("secret"), 404),
    (JobCancelled("secret"), 410),
    (failed("error"), 500),
    (failed("stalled"), 500),
    (failed("rejected"), 422),
    (failed("timeout"), 504),
    (WaitTimeout("secret"), 504),
    (QueueFull("secret"), 503),
    (QuotaExceeded("secret"), 503),
    (QueueClosed("secret"), 503),
    (LockTimeout("secret"), 503),
    (StoreUnavailable("secret"), 503),
    (ConfigError("secret"), 500),
    (AccessDenied("secret"), 500),
    (Unauthenticated("secret"), 500),
    (JobqError("secret"), 500),
]


@pytest.mark.parametrize(
    ("error", "status"), ERRORS, ids=lambda value: getattr(type(value), "__name__", None)
)
def test_every_error_has_a_status_and_keeps_its_message_to_itself(
    error: JobqError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = error_reply(error)
    body = json.loads(reply.content)
    assert (reply.status, body["status"]) == (status, status)
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert ("Retry-After" in reply.headers) == (status == 503)
    assert b"secret" not in reply.content
    assert json.loads(error_reply(error, expose=True).content)["detail"] == "secret"
    # What the client does not see, the operator does.
    assert bool([r for r in caplog.records if r.levelno == logging.ERROR]) == (status == 500)


def test_every_error_that_jobq_can_raise_at_a_caller_is_in_the_test_above() -> None:
    of_handlers = {jobq.LeaseLost, jobq.PermissionDenied, jobq.CorruptStore}
    of_runs = {jobq.UnfitArguments, jobq.UndecodableArguments, jobq.UnstorableResult}
    public = {
        value
        for name in jobq.__all__
        if isinstance(value := getattr(jobq, name), type) and issubclass(value, JobqError)
    }
    assert public - of_handlers - of_runs == {type(error) for error, _ in ERRORS}


@dataclass
class Receipt:
    cents: int


async def body_of(reply: Reply) -> Any:
    return json.loads(reply.content)


async def test_a_job_that_waits_is_a_202_with_the_place_to_ask_again(queue: Queue) -> None:
    job = await queue.task_by_name("later").enqueue()
    reply = await job_reply(job, location="/jobs/7")
    assert (reply.status, reply.headers["Location"]) == (202, "/jobs/7")
    assert json.loads(reply.content) == {"id": job.id, "state": "waiting", "progress": None}
    assert (await job_reply(job, timeout=0.01)).status == 202
    assert await job.state() == "waiting"


async def test_a_result_is_a_200_as_json(queue: Queue) -> None:
    @queue.task
    async def charge() -> Receipt:
        await current_job().progress({"step": 1})
        return Receipt(700)

    async with Worker(queue):
        job = await charge.enqueue()
        reply = await job_reply(job, timeout=PATIENCE_S, location="/jobs/7")
    assert (reply.status, "Location" in reply.headers) == (200, False)
    assert json.loads(reply.content) == {
        "id": job.id,
        "state": "completed",
        "progress": {"step": 1},
        "result": {"cents": 700},
    }


async def test_a_failed_a_rejected_and_a_cancelled_job_are_errors(queue: Queue) -> None:
    @queue.task(retry=0)
    async def breaks(error: str) -> None:
        raise Reject("no such tenant") if error == "reject" else RuntimeError("broken")

    cancelled = await queue.task_by_name("later").enqueue()
    await cancelled.cancel()
    assert (await job_reply(cancelled)).status == 410
    async with Worker(queue):
        rejected = await job_reply(await breaks.enqueue("reject"), timeout=PATIENCE_S, expose=True)
        broken = await job_reply(await breaks.enqueue("error"), timeout=PATIENCE_S)
    assert (rejected.status, broken.status) == (422, 500)
    assert "no such tenant" in json.loads(rejected.content)["detail"]
    assert b"broken" not in broken.content


async def test_a_job_that_does_not_exist_is_a_404(queue: Queue) -> None:
    assert (await job_reply(queue.job("nobody"))).status == 404
    assert (await job_reply(queue.job("nobody"), timeout=1)).status == 404


def test_the_blocking_twins_do_the_same() -> None:
    queue = testing.queue()
    with queue.sync:
        job = queue.task_by_name("later").sync.enqueue()
        assert http.sync_job_reply(job).status == 202
        job.cancel()
        assert http.sync_job_reply(job).status == 410
        (frame,) = http.sync_job_events(job)
        assert frame.startswith(b"event: end\n")
        with pytest.raises(JobNotFound):
            http.sync_job_events(queue.sync.job("nobody"))


# ── server-sent events ────────────────────────────────────────────────────────────────────────────


def parsed(frame: bytes) -> tuple[str, Any]:
    assert frame.endswith(b"\n\n")
    event, data = frame.decode().rstrip("\n").split("\n")
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_a_stream_has_the_changes_of_a_job_and_its_end(queue: Queue) -> None:
    @queue.task
    async def talk() -> str:
        await current_job().log("a line\nwith a break")
        return "done"

    job = await talk.enqueue()
    async with Worker(queue), asyncio.timeout(PATIENCE_S):
        frames = [parsed(frame) async for frame in await job_events(job)]
    assert [event for event, _ in frames[:-1]] == ["update"] * (len(frames) - 1)
    event, last = frames[-1]
    assert (event, last["state"], last["result"]) == ("end", "completed", "done")
    assert [line for _, data in frames for line in data["lines"]] == ["a line\nwith a break"]


async def test_the_end_of_a_failed_job_has_the_reason_and_the_error_on_request(
    queue: Queue,
) -> None:
    @queue.task(retry=0)
    async def breaks() -> None:
        raise RuntimeError("broken")

    async with Worker(queue):
        job = await breaks.enqueue()
        await job.wait(timeout=PATIENCE_S)
    (discreet,) = [parsed(frame) async for frame in await job_events(job)]
    (exposed,) = [parsed(frame) async for frame in await job_events(job, expose=True)]
    assert (discreet[1]["reason"], "error" in discreet[1]) == ("error", False)
    assert exposed[1]["error"] == "RuntimeError: broken"


async def test_a_silent_stream_sends_comments(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "KEEP_ALIVE_S", 0.01)
    job = await queue.task_by_name("later").enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(await job_events(job)) as frames:
        assert parsed(await anext(frames))[1]["state"] == "waiting"
        assert (await anext(frames)).startswith(b":")
        assert (await anext(frames)).startswith(b":")


async def test_a_stream_ends_after_its_timeout(queue: Queue) -> None:
    @queue.task
    async def work() -> None: ...

    frames = [each async for each in await job_events(await work.enqueue(), timeout=0.01)]
    assert [frame.partition(b"\n")[0] for frame in frames] == [b"event: update"]


async def test_a_missing_job_is_found_out_before_the_response_begins(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        await job_events(queue.job("nobody"))


async def test_a_client_that_leaves_ends_the_follower(queue: Queue) -> None:
    job = await queue.task_by_name("later").enqueue()
    frames = await job_events(job)
    await anext(frames)
    await frames.aclose()
    assert "jobq signals" not in {task.get_name() for task in asyncio.all_tasks()}


# ── lifespan ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_lifespan_opens_and_closes_the_queues() -> None:
    one, two = testing.queue("one"), testing.queue("two")
    async with queues_lifespan(one, two)(object()):
        assert one._context.connection.session_here()
        assert two._context.connection.session_here()
    assert not one._context.connection.session_here()
    assert not two._context.connection.session_here()


async def test_a_queue_that_cannot_be_opened_closes_the_others() -> None:
    one, two = testing.queue("one"), Queue("two", "valkey://localhost:1")
    with pytest.raises(JobqError):
        async with queues_lifespan(one, two)(object()):
            pass
    assert not one._context.connection.session_here()


def test_a_lifespan_without_queues_is_refused() -> None:
    with pytest.raises(ConfigError, match="no queue"):
        queues_lifespan()


def test_jobq_http_imports_no_web_framework() -> None:
    code = (
        "import jobq.http, sys; print([n for n in ('starlette', 'flask', 'fastapi', 'uvicorn') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
