"""Numbers and ids of events: in partitions, and after a server lost writes."""

from __future__ import annotations

import shutil
import signal
from collections import defaultdict
from pathlib import Path

import msgspec

from jobq.core.records.commands import Remove
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.records.queues import Limits, QueueConfig, ScheduleSpec
from jobq.core.records.states import QueueKind, State
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import done, spec, take
from tests.stores.valkey.servers import Server, valkey_or_skip

PARTS = 4


async def log(store: Store, queue: QueueName) -> list[EventRecord]:
    found: list[EventRecord] = []
    after = "0"
    while (page := await store.read_events(queue, after=after)).events:
        found += page.events
        after = page.position
    return found


def by_shard(events: list[EventRecord]) -> dict[int, list[int]]:
    numbers: dict[int, list[int]] = defaultdict(list)
    for event in events:
        numbers[event.shard].append(event.number)
    return dict(numbers)


async def test_each_partition_numbers_its_events_without_gaps(
    store: ValkeyStore, queue: QueueName
) -> None:
    await store.declare(queue, QueueConfig(partitions=PARTS))
    for n in range(5):
        await store.put([spec(queue, f"j{n}-{i}") for i in range(20)])
        leases = await take(store, queue, 30)
        await store.settle([done(lease) for lease in leases], worker="w1", call=f"done{n}")
    found = await log(store, queue)
    numbers = by_shard(found)
    assert sorted(numbers) == list(range(PARTS))
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())
    shards = {event.job: event.shard for event in found}
    assert all(shards[event.job] == event.shard for event in found)
    while not await store.obliterate(queue):
        pass
    await store.declare(queue, QueueConfig(partitions=PARTS))
    await store.put([spec(queue, f"again-{i}") for i in range(40)])
    numbers = by_shard(await log(store, queue))
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())


async def test_operations_on_a_partitioned_queue_are_logged_once_in_shard_0(
    store: ValkeyStore, queue: QueueName
) -> None:
    await store.declare(
        queue, QueueConfig(partitions=PARTS, mode="keyed", limits=Limits(key_limit=1))
    )
    await store.pause(queue, actor="ann")
    await store.resume(queue, actor="ann")
    await store.set_limits(queue, Limits(key_limit=2), actor="ann")
    await store.set_limits(queue, None, actor="ann")
    template = spec(queue, "t", key="k")
    await store.put_schedule(
        ScheduleSpec(queue=queue, id="s", template=template, every_ms=1000),
        next_ms=10**13,
        actor="ann",
    )
    await store.pause_schedule(queue, "s", paused=True, actor="ann")
    await store.drop_schedule(queue, "s", actor="ann")
    await store.put([spec(queue, f"j{n}", key=f"k{n}") for n in range(40)])
    leases = await take(store, queue, 10)
    await store.settle([done(lease) for lease in leases], worker="w1", call="done")
    await store.alter([Remove(job=JobKey(queue, lease.id), actor="ann") for lease in leases[:5]])
    assert await store.purge_pending(queue, actor="ann") == 30
    assert await store.purge_ended(queue, State.COMPLETED, actor="ann") == 5
    while not await store.obliterate(queue, actor="ann"):
        pass
    await store.declare(
        queue, QueueConfig(partitions=PARTS)
    )  # readers find the shards of the log by it
    operations = [event for event in await log(store, queue) if isinstance(event.kind, QueueKind)]
    assert {event.shard for event in operations} == {0}
    assert {event.actor for event in operations[1:]} == {"ann"}
    counts: dict[str, int] = defaultdict(int)
    kinds = []
    for event in operations:
        kind = str(event.kind)
        if kind in ("cleared", "purged"):  # each partition logs its own jobs
            n, what = (event.reason or "").split(" ", 1)
            counts[f"{kind} {what.replace('jobs', 'job')}"] += int(n)
        else:
            kinds.append(kind)
    assert kinds == [
        "limits",
        "paused",
        "resumed",
        "limits",
        "limits",
        "schedule",
        "schedule",
        "schedule",
        "obliterated",
    ]
    assert counts == {"purged job": 5, "cleared job": 30, "purged completed job": 5}
    numbers = by_shard(await log(store, queue))
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())


async def test_an_operation_whose_message_arrives_twice_is_logged_once(
    store: ValkeyStore, queue: QueueName
) -> None:
    prefix = keys.Space().prefix(queue)
    message = msgspec.msgpack.encode(
        {"type": "tell", "kind": "paused", "actor": "ann", "nonce": "1.f00dcafe"}
    )
    for _ in range(2):
        await store.calls.fcall("deliver", prefix, store.calls.now(), message)
    assert [(str(event.kind), event.actor) for event in await log(store, queue)] == [
        ("paused", "ann")
    ]


async def test_a_gap_has_the_id_of_a_dropped_event(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.servers.command(
        keys.Space().prefix(queue), "HSET", keys.settings(keys.Space().prefix(queue)), "soft", "20"
    )
    for n in range(10):
        await store.put([spec(queue, f"j{n}-{i}") for i in range(5)])
    before = await log(store, queue)
    await store.tick()
    gap, *kept = await log(store, queue)
    assert gap.kind == "gap"
    assert gap.number == kept[0].number - 1
    assert gap.id in {
        event.id for event in before if event.number == gap.number - 4
    }  # the first of its entry
    await store.put([spec(queue, "one more")])
    assert [event.number for event in (await log(store, queue))[1:]] == list(
        range(kept[0].number, 52)
    )
    while not await store.obliterate(queue):
        pass
    await store.put([spec(queue, "and after the end")])
    numbers = [event.number for event in (await log(store, queue))[1:]]
    assert numbers == list(
        range(kept[0].number, 52 + 51 + 2)
    )  # 51 were cancelled; then `obliterated`, and the new one


async def test_a_server_that_lost_its_last_writes_assigns_new_event_ids(
    tmp_path: Path, queue: QueueName
) -> None:
    server = Server(valkey_or_skip(), tmp_path).start()
    dump = server.folder / "dump.rdb"
    try:
        async with open_store(server.url) as store:
            await store.put([spec(queue, "a")])
            server.tell("SAVE")
            kept = shutil.copy(dump, tmp_path / "kept.rdb")
            await store.put([spec(queue, "b")])
            lost = await log(store, queue)
        server.stop(signal.SIGKILL)
        shutil.copy(kept, dump)
        server.start()
        async with open_store(server.url) as store:
            await store.put([spec(queue, "c")])
            found = await log(store, queue)
    finally:
        server.stop(signal.SIGKILL)
    assert found[0].id == lost[0].id
    assert [(event.job, event.number) for event in (*lost, *found)] == [
        ("a", 1),
        ("b", 2),
        ("a", 1),
        ("c", 2),
    ]
    incarnations = [event.id.rsplit("-", 1)[1] for event in (lost[0], lost[1], found[1])]
    assert incarnations[0] == incarnations[1] != incarnations[2]
