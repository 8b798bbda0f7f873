"""How much memory jobs take, and what happens when memory runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.client.ids import new_id
from jobq.core.records.event_log import KINDS
from jobq.core.records.jobs import QueueName
from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores import open_store
from jobq.stores.valkey.store import ValkeyStore
from scripts.ports import free_port
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import done, exchange, spec, take
from tests.stores.valkey.servers import Server

PAYLOAD = b'[["' + b"x" * 100 + b'"],{}]'


def used(server: Server) -> int:
    return int(server.tell("INFO", "memory").split(b"used_memory:")[1].split()[0])


async def fill(store: ValkeyStore, queue: QueueName, n: int) -> None:
    for _ in range(n // 1000):
        await store.put([spec(queue, new_id(), payload=PAYLOAD) for _ in range(1000)])


async def test_a_waiting_job_with_100_characters_takes_at_most_300_bytes(
    store: ValkeyStore, server: Server
) -> None:
    queue = QueueName("default", "bench")
    await fill(store, queue, 1000)
    before = used(server)
    await fill(store, queue, 20_000)
    assert (used(server) - before) / 20_000 <= 300


async def test_a_drained_queue_releases_its_memory(
    store: ValkeyStore, server: Server, queue: QueueName
) -> None:
    await store.put([spec(queue, f"j{n}", result_ttl_ms=1) for n in range(500)])
    leases = await take(store, queue, 500)
    await exchange(store, queue, *map(done, leases))
    while await store.tick():
        pass
    left = server.tell("KEYS", "*")
    assert b"j:j" not in left
    assert b"x:j" not in left


async def test_an_evicting_server_is_refused_and_the_error_says_what_to_set(tmp_path: Path) -> None:
    with servers.running(
        servers.valkey_binary(),
        tmp_path,
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-lru",
    ) as server:
        store = open_store(server.url)
        with pytest.raises(ConfigError, match="noeviction"):
            await store.migrate()
        await store.aclose()


async def test_an_unreachable_server_is_a_clear_error() -> None:
    store = open_store(f"valkey://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await store.migrate()
    await store.aclose()


async def test_without_memory_nothing_is_half_written_and_workers_go_on(
    tmp_path: Path, queue: QueueName
) -> None:
    with servers.running(servers.valkey_binary(), tmp_path) as server:
        async with open_store(server.url) as store:
            await store.put([spec(queue, f"j{n}") for n in range(100)])
            assert server.tell("CONFIG", "SET", "maxmemory", "1mb").startswith(b"+OK")
            with pytest.raises(StoreUnavailable, match="out of memory"):
                await store.put([spec(queue, f"more{n}") for n in range(100)])
            leases = await take(store, queue, 200)
            assert len(leases) == 100
            await exchange(store, queue, *map(done, leases))
            assert await store.lead(
                "upkeep", who="me", ttl_ms=1000
            )  # retention must run, or memory stays full
            await store.tick()
            await store.ack_events(queue, "relay", (await store.read_events(queue)).position)
            assert server.tell("CONFIG", "SET", "maxmemory", "0").startswith(b"+OK")
            await store.put([spec(queue, "late")])
            counts = {state.value: n for state, n in (await store.count(queue)).items() if n}
            assert counts == {"completed": 100, "waiting": 1}
            events = (await store.read_events(queue, after="0", limit=1000)).events
            assert sorted({e.kind for e in events}, key=KINDS.index) == [
                "accepted",
                "started",
                "completed",
            ]
            assert len(events) == 301
