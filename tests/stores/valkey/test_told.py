"""How a job ended is told along with its end, where that is small: the one who waits need not ask."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records import QueueName, Topic
from jobq.stores.valkey.store import ValkeyStore

from .jobs import done, exchange, spec, take


@pytest.mark.parametrize(("result", "told"), [(b"42", True), (b"x" * 10_000, False)], ids=["small", "large"])
async def test_a_small_result_comes_with_the_end_of_its_job(
    store: ValkeyStore, queue: QueueName, result: bytes, told: bool
) -> None:
    async with store.listen([Topic("ended", queue, "a")], announced=True) as signals:
        await store.put([spec(queue, "a", watch=True)])
        (lease,) = await take(store, queue)
        await exchange(store, queue, done(lease, result))
        async with asyncio.timeout(10):
            signal = await anext(signals)
    assert (signal.record is not None) is told
    if signal.record is not None:
        assert signal.record.result == result
