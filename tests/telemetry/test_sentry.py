"""Errors, scopes, traces and cron monitors, in the real SDK with a transport in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from jobq import Cron, Every, Queue, Reject, Retry, RetryAfter, Snooze, Worker, current_job, testing
from jobq.sentry import Sentry
from tests.telemetry.apps import apart

NOW = Retry(max_retries=2, delays=[0])


class Kept(Transport):
    """Keeps what the SDK sends."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(str(item.type), item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for type, payload in self.items if type == kind]

    @property
    def errors(self) -> list[Any]:
        return self.of("event")

    @property
    def raised(self) -> list[tuple[str, str]]:
        values = [event["exception"]["values"][-1] for event in self.errors]
        return [(value["type"], value["value"]) for value in values]


@pytest.fixture
def sent() -> Iterator[Kept]:
    transport = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1", transport=transport, traces_sample_rate=1.0
        )
        yield transport
        sentry_sdk.get_client().close()
        sentry_sdk.init()


@pytest.fixture
async def queue(url: str, sent: Kept) -> AsyncIterator[Queue]:
    reporting = Sentry()
    async with Queue(
        "mail", url, middleware=[reporting.run], enqueue_middleware=[reporting.enqueue]
    ) as queue:
        yield queue


async def test_a_failure_is_reported_once_when_it_is_final(queue: Queue, sent: Kept) -> None:
    @queue.task(retry=NOW)
    async def send() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    async with Worker(queue):
        job = await send.enqueue()
        await job.wait(timeout=10)
    assert sent.raised == [("ValueError", "attempt 3")]
    (event,) = sent.errors
    assert (
        event["tags"].items()
        >= {
            "jobq.task": "send",
            "jobq.queue": "mail",
            "jobq.job_id": job.id,
            "jobq.attempt": "3",
            "jobq.outcome": "failed",
        }.items()
    )
    assert event["transaction"] == "send"
    assert event["contexts"]["job"]["failures"] == 2
    assert event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "send"


async def test_every_failure_is_reported_on_request(url: str, sent: Kept) -> None:
    async with Queue("mail", url, middleware=[Sentry(report="every").run]) as queue:

        @queue.task(retry=NOW)
        async def send() -> None:
            raise ValueError(f"attempt {current_job().attempt}")

        async with Worker(queue):
            await (await send.enqueue()).wait(timeout=10)
    assert [value for _, value in sent.raised] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_a_worker_and_a_queue_that_both_report_report_once(queue: Queue, sent: Kept) -> None:
    @queue.task(retry=0)
    def send() -> None:
        raise ValueError("in a thread")

    async with Worker(queue, middleware=[Sentry().run]):
        await (await send.enqueue()).wait(timeout=10)
    assert sent.raised == [("ValueError", "in a thread")]


async def test_what_is_no_failure_is_not_reported(queue: Queue, sent: Kept) -> None:
    @queue.task(retry=0)
    async def send() -> None:
        if current_job().attempt == 1:
            raise Snooze(0)

    async with Worker(queue):
        await (await send.enqueue()).result(timeout=10)
    assert sent.errors == []
    assert [each["contexts"]["trace"]["status"] for each in sent.of("transaction")] == ["ok", "ok"]


async def test_a_timeout_a_rejection_and_a_chosen_retry_are_reported_as_what_they_are(
    queue: Queue, sent: Kept
) -> None:
    @queue.task(retry=0, timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    @queue.task
    async def reject() -> None:
        raise Reject("never")

    @queue.task(retry=0)
    async def again() -> None:
        raise RetryAfter(1) from ConnectionError("busy")

    async with Worker(queue):
        for task in (slow, reject, again):
            await (await task.enqueue()).wait(timeout=10)
    assert sent.raised == [
        ("TimeoutError", "the run did not end within 0.01 s"),
        ("Reject", "never"),
        ("ConnectionError", "busy"),
    ]


async def test_a_handler_that_goes_on_after_its_timeout_is_reported_once(
    queue: Queue, sent: Kept
) -> None:
    timed_out = asyncio.Event()

    @queue.task(retry=0, timeout=0.01, grace=0)
    async def slow() -> None:
        while not timed_out.is_set():
            try:
                await timed_out.wait()
            except asyncio.CancelledError:
                continue

    async with Worker(queue):
        await (await slow.enqueue()).wait(timeout=10)
        timed_out.set()
    assert len(sent.errors) == 1
    (run,) = sent.of("transaction")
    assert run["contexts"]["trace"]["status"] == "internal_error"


async def test_a_failure_in_a_child_process_is_reported_once(url: str, sent: Kept) -> None:
    apart.failing._context.connection.move(url)
    try:
        async with apart.failing, Worker(apart.failing, pool=1, middleware=[Sentry().run]):
            await (await apart.fail_apart.enqueue()).wait(timeout=30)
    finally:
        await apart.failing._context.connection.move_back()
    assert sent.raised == [("ValueError", "no such tenant")]
    (event,) = sent.errors
    assert "in fail_apart" in event["extra"]["traceback"]
    assert event["tags"]["jobq.task"] == "fail_apart"


async def test_each_job_of_a_batch_that_fails_is_reported(queue: Queue, sent: Kept) -> None:
    @queue.batch_task(size=3, retry=0)
    async def send(items: list[int]) -> list[Any]:
        return [ValueError(f"no {n}") if n else None for n in items]

    jobs = [await send.enqueue(n) for n in range(3)]
    async with Worker(queue):
        for job in jobs:
            await job.wait(timeout=10)
    found = {
        event["tags"]["jobq.job_id"]: event["exception"]["values"][-1]["value"]
        for event in sent.errors
    }
    assert found == {jobs[1].id: "no 1", jobs[2].id: "no 2"}


async def test_a_failure_outside_of_the_middleware_comes_through_the_log(
    url: str, sent: Kept
) -> None:
    async with Queue("mail", url) as queue:

        @queue.task(retry=0)
        async def send() -> None:
            raise ValueError("not watched")

        async with Worker(queue):
            await (await send.enqueue()).wait(timeout=10)
    assert sent.raised == [("ValueError", "not watched")]


async def test_a_result_that_cannot_be_stored_is_reported(queue: Queue, sent: Kept) -> None:
    @queue.task(retry=0)
    async def send() -> object:
        return object()

    async with Worker(queue):
        job = await send.enqueue()
        await job.wait(timeout=10)
    assert (await job.info()).state == "failed"
    assert len(sent.errors) == 1


async def test_breadcrumbs_of_one_job_are_not_those_of_another(queue: Queue, sent: Kept) -> None:
    @queue.task(retry=0)
    async def send(n: int) -> None:
        logging.getLogger("app").warning("address %d", n)
        await next_one.enqueue()
        raise ValueError(str(n))

    @queue.task
    async def next_one() -> None: ...

    async with Worker(queue, concurrency=1):
        for n in range(2):
            await (await send.enqueue(n)).wait(timeout=10)
    assert len(sent.errors) == 2
    for n, event in enumerate(sent.errors):
        crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"]]
        assert crumbs == ["attempt 1 of send started", f"address {n}", "enqueued next_one"]


async def test_a_run_continues_the_trace_in_which_it_was_enqueued(queue: Queue, sent: Kept) -> None:
    @queue.task
    async def send() -> None: ...

    with sentry_sdk.start_transaction(name="request") as request:
        job = await send.enqueue()
    async with Worker(queue):
        await job.result(timeout=10)
    web, run = sent.of("transaction")
    (publish,) = web["spans"]
    assert publish["op"] == "queue.publish"
    assert publish["data"]["messaging.message.id"] == job.id
    assert run["contexts"]["trace"]["op"] == "queue.process"
    assert run["contexts"]["trace"]["trace_id"] == request.trace_id
    assert run["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
    assert run["contexts"]["trace"]["data"]["messaging.destination.name"] == "mail"


async def test_a_schedule_is_a_cron_monitor(url: str, sent: Kept) -> None:
    queue = Queue("mail", url, middleware=[Sentry().run])
    attempts: list[int] = []

    @queue.task(retry=Retry(max_retries=1, delays=[0]))
    async def digest() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise ValueError("try again")
        if len(attempts) > 2:
            raise Reject("no")

    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    async with testing.use(queue, clock=clock) as jobs:
        await queue.schedule("Daily digest", Cron("0 13 * * *", tz="Europe/Zurich"), digest)
        for _ in range(2):
            jobs.clock.advance(24 * 3600)
            await jobs.drain()
    found = sent.of("check_in")
    assert [each["status"] for each in found] == [
        "in_progress",
        "in_progress",
        "ok",
        "in_progress",
        "error",
    ]
    assert {each["monitor_slug"] for each in found} == {"mail-daily-digest"}
    assert len({each["check_in_id"] for each in found}) == 2
    assert found[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 13 * * *"},
        "timezone": "Europe/Zurich",
    }


async def test_two_schedules_are_two_monitors(url: str, sent: Kept) -> None:
    queue = Queue("発送", url, middleware=[Sentry().run])

    @queue.task
    async def digest() -> None: ...

    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    names = ["毎日", "毎週", f"{'x' * 60}-1", f"{'x' * 60}-2"]
    async with testing.use(queue, clock=clock) as jobs:
        for name in names:
            await queue.schedule(name, Every(3600), digest)
        jobs.clock.advance(3600)
        await jobs.drain()
    slugs = {each["monitor_slug"] for each in sent.of("check_in")}
    assert len(slugs) == len(names)
    assert all(0 < len(slug) <= 50 for slug in slugs)


@pytest.mark.parametrize(
    ("when", "times"),
    [
        (Every(7200), {"type": "interval", "value": 120, "unit": "minute"}),
        (Every(90), None),
        (Cron("*/10 * * * * *"), None),
    ],
    ids=["minutes", "seconds", "cron with seconds"],
)
async def test_sentry_monitors_what_it_has_words_for(
    url: str, sent: Kept, when: Any, times: Any
) -> None:
    queue = Queue("mail", url, middleware=[Sentry().run])

    @queue.task
    async def digest() -> None: ...

    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    async with testing.use(queue, clock=clock) as jobs:
        await queue.schedule("s", when, digest)
        jobs.clock.advance(7200)
        await jobs.drain()
    configs = [each["monitor_config"]["schedule"] for each in sent.of("check_in")]
    assert configs == [times] * 2 if times else configs == []


async def test_an_id_that_looks_like_a_schedules_job_is_none(queue: Queue, sent: Kept) -> None:
    @queue.task
    async def send() -> None: ...

    async with Worker(queue):
        await (await send.options(id="ann@1770000000000").enqueue()).result(timeout=10)
    assert sent.of("check_in") == []


async def test_ignored_errors_are_not_reported(url: str, sent: Kept) -> None:
    async with Queue("mail", url, middleware=[Sentry(ignore=(LookupError,)).run]) as queue:

        @queue.task(retry=0)
        async def send() -> None:
            raise KeyError("x")

        async with Worker(queue):
            await (await send.enqueue()).wait(timeout=10)
    assert sent.errors == []
