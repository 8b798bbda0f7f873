"""`jobq.testing`: sandboxes, a clock that the test moves, and assertions about jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from jobq import ConfigError, JobFailed, Queue, Retry, Snooze, State, Worker, current_job, testing

shop = Queue("shop", "valkey://nowhere:1")
mail = Queue("mail", "valkey://nowhere:1")
sent: list[int] = []


@shop.task(retry=Retry(2, base=10, jitter=0))
async def charge(tenant: str, invoice: int, fails: int = 0) -> str:
    if current_job().attempt <= fails:
        raise ValueError("declined")
    await send_receipt.options(delay=3600).enqueue(invoice)
    return f"{tenant}-{invoice}"


@mail.task
def send_receipt(invoice: int) -> None:
    sent.append(invoice)


@pytest.fixture
async def jobs() -> AsyncIterator[testing.Sandbox]:
    sent.clear()
    async with testing.use(shop, mail) as jobs:
        yield jobs


async def test_drain_runs_due_jobs_and_the_jobs_they_enqueue(jobs: testing.Sandbox) -> None:
    job = await charge.enqueue("acme", 7)
    assert await jobs.drain() == 1
    assert await job.result() == "acme-7"
    receipt = await jobs.assert_enqueued(send_receipt, 7)
    assert receipt.due_at == jobs.clock.now() + timedelta(hours=1)
    assert await jobs.drain() == 0
    jobs.clock.advance(timedelta(hours=1))
    assert await jobs.drain() == 1
    assert sent == [7]


async def test_every_sandbox_begins_empty(jobs: testing.Sandbox) -> None:
    await jobs.assert_not_enqueued(charge)
    assert await jobs.drain() == 0


async def test_drain_can_move_the_clock_until_no_job_is_left(jobs: testing.Sandbox) -> None:
    begin = jobs.clock.now()
    await charge.enqueue("acme", 8, fails=2)
    assert await jobs.drain(delayed=True) == 4
    assert sent == [8]
    assert jobs.clock.now() - begin == timedelta(seconds=10 + 20 + 3600)


async def test_jobs_fail_as_they_would_in_a_worker(jobs: testing.Sandbox) -> None:
    job = await charge.enqueue("acme", 9, fails=9)
    await jobs.drain(delayed=True)
    with pytest.raises(JobFailed, match="declined"):
        await job.result()
    assert (await job.info()).failures == 3


async def test_assertions_compare_calls_however_they_were_written(jobs: testing.Sandbox) -> None:
    await charge.enqueue("acme", invoice=1)
    await charge.options(priority=5).enqueue("globex", 2)
    assert (await jobs.assert_enqueued(charge, tenant="acme", invoice=1)).args == ("acme",)
    assert (await jobs.assert_enqueued(charge, "globex", 2, fails=0)).priority == 5
    assert [job.args[0] for job in await jobs.enqueued(charge)] == ["acme", "globex"]
    await jobs.assert_not_enqueued(charge, "acme", 2)
    with pytest.raises(
        AssertionError, match=r"charge\('acme', 3\) was not enqueued.*\n.*'acme', invoice=1"
    ) as caught:
        await jobs.assert_enqueued(charge, "acme", 3)
    assert "globex" in str(caught.value)
    with pytest.raises(AssertionError, match="was enqueued"):
        await jobs.assert_not_enqueued(charge)


async def test_a_real_worker_works_in_a_sandbox_too(jobs: testing.Sandbox) -> None:
    async with Worker(shop, mail):
        assert await charge.call("acme", 1) == "acme-1"


async def test_a_job_that_waits_for_another_needs_concurrency(jobs: testing.Sandbox) -> None:
    @shop.task
    async def outer() -> str:
        return await charge.call("acme", 5)

    job = await outer.enqueue()
    await jobs.drain(concurrency=2)
    assert await job.result() == "acme-5"


async def test_a_drain_that_never_ends_is_an_error(jobs: testing.Sandbox) -> None:
    @shop.task
    async def for_ever() -> None:
        raise Snooze(1)

    await for_ever.enqueue()
    with pytest.raises(AssertionError, match="for ever"):
        await jobs.drain(delayed=True, most=20)


async def test_after_the_block_the_queues_use_their_own_stores_again(jobs: testing.Sandbox) -> None:
    queue = Queue("kept", "memory://kept")
    async with queue:
        with pytest.raises(ConfigError, match="is open"):
            testing.use(queue).__enter__()
    async with testing.use(queue):
        await queue.task_by_name("nobody").enqueue()
        assert queue.url != "memory://kept"
    assert queue.url == "memory://kept"
    assert sum((await queue.counts()).values()) == 0
    await queue.aclose()


def test_a_sandbox_works_without_an_event_loop() -> None:
    clock = testing.FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    with testing.use(shop, mail, clock=clock) as jobs:
        sent.clear()
        job = charge.sync.enqueue("acme", 3)
        jobs.sync.assert_enqueued(charge, "acme", 3)
        jobs.sync.assert_not_enqueued(send_receipt)
        assert jobs.sync.drain(delayed=True) == 2
        assert job.result() == "acme-3"
        assert [receipt.args for receipt in jobs.sync.enqueued(send_receipt)] == [(3,)]
        assert sent == [3]
        assert clock.now() == datetime(2030, 1, 1, 1, tzinfo=UTC)
    with pytest.raises(ConfigError, match="no queue"):
        testing.use()


async def test_a_test_can_have_a_queue_of_its_own() -> None:
    async with testing.queue() as one, testing.queue("test", limit=3) as other:
        await one.task_by_name("nobody").enqueue()
        assert (await one.counts())[State.WAITING] == 1
        assert (await other.counts())[State.WAITING] == 0


async def test_many_jobs_drain_in_the_order_they_came(jobs: testing.Sandbox) -> None:
    seen: list[int] = []

    @shop.task
    async def note(n: int) -> None:
        await asyncio.sleep(0)
        seen.append(n)

    await note.enqueue_many((n,) for n in range(50))
    assert await jobs.drain() == 50
    assert seen == list(range(50))
