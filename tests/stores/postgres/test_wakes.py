"""No wake-up is lost: a job that is put while a worker falls asleep starts at once."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from jobq.core.records.jobs import Claim, Complete, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.postgres import store as module
from tests.stores.postgres.servers import Server

QUEUE = QueueName("default", "wakes")
ROUNDS = 400
SLOW_S = 5.0
"""Seconds that the worker sleeps if nobody wakes it."""


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "general"])
async def test_a_job_that_is_put_while_a_worker_falls_asleep_wakes_it(
    server: Server, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAST", fast)
    url = f"{server.url}?schema={'fast' if fast else 'general'}"
    async with open_store(url) as producer:
        monkeypatch.setattr(module, "FAST", True)
        async with open_store(url) as consumer:
            slowest = await _race(producer, consumer)
    assert slowest < SLOW_S / 2


async def _race(producer: Store, consumer: Store) -> float:
    """The longest time from a put to the claim of its job, in seconds."""
    started = asyncio.Event()

    async def work() -> None:
        outcomes: list[Complete] = []
        for n in itertools.count():
            wanted = Claim(queues=(QUEUE,), limit=10, lease_ms=60_000)
            settled = await consumer.settle(outcomes, worker="w", call=f"c{n}", then=wanted)
            outcomes = [
                Complete(queue=lease.queue, id=lease.id, token=lease.token)
                for lease in settled.leases
            ]
            if outcomes:
                started.set()
            else:
                await consumer.sleep([QUEUE], worker="w", slots=10, timeout_ms=int(SLOW_S * 1000))

    worker = asyncio.create_task(work())
    slowest = 0.0
    try:
        for n in range(ROUNDS):
            started.clear()
            began = time.monotonic()
            await producer.put([JobSpec(queue=QUEUE, id=f"j{n}", name="t", payload=b"")])
            async with asyncio.timeout(2 * SLOW_S):
                await started.wait()
            slowest = max(slowest, time.monotonic() - began)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return slowest
