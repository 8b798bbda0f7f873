"""`max_waiting` and holds of partitioned queues, and that they leave no keys."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import Fire, Limits, QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq.errors import QueueFull
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec, take
from tests.stores.valkey.servers import Server

PARTS, SHARE = 4, 3


@pytest.fixture
async def parted(store: ValkeyStore, queue: QueueName) -> QueueName:
    await store.declare(queue, QueueConfig(partitions=PARTS, limits=Limits(max_waiting=10)))
    return queue


def of_partition(queue: QueueName, partition: int, n: int) -> list[JobSpec]:
    """Jobs that belong to one partition."""
    ids = (f"j{number}" for number in range(100_000))
    mine = (id for id in ids if keys.partition_of(None, id, PARTS) == partition)
    return [spec(queue, next(mine)) for _ in range(n)]


async def test_each_partition_holds_an_equal_share_rounded_up(
    store: ValkeyStore, parted: QueueName
) -> None:
    for partition in range(PARTS):
        results = await store.put(of_partition(parted, partition, 5))
        assert [r.full for r in results] == [None] * SHARE + [
            10
        ] * 2  # the result names the bound of the whole queue
    assert (await store.count(parted))[State.WAITING] == PARTS * SHARE


async def test_a_change_at_run_time_reaches_all_partitions(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.set_limits(parted, Limits(max_waiting=4))
    for partition in range(PARTS):
        assert [r.full for r in await store.put(of_partition(parted, partition, 2))] == [None, 4]
    await store.set_limits(parted, None)
    for partition in range(PARTS):
        assert [r.full for r in await store.put(of_partition(parted, partition, 4)[1:])] == [
            None,
            None,
            10,
        ]


async def test_a_flow_reserves_places_in_the_partitions_of_its_jobs(
    store: ValkeyStore, parted: QueueName
) -> None:
    with pytest.raises(QueueFull):
        await store.put(
            [*of_partition(parted, 0, 1), *of_partition(parted, 1, SHARE + 1)], flow="f"
        )
    assert sum((await store.count(parted)).values()) == 0
    await store.put(
        [*of_partition(parted, 0, 2), *of_partition(parted, 1, SHARE)], flow="g", last=False
    )
    assert [r.full for r in await store.put(of_partition(parted, 0, 4)[2:])] == [None, 10]
    await store.put(of_partition(parted, 2, 1), flow="g")
    assert (await store.count(parted))[State.WAITING] == 2 + SHARE + 1 + 1


async def test_reservations_leave_no_keys(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.declare(queue, QueueConfig(limits=Limits(max_waiting=10)))
    for flow in ("f", "g"):
        await store.put([spec(queue, f"{flow}1")], flow=flow, last=False)
        await store.put([spec(queue, f"{flow}2")], flow=flow)
    with pytest.raises(QueueFull):
        await store.put([spec(queue, f"h{n}") for n in range(9)], flow="h")
    prefix = keys.Space().prefix(queue)
    assert server.tell("HGET", f"{prefix}m", "reserved") == b"$1\r\n0\r\n"
    assert server.tell("EXISTS", f"{prefix}fr") == b":0\r\n"


async def test_a_put_without_max_waiting_sends_no_extra_commands(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "warm"), spec(queue, "up")])
    assert server.tell("CONFIG", "RESETSTAT").startswith(b"+OK")
    await store.put([spec(queue, f"a{n}") for n in range(10)])
    stats = server.tell("INFO", "commandstats")
    assert b"cmdstat_zcard" not in stats
    assert b"cmdstat_hget:" not in stats


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_hold_of_a_queue_is_in_all_its_partitions(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.put(
        [job for partition in range(PARTS) for job in of_partition(parted, partition, 1)]
    )
    await store.hold(parted, 60_000)
    assert await take(store, parted, 10) == []
    assert (
        (await store.stats(parted)).held_until_ms
        == (await store.holds(parted)).until_ms
        is not None
    )
    assert await store.release_hold(parted)
    assert len(await take(store, parted, 10)) == PARTS
    events = (await store.read_events(parted, after="0")).events
    assert [(str(e.kind), e.shard) for e in events if e.kind in ("held", "released_hold")] == [
        ("held", 0),
        ("released_hold", 0),
    ]


async def test_the_hold_of_a_key_is_in_its_partition(store: ValkeyStore, queue: QueueName) -> None:
    await store.declare(queue, QueueConfig(partitions=PARTS, mode="keyed"))
    await store.put([spec(queue, key, key=key) for key in "abcdefgh"])
    for key in "aceg":
        await store.hold(queue, 60_000, key)
    assert sorted((await store.holds(queue)).keys) == list("aceg")
    assert len((await store.holds(queue, limit=2)).keys) == 2
    assert sorted(lease.id for lease in await take(store, queue, 10)) == list("bdfh")
    assert await store.release_hold(queue, "c")
    assert [lease.id for lease in await take(store, queue, 10)] == ["c"]
    await store.set_limits(queue, None)
    assert (await store.holds(queue)).keys == {}
    assert sorted(lease.id for lease in await take(store, queue, 10)) == list("aeg")


async def test_holds_leave_no_keys(store: ValkeyStore, queue: QueueName, server: Server) -> None:
    await store.put([spec(queue, "a", key="a")])
    await store.hold(queue, 60_000)
    await store.hold(queue, 60_000, "a")
    await store.release_hold(queue, "a")
    await store.resume(queue)
    prefix = keys.Space().prefix(queue)
    assert server.tell("EXISTS", f"{prefix}hx", f"{prefix}hl", f"{prefix}hd") == b":0\r\n"
    assert server.tell("HMGET", f"{prefix}m", "held", "held_for") == b"*2\r\n$-1\r\n$-1\r\n"


async def test_a_missed_schedule_of_a_full_partitioned_queue_is_logged_in_shard_0(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.set_limits(parted, Limits(max_waiting=1))
    await store.put(
        [job for partition in range(PARTS) for job in of_partition(parted, partition, 1)]
    )
    schedule = ScheduleSpec(queue=parted, id="s", template=spec(parted, "s"), every_ms=60_000)
    for at in (1_000, 2_000, 3_000, 4_000):
        await store.put_schedule(schedule, next_ms=1_000)
        assert await store.fire(
            [Fire(queue=parted, schedule="s", at_ms=at, next_ms=at + 1_000)]
        ) == [True]
    await store.tick()
    missed = [e for e in (await store.read_events(parted, after="0")).events if e.kind == "missed"]
    assert sorted(e.reason or "" for e in missed) == ["s@1000", "s@2000", "s@3000", "s@4000"]
    assert {e.shard for e in missed} == {0}
