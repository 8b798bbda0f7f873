"""Test your own tasks: jobs in memory, and a clock that you move, so no test sleeps.

Run it with pytest or with python."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta

import pytest

from jobq import (
    Cron,
    Queue,
    Rate,
    Retry,
    Snooze,
    State,
    Unique,
    WaitTimeout,
    current_job,
    testing,
)

# The store of production. The tests do not connect to it.
billing = Queue("billing", "valkey://queue.internal:6379")
reports = Queue("reports", "valkey://queue.internal:6379", rate=Rate(2, per=60))
declined = {13}


class CardDeclined(Exception):
    pass


@billing.task(retry=Retry(2, base=60, jitter=0))
async def charge(invoice: int, currency: str = "CHF") -> int:
    if invoice in declined:
        raise CardDeclined(f"invoice {invoice}")
    await receipt.options(delay=timedelta(hours=1)).enqueue(invoice)
    return invoice


@billing.task
async def receipt(invoice: int) -> str:
    return f"receipt for {invoice}"


@billing.task(unique=Unique("user", period=timedelta(minutes=10)))
async def remind(user: str) -> None: ...


@billing.task
async def approve(invoice: int) -> str:
    try:
        return str(await current_job().wait_for_signal("approved", timeout=timedelta(days=3)))
    except WaitTimeout:
        return "nobody"


@billing.task
async def poll(url: str) -> str:
    if current_job().attempt < 3:
        raise Snooze(timedelta(minutes=5))
    return "ready"


@reports.task(schedule=Cron("0 6 * * *", tz="Europe/Zurich"))
async def daily() -> None: ...


@reports.task
def export(pages: int) -> int:
    job = current_job()
    for page in range(job.saved or 0, pages):
        if job.cancelled:
            return page
        job.sync.progress({"page": page + 1, "of": pages})
        job.sync.log(f"page {page + 1}")
    return pages


# ── what was enqueued, and running it ─────────────────────────────────────────────────────────────


async def test_a_receipt_follows_an_hour_after_the_charge() -> None:
    async with testing.use(billing) as jobs:
        await charge.enqueue(7, currency="EUR")
        await jobs.assert_enqueued(charge, currency="EUR")  # the invoice may have any value
        assert await jobs.drain() == 1
        sent = await jobs.assert_enqueued(receipt, 7)
        assert sent.due_at == jobs.clock.now() + timedelta(hours=1)
        jobs.clock.advance(3600)
        assert await jobs.drain() == 1


async def test_a_declined_card_is_an_error_of_the_handler() -> None:
    async with testing.use(billing) as jobs:
        await charge.enqueue(13)
        with pytest.raises(CardDeclined, match="invoice 13"):
            await jobs.drain(inline=True)


def test_an_export_without_an_event_loop() -> None:
    with testing.use(reports) as jobs:
        job = export.sync.enqueue(3)
        assert jobs.sync.drain(inline=True) == 1  # the handler ran in this thread
        assert job.result() == 3


def test_an_export_goes_on_where_it_was() -> None:
    with testing.fake_job(attempt=2, saved=2) as job:
        assert export(3) == 3  # a plain call: no queue, no worker
    assert job.progress == [{"page": 3, "of": 3}]
    assert job.lines == ["page 3"]


# ── time travel ───────────────────────────────────────────────────────────────────────────────────


async def test_a_declined_card_is_tried_three_times_in_three_minutes() -> None:
    async with testing.use(billing) as jobs:
        began = jobs.clock.now()
        job = await charge.enqueue(13)
        assert await jobs.drain(delayed=True) == 3
        assert await job.state() == State.FAILED
        assert jobs.clock.now() - began == timedelta(minutes=3)
        await jobs.assert_not_enqueued(receipt)


async def test_the_daily_report_runs_at_six_in_zurich() -> None:
    clock = testing.FakeClock(datetime(2026, 7, 1, 3, 59, tzinfo=UTC))
    async with testing.use(reports, clock=clock) as jobs:
        assert await jobs.drain() == 0
        clock.advance_to(datetime(2026, 7, 1, 4, 0, tzinfo=UTC))  # 06:00, in summer
        assert await jobs.drain() == 1


async def test_a_reminder_is_sent_once_in_ten_minutes() -> None:
    async with testing.use(billing) as jobs:
        first = await remind.enqueue("ada")
        assert (await remind.enqueue("ada")).id == first.id
        jobs.clock.advance(600)
        assert (await remind.enqueue("ada")).id != first.id


async def test_a_job_that_waited_too_long_expires() -> None:
    async with testing.use(billing) as jobs:
        job = await receipt.options(ttl=60).enqueue(7)
        jobs.clock.advance(61)
        await jobs.drain()
        failure = (await job.info()).failure
        assert failure
        assert failure.reason == "expired"


async def test_an_approval_that_does_not_come_in_three_days() -> None:
    async with testing.use(billing) as jobs:
        job = await approve.enqueue(7)
        await jobs.drain()
        assert await job.state() == State.BLOCKED
        jobs.clock.advance(timedelta(days=3))
        await jobs.drain()
        assert await job.result() == "nobody"


async def test_a_poll_snoozes_for_five_minutes() -> None:
    async with testing.use(billing) as jobs:
        began = jobs.clock.now()
        job = await poll.enqueue("https://example.org")
        assert await jobs.drain(delayed=True) == 3
        assert await job.result() == "ready"
        assert jobs.clock.now() - began == timedelta(minutes=10)


async def test_two_exports_a_minute() -> None:
    async with testing.use(reports) as jobs:
        await export.enqueue_many([(1,), (1,), (1,)])
        assert await jobs.drain() == 2
        jobs.clock.advance(60)
        assert await jobs.drain() == 1


if __name__ == "__main__":
    tests = [test for name, test in sorted(globals().items()) if name.startswith("test_")]
    for test in tests:
        result = test()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    print(f"{len(tests)} passed")
