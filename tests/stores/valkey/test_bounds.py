"""`max_waiting` over partitions: each holds an equal share."""

from __future__ import annotations

import pytest

from jobq.core.queues import Limits, QueueConfig
from jobq.core.records import JobSpec, QueueName
from jobq.core.states import State
from jobq.errors import QueueFull
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec
from tests.stores.valkey.servers import Server

PARTS, SHARE = 4, 3


@pytest.fixture
async def parted(store: ValkeyStore, queue: QueueName) -> QueueName:
    await store.declare(queue, QueueConfig(partitions=PARTS, limits=Limits(max_waiting=10)))
    return queue


def of_partition(queue: QueueName, partition: int, n: int) -> list[JobSpec]:
    """Jobs that all belong to one partition."""
    ids = (f"j{number}" for number in range(100_000))
    mine = (id for id in ids if keys.partition_of(None, id, PARTS) == partition)
    return [spec(queue, next(mine)) for _ in range(n)]


async def test_each_partition_holds_an_equal_share_rounded_up(store: ValkeyStore, parted: QueueName) -> None:
    for partition in range(PARTS):
        results = await store.put(of_partition(parted, partition, 5))
        assert [r.full for r in results] == [None] * SHARE + [10] * 2  # it is told of the whole number
    assert (await store.count(parted))[State.WAITING] == PARTS * SHARE


async def test_a_change_at_run_time_reaches_all_partitions(store: ValkeyStore, parted: QueueName) -> None:
    await store.set_limits(parted, Limits(max_waiting=4))
    for partition in range(PARTS):
        assert [r.full for r in await store.put(of_partition(parted, partition, 2))] == [None, 4]
    await store.set_limits(parted, None)
    for partition in range(PARTS):
        assert [r.full for r in await store.put(of_partition(parted, partition, 4)[1:])] == [None, None, 10]


async def test_a_flow_takes_its_places_in_the_partitions_of_its_jobs(store: ValkeyStore, parted: QueueName) -> None:
    with pytest.raises(QueueFull):
        await store.put([*of_partition(parted, 0, 1), *of_partition(parted, 1, SHARE + 1)], flow="f")
    assert sum((await store.count(parted)).values()) == 0
    await store.put([*of_partition(parted, 0, 2), *of_partition(parted, 1, SHARE)], flow="g", last=False)
    assert [r.full for r in await store.put(of_partition(parted, 0, 4)[2:])] == [None, 10]
    await store.put(of_partition(parted, 2, 1), flow="g")
    assert (await store.count(parted))[State.WAITING] == 2 + SHARE + 1 + 1


async def test_nothing_is_left_of_reservations(store: ValkeyStore, queue: QueueName, server: Server) -> None:
    await store.declare(queue, QueueConfig(limits=Limits(max_waiting=10)))
    for flow in ("f", "g"):
        await store.put([spec(queue, f"{flow}1")], flow=flow, last=False)
        await store.put([spec(queue, f"{flow}2")], flow=flow)
    with pytest.raises(QueueFull):
        await store.put([spec(queue, f"h{n}") for n in range(9)], flow="h")
    prefix = keys.prefix(queue)
    assert server.tell("HGET", f"{prefix}m", "reserved") == b"$1\r\n0\r\n"
    assert server.tell("EXISTS", f"{prefix}fr") == b":0\r\n"


async def test_a_plain_put_asks_for_nothing_more_without_a_bound(store: ValkeyStore, queue: QueueName, server: Server) -> None:
    await store.put([spec(queue, "warm"), spec(queue, "up")])
    assert server.tell("CONFIG", "RESETSTAT").startswith(b"+OK")
    await store.put([spec(queue, f"a{n}") for n in range(10)])
    stats = server.tell("INFO", "commandstats")
    assert b"cmdstat_zcard" not in stats
    assert b"cmdstat_hget:" not in stats
