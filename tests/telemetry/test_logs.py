"""Every line that a handler logs carries its job."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from jobq import Queue, Snooze, Worker, current_job, logs
from jobq.console.logs import JsonFormatter, TextFormatter
from tests.telemetry.apps import apart

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
META = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}

log = logging.getLogger("app")


class Kept(logging.Handler):
    """Keeps the records that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def fields(self) -> list[dict[str, Any]]:
        names = (*logs.FIELDS, "batch")
        return [{n: vars(r)[n] for n in names if n in vars(r)} for r in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A handler of the logger `app`, with the filter."""
    handler = Kept()
    logs.install(handler)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


def of(job: Any, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "task": job.name,
        "queue": "mail",
        "tenant": "default",
        "attempt": attempt,
        **more,
    }


async def test_an_async_handler_and_its_tasks_log_their_job(queue: Queue, kept: Kept) -> None:
    async def inner() -> None:
        log.info("inside")

    @queue.task
    async def send() -> None:
        log.info("outside")
        await asyncio.create_task(inner())

    async with Worker(queue):
        job = await send.enqueue()
        await job.result(timeout=10)
    assert kept.fields == [of(job)] * 2


async def test_a_plain_function_logs_its_job_and_the_trace_it_was_enqueued_in(
    queue: Queue, kept: Kept
) -> None:
    @queue.task
    def send() -> None:
        log.info("in a thread")

    async with Worker(queue):
        job = await send.options(meta=META).enqueue()
        await job.result(timeout=10)
    assert kept.fields == [of(job, trace_id=TRACE)]


async def test_jobs_that_run_side_by_side_do_not_mix(queue: Queue, kept: Kept) -> None:
    here = asyncio.Barrier(3)

    @queue.task
    async def send(n: int) -> None:
        await here.wait()
        log.info("%d", n)

    async with Worker(queue):
        sent = [await send.enqueue(n) for n in range(3)]
        for job in sent:
            await job.result(timeout=10)
    told = {record.getMessage(): vars(record)["job_id"] for record in kept.records}
    assert told == {str(n): job.id for n, job in enumerate(sent)}


async def test_the_attempt_counts_up(queue: Queue, kept: Kept) -> None:
    @queue.task
    async def send() -> None:
        log.info("again")
        if current_job().attempt == 1:
            raise Snooze(0)

    async with Worker(queue):
        job = await send.enqueue()
        await job.result(timeout=10)
    assert [fields["attempt"] for fields in kept.fields] == [1, 2]


async def test_a_batch_logs_its_task_and_its_size(queue: Queue, kept: Kept) -> None:
    @queue.batch_task(size=3)
    async def send(items: list[int]) -> list[None]:
        log.info("all")
        return [None for _ in items]

    sent = [await send.enqueue(n) for n in range(3)]
    async with Worker(queue):
        for job in sent:
            await job.result(timeout=10)
    assert kept.fields == [{"task": "send", "queue": "mail", "tenant": "default", "batch": 3}]


@pytest.mark.parametrize("task", [apart.tell, apart.tell_from_a_loop], ids=["plain", "async"])
async def test_a_child_process_logs_its_job(task: Any, url: str) -> None:
    apart.queue._context.connection.move(url)
    try:
        async with apart.queue, Worker(apart.queue, pool=1):
            job = await task.options(meta=META).enqueue()
            returned = await job.result(timeout=30)
            (line,) = await job.logs()
    finally:
        await apart.queue._context.connection.move_back()
    fields = {**of(job, trace_id=TRACE), "queue": "apart"}
    assert json.loads(line).items() >= fields.items()
    assert returned.items() >= fields.items()


async def test_structlog_keeps_what_the_event_says(queue: Queue) -> None:
    output = structlog.testing.LogCapture()

    @queue.task
    async def send() -> None:
        structlog.wrap_logger(None, processors=[logs.add_job, output]).info("hello", queue="mine")

    async with Worker(queue):
        job = await send.enqueue()
        await job.result(timeout=10)
    (entry,) = output.entries
    assert entry == {**of(job), "event": "hello", "log_level": "info", "queue": "mine"}


async def test_extra_fields_of_the_application_win(queue: Queue, kept: Kept) -> None:
    @queue.task
    async def send() -> None:
        log.info("mine", extra={"queue": "of people", "task": "wait"})

    async with Worker(queue):
        job = await send.enqueue()
        await job.result(timeout=10)
    assert kept.fields == [{**of(job), "queue": "of people", "task": "wait"}]


def test_outside_of_jobs_records_have_no_fields_unless_asked_for(kept: Kept) -> None:
    log.info("outside")
    assert kept.fields == [{}]
    record = logging.makeLogRecord({})
    assert logs.JobFilter(outside="-").filter(record)
    assert logging.Formatter("%(job_id)s %(trace_id)s").format(record) == "- -"


def test_installing_twice_adds_one_filter() -> None:
    handler = logging.NullHandler()
    logs.install(handler)
    logs.install(handler)
    assert len(handler.filters) == 1


def test_jq_workers_formats_show_the_job_and_nobody_can_forge_it() -> None:
    fields = {"job_id": "7", "task": "send\nforged", "queue": "mail", "attempt": 2}
    made = {"name": "app", "msg": "hello", "levelname": "INFO", **fields}
    text = TextFormatter().format(logging.makeLogRecord(made))
    assert text.endswith(r"INFO    hello [job_id=7 task=send\nforged queue=mail attempt=2]")
    ours = TextFormatter().format(logging.makeLogRecord({**made, "name": "jobq.job"}))
    assert ours.endswith("hello")
    assert json.loads(JsonFormatter().format(logging.makeLogRecord(made))).items() >= fields.items()
