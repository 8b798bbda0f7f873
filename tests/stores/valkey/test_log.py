"""The event log is bounded. Up to the hard cap it keeps what a registered reader has not read."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jobq.core.records.jobs import QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec
from tests.stores.valkey.servers import Server


def bound(server: Server, queue: QueueName, soft: int, hard: int) -> None:
    server.tell(
        "HSET", keys.settings(keys.Space().prefix(queue)), "soft", str(soft), "hard", str(hard)
    )


async def write(store: ValkeyStore, queue: QueueName, first: int, last: int) -> None:
    """Put jobs so that each entry of the log has ten events."""
    for start in range(first, last, 10):
        await store.put([spec(queue, f"j{n}") for n in range(start, start + 10)])


async def everything(store: ValkeyStore, queue: QueueName, after: str = "0") -> list[str]:
    """The jobs of all events that are kept; "gap" for a gap."""
    found: list[str] = []
    while (page := await store.read_events(queue, after=after)).events:
        found += [e.job if e.kind != "gap" else "gap" for e in page.events]
        after = page.position
    return found


async def test_without_readers_the_log_is_bounded(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    bound(server, queue, 200, 400)
    await write(store, queue, 0, 1000)
    await store.tick()
    gap, *kept = await everything(store, queue)
    assert gap == "gap"
    assert 190 <= len(kept) <= 210
    assert kept[-1] == "j999"


async def test_events_that_a_reader_has_not_acknowledged_stay(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    bound(server, queue, 200, 10_000)
    await store.ack_events(queue, "relay", "0")
    await write(store, queue, 0, 1000)
    await store.tick()
    assert await everything(store, queue) == [f"j{n}" for n in range(1000)]


async def test_events_that_only_a_removed_reader_had_not_acknowledged_are_dropped(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    bound(server, queue, 200, 10_000)
    await store.ack_events(queue, "trial", "0")
    await write(store, queue, 0, 1000)
    await store.remove_reader(queue, "trial")
    await store.tick()
    assert len(await everything(store, queue)) <= 211


async def test_events_that_all_readers_have_acknowledged_are_dropped(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    bound(server, queue, 100, 10_000)
    await store.ack_events(queue, "slow", "0")
    await write(store, queue, 0, 500)
    page = await store.read_events(queue, after="0", limit=300)
    await store.ack_events(queue, "slow", page.position)
    await write(store, queue, 500, 510)
    await store.tick()
    gap, *kept = await everything(store, queue)
    assert gap == "gap"
    assert kept == [f"j{n}" for n in range(300, 510)]
    assert "gap" not in await everything(store, queue, page.position)


async def test_the_hard_cap_leaves_a_gap_and_logs_an_error(
    store: ValkeyStore, queue: QueueName, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    bound(server, queue, 100, 300)
    await store.ack_events(queue, "relay", "0")
    await write(store, queue, 0, 1000)
    with caplog.at_level(logging.ERROR, "jobq.valkey"):
        await store.tick()
    kept = await everything(store, queue)
    assert kept[0] == "gap"
    assert kept[1:] == [f"j{n}" for n in range(1000 - len(kept) + 1, 1000)]
    assert 280 <= len(kept) <= 310
    assert "hard cap" in caplog.text
    (gap,) = [
        e for e in (await store.read_events(queue, after="0", limit=1)).events if e.kind == "gap"
    ]
    assert gap.reason == f"{1000 - len(kept) + 1} events dropped so far"


async def test_a_reader_past_the_gap_does_not_see_it(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    bound(server, queue, 100, 300)
    await store.ack_events(queue, "relay", "0")
    await write(store, queue, 0, 1000)
    await store.tick()
    position = (await store.read_events(queue)).position
    await write(store, queue, 1000, 1010)
    assert await everything(store, queue, position) == [f"j{n}" for n in range(1000, 1010)]


async def test_one_call_drops_a_bounded_part_of_a_long_log(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.ack_events(queue, "relay", "0")
    for n in range(0, 3000, 100):
        await asyncio.gather(*(store.put([spec(queue, f"j{k}")]) for k in range(n, n + 100)))
    bound(server, queue, 100, 10_000)
    await store.ack_events(queue, "relay", (await store.read_events(queue)).position)
    await store.tick()
    left = len(await everything(store, queue))
    assert 1900 < left < 2100  # 64 rounds of 16 entries
    for _ in range(3):
        await store.tick()
    assert len(await everything(store, queue)) <= 110
