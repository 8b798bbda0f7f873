"""Test your own tasks: jobs in memory, and a clock that you move, so no test sleeps.

Run it with pytest or with python."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from jobq import Queue, Retry, State, testing

# The store of production. The tests do not connect to it.
billing = Queue("billing", "valkey://queue.internal:6379")
declined = {13}


@billing.task(retry=Retry(2, base=60))
async def charge(invoice: int) -> int:
    if invoice in declined:
        raise RuntimeError("card declined")
    await receipt.options(delay=timedelta(hours=1)).enqueue(invoice)
    return invoice


@billing.task
async def receipt(invoice: int) -> str:
    return f"receipt for {invoice}"


async def test_a_receipt_follows_an_hour_after_the_charge() -> None:
    async with testing.use(billing) as jobs:
        await charge.enqueue(7)
        assert await jobs.drain() == 1
        sent = await jobs.assert_enqueued(receipt, 7)
        assert sent.due_at == jobs.clock.now() + timedelta(hours=1)
        jobs.clock.advance(3600)
        assert await jobs.drain() == 1


async def test_a_declined_card_is_tried_three_times_in_three_minutes() -> None:
    async with testing.use(billing) as jobs:
        began = jobs.clock.now()
        job = await charge.enqueue(13)
        assert await jobs.drain(delayed=True) == 3
        assert await job.state() == State.FAILED
        assert jobs.clock.now() - began == timedelta(minutes=3)
        await jobs.assert_not_enqueued(receipt)


if __name__ == "__main__":
    asyncio.run(test_a_receipt_follows_an_hour_after_the_charge())
    asyncio.run(test_a_declined_card_is_tried_three_times_in_three_minutes())
    print("both passed")
