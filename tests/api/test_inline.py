"""`drain(inline=True)`: handlers run in the test's own thread, and the test gets their errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from jobq import (
    ConfigError,
    InvalidJob,
    Queue,
    RateLimited,
    Reject,
    Retry,
    Snooze,
    State,
    Task,
    UnfitArguments,
    current_job,
    testing,
)

shop = Queue("shop", "valkey://nowhere:1")
threads: list[threading.Thread] = []
request_id: ContextVar[str] = ContextVar("request_id", default="none")


class Declined(Exception):
    pass


@shop.task(retry=5)
async def charge(invoice: int, currency: str = "CHF") -> int:
    threads.append(threading.current_thread())
    if invoice == 13:
        raise Declined(f"invoice {invoice}")
    return invoice


@shop.task(retry=5)
def plain(invoice: int) -> str:
    threads.append(threading.current_thread())
    if invoice == 13:
        raise Declined(f"invoice {invoice}")
    return request_id.get()


@shop.task(executor="process")
def apart(invoice: int) -> int:
    threads.append(threading.current_thread())
    return invoice


@shop.batch_task(size=10, retry=0)
def batched(items: list[int]) -> Sequence[int]:
    threads.append(threading.current_thread())
    if 13 in items:
        raise Declined("a batch")
    return items


@pytest.fixture
async def jobs() -> AsyncIterator[testing.Sandbox]:
    threads.clear()
    async with testing.use(shop) as jobs:
        yield jobs


async def test_every_kind_of_handler_runs_in_the_thread_of_the_test(jobs: testing.Sandbox) -> None:
    await charge.enqueue(1)
    await plain.enqueue(2)
    await apart.enqueue(3)
    await batched.enqueue(4)
    assert await jobs.drain(inline=True) == 4
    assert threads == [threading.current_thread()] * 4


@pytest.mark.parametrize("task", [charge, plain], ids=["async", "plain"])
async def test_drain_raises_what_the_handler_raised_and_stores_the_failure(
    jobs: testing.Sandbox, task: Task[..., object]
) -> None:
    job = await task.enqueue(13)
    later = await task.enqueue(1)
    with pytest.raises(Declined, match="invoice 13") as caught:
        await jobs.drain(inline=True)
    assert str(caught.traceback[-1].path) == __file__  # the handler's own line
    assert ((await job.info()).failures, await job.state()) == (1, State.DELAYED)
    assert await later.state() is State.WAITING
    assert await jobs.drain(inline=True) == 1  # the test can go on
    assert await later.state() is State.COMPLETED


async def test_the_error_of_a_batch_is_raised(jobs: testing.Sandbox) -> None:
    await batched.enqueue_many([(12,), (13,)])
    with pytest.raises(Declined, match="a batch"):
        await jobs.drain(inline=True, concurrency=10)


async def test_arguments_that_do_not_fit_are_raised(jobs: testing.Sandbox) -> None:
    await shop.task_by_name(charge.name).enqueue(amount=7)
    with pytest.raises(UnfitArguments, match="amount"):
        await jobs.drain(inline=True)


async def test_what_a_handler_does_on_purpose_is_not_an_error(jobs: testing.Sandbox) -> None:
    @shop.task
    async def patient() -> str:
        match current_job().attempt:
            case 1:
                raise Snooze(10)
            case 2:
                raise RateLimited(10)
            case 3:
                raise Retry.after(10)
            case 4:
                await current_job().wait_for_signal("go", timeout=10)
        return "done"

    job = await patient.enqueue()
    for _ in range(3):
        assert await jobs.drain(inline=True) == 1
        jobs.clock.advance(10)
    await jobs.drain(inline=True)
    await job.signal("go")
    await jobs.drain(inline=True)
    assert await job.result() == "done"


async def test_a_rejected_job_and_a_last_retry_are_errors(jobs: testing.Sandbox) -> None:
    @shop.task
    async def rejects() -> None:
        raise Reject("no such tenant")

    @shop.task(retry=0)
    async def retries() -> None:
        raise Retry.after(10)

    await rejects.enqueue()
    with pytest.raises(Reject, match="no such tenant"):
        await jobs.drain(inline=True)
    await retries.enqueue()
    with pytest.raises(type(Retry.after(1))):
        await jobs.drain(inline=True)


async def test_a_timeout_fails_the_job_and_not_the_test(jobs: testing.Sandbox) -> None:
    @shop.task(timeout=0.01, retry=0)
    async def hangs() -> None:
        await asyncio.Event().wait()

    job = await hangs.enqueue()
    assert await jobs.drain(inline=True) == 1
    assert await job.state() is State.FAILED


async def test_a_failed_assertion_of_pytest_leaves_the_handler(jobs: testing.Sandbox) -> None:
    @shop.task
    def checks() -> None:
        pytest.fail("found in the handler")  # a BaseException

    await checks.enqueue()
    with pytest.raises(pytest.fail.Exception, match="found in the handler"):
        await jobs.drain(inline=True)


def test_without_an_event_loop_plain_handlers_run_in_the_calling_thread() -> None:
    @shop.task
    def reports(pages: int) -> int:
        threads.append(threading.current_thread())
        current_job().sync.progress(pages)
        plain.sync.enqueue(pages)
        return pages

    threads.clear()
    request_id.set("r-7")
    with testing.use(shop) as jobs:
        job = reports.sync.enqueue(3)
        assert jobs.sync.drain(inline=True) == 2
        assert threads == [threading.current_thread()] * 2
        assert (job.result(), job.info().progress) == (3, 3)
        (found,) = jobs.sync.enqueued(plain)
        assert found.result == "r-7"  # the context of the test
        plain.sync.enqueue(13)
        with pytest.raises(Declined):
            jobs.sync.drain(inline=True)
        assert not [t for t in threading.enumerate() if t.name.startswith("jobq thread")]


def test_without_an_event_loop_the_error_of_an_async_handler_is_raised_too() -> None:
    with testing.use(shop) as jobs:
        charge.sync.enqueue(13)
        with pytest.raises(Declined):
            jobs.sync.drain(inline=True)


async def test_handlers_get_the_lifespan_of_the_sandbox() -> None:
    @shop.task
    async def reads() -> str:
        return str(current_job().lifespan(dict)["name"])

    async with testing.use(shop, lifespan={"name": "ada"}) as jobs:
        job = await reads.enqueue()
        await jobs.drain(inline=True)
        assert await job.result() == "ada"


# ── assertions with a part of the arguments, and the clock ────────────────────────────────────────


async def test_an_assertion_names_only_the_arguments_that_matter(jobs: testing.Sandbox) -> None:
    await charge.enqueue(7, currency="EUR")
    await charge.enqueue(8)
    assert (await jobs.assert_enqueued(charge, 7)).args == (7,)
    assert (await jobs.assert_enqueued(charge, currency="EUR")).args == (7,)
    assert (await jobs.assert_enqueued(charge, currency="CHF")).args == (8,)  # the default
    assert (await jobs.assert_enqueued(charge, ANY, currency="EUR")).args == (7,)
    await jobs.assert_not_enqueued(charge, 9)
    await jobs.assert_not_enqueued(charge, 8, currency="EUR")
    with pytest.raises(AssertionError, match="was enqueued"):
        await jobs.assert_not_enqueued(charge, currency="EUR")
    with pytest.raises(InvalidJob, match="amount"):
        await jobs.assert_enqueued(charge, amount=1)


async def test_an_assertion_about_a_task_by_name_compares_what_is_there(
    jobs: testing.Sandbox,
) -> None:
    task = shop.task_by_name("elsewhere")
    await task.enqueue(1, 2, colour="red")
    await jobs.assert_enqueued(task, 1)
    await jobs.assert_enqueued(task, colour="red")
    await jobs.assert_not_enqueued(task, 2)
    await jobs.assert_not_enqueued(task, size=1)


def test_the_clock_moves_forward_to_a_time() -> None:
    clock = testing.FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock.advance_to(datetime(2030, 1, 2, tzinfo=UTC)) - clock.now() == timedelta()
    assert clock.now() == datetime(2030, 1, 2, tzinfo=UTC)
    with pytest.raises(ConfigError, match="before"):
        clock.advance_to(datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidJob, match="time zone"):
        clock.advance_to(datetime(2031, 1, 1))
