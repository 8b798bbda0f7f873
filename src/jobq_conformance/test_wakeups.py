"""Lost wake-ups: a worker that is woken and does not claim must not delay work for seconds."""

from __future__ import annotations

import asyncio

import pytest

from jobq_conformance.kit import Desk
from jobq_conformance.roles import needs

pytestmark = [needs("signals"), pytest.mark.topology]

PATIENCE_MS = 20_000
"""Far longer than a deputy takes, so that a sleep which ends by its timeout fails the test."""


def asleep(q: Desk, worker: str) -> asyncio.Task[bool]:
    return asyncio.create_task(
        q.store.sleep([q.queue], worker=worker, slots=1, timeout_ms=PATIENCE_MS)
    )


async def fall_asleep(q: Desk, *workers: str) -> dict[asyncio.Task[bool], str]:
    """Workers that have found nothing and wait."""
    for worker in workers:
        assert await q.claim(1, worker=worker) == []
    naps = {asleep(q, worker): worker for worker in workers}
    await asyncio.sleep(0)
    return naps


async def end(naps: dict[asyncio.Task[bool], str]) -> None:
    for nap in naps:
        nap.cancel()
    await asyncio.gather(*naps, return_exceptions=True)


@pytest.mark.parametrize("gone", [1, 2])
async def test_if_those_who_are_woken_first_do_not_come_another_is_woken_soon(
    q: Desk, gone: int
) -> None:
    naps = await fall_asleep(q, "a", "b", "c")
    await q.put("job")
    async with asyncio.timeout(5):  # a worker looks by itself after 5 s at the earliest
        for _ in range(gone):
            done, _ = await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED)
            naps.pop(done.pop())  # frozen: it was woken and does not look
        done, _ = await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED)
    nap = done.pop()
    assert nap.result()
    assert await q.claim_ids(worker=naps[nap]) == ["job"]
    await end(naps)


async def test_a_single_job_does_not_wake_the_whole_fleet(q: Desk) -> None:
    naps = await fall_asleep(q, *(f"w{n}" for n in range(8)))
    await q.put("job")
    done, _ = await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED)
    assert await q.claim_ids(worker=naps[done.pop()]) == ["job"]
    done, _ = await asyncio.wait(naps, timeout=1.5, return_when=asyncio.ALL_COMPLETED)
    assert 1 <= len(done) <= 3  # the one that was woken, and two deputies
    await end(naps)


async def test_jobs_that_come_together_notify_deputies_once(q: Desk) -> None:
    naps = await fall_asleep(q, *(f"w{n}" for n in range(8)))
    await q.put("first")
    await q.put("second")
    done, _ = await asyncio.wait(naps, timeout=1.5, return_when=asyncio.ALL_COMPLETED)
    assert 2 <= len(done) <= 4
    await end(naps)
