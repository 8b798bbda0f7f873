"""Partitioned queues: one queue in many slots, with the same calls."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from jobq.core.records.commands import Cancel, Revive
from jobq.core.records.jobs import (
    Claim,
    Edge,
    Filter,
    JobKey,
    Lease,
    LeaseRef,
    LockRecord,
    QueueName,
    UniqueSpec,
)
from jobq.core.records.queues import Fire, Limits, QueueConfig, ScheduleSpec, Window
from jobq.core.records.states import State
from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import done, exchange, failed, spec, take
from tests.stores.valkey.servers import Server, blocked_clients
from tests.waiting import until

PARTS = 16


@pytest.fixture
async def parted(store: ValkeyStore, queue: QueueName) -> QueueName:
    record = await store.declare(queue, QueueConfig(partitions=PARTS))
    assert record.partitions == PARTS
    return queue


@pytest.fixture
async def keyed(store: ValkeyStore, queue: QueueName) -> QueueName:
    await store.declare(queue, QueueConfig(partitions=PARTS, mode="keyed"))
    return queue


async def drain(store: ValkeyStore, queue: QueueName, n: int = 50) -> list[str]:
    """Claim and complete all jobs."""
    seen: list[str] = []
    while leases := await take(store, queue, n):
        seen += [lease.id for lease in leases]
        await store.settle([done(lease) for lease in leases], worker="w1", call=f"done{len(seen)}")
    return seen


async def test_jobs_are_spread_over_partitions_and_all_are_claimed(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    ids = [f"j{n}" for n in range(400)]
    results = await store.put([spec(parted, id) for id in ids])
    assert [r.id for r in results] == ids
    assert (await store.count(parted))[State.WAITING] == 400
    used = [
        p
        for p in range(PARTS)
        if server.tell("EXISTS", keys.Space().partition_prefix(parted, p) + "w:l0") == b":1\r\n"
    ]
    assert len(used) == PARTS
    assert sorted(await drain(store, parted)) == sorted(ids)
    assert (await store.count(parted))[State.COMPLETED] == 400


def reads(server: Server) -> int:
    """How often the server has read a string, such as the counters of a partition."""
    said = server.tell("INFO", "commandstats")
    return int(said.split(b"cmdstat_get:calls=")[1].split(b",")[0])


async def test_a_claim_looks_no_further_than_it_must(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    """While jobs wait in every partition, a claim does not read the counters of all of them."""
    await store.put([spec(parted, f"j{n}") for n in range(400)])
    leases = await take(store, parted, 5)  # the first call of a worker goes everywhere
    before = reads(server)
    settled = await exchange(store, parted, *(done(lease) for lease in leases), n=5)
    assert len(settled.leases) == 5
    looks = reads(server) - before
    assert len(await drain(store, parted)) == 390
    before = reads(server)
    assert await take(store, parted, 5) == []
    assert looks < PARTS < reads(server) - before


async def asleep_with_a_run(
    store: ValkeyStore, parted: QueueName, server: Server
) -> tuple[Lease, asyncio.Task[bool]]:
    """A worker that runs one job and sleeps with its other slots."""
    await store.put([spec(parted, "a")])
    return await asleep_with_a_run_of(store, parted, server)


async def asleep_with_a_run_of(
    store: ValkeyStore, parted: QueueName, server: Server
) -> tuple[Lease, asyncio.Task[bool]]:
    """The same with a job that waits."""
    (lease,) = await take(store, parted, 5)
    assert (await exchange(store, parted, n=4)).asleep
    sleep = store.sleep([parted], worker="w1", slots=4, timeout_ms=60_000)
    nap = asyncio.create_task(sleep)
    await until(lambda: blocked_clients(server) == 1, "the worker to sleep at the server")
    return lease, nap


async def test_a_worker_that_sleeps_settles_a_run_without_looking_into_all_partitions(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    lease, nap = await asleep_with_a_run(store, parted, server)
    before = reads(server)
    settled = await exchange(store, parted, done(lease), n=5)
    assert (settled.leases, settled.stale, settled.asleep) == ((), (), True)
    assert reads(server) - before < PARTS
    await store.put([spec(parted, "b")])
    assert await asyncio.wait_for(nap, 5)  # it is still woken
    assert [found.id for found in await take(store, parted, 5)] == ["b"]


async def test_a_worker_that_was_woken_looks_while_it_settles(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    lease, nap = await asleep_with_a_run(store, parted, server)
    await store.put([spec(parted, "b")])
    assert await asyncio.wait_for(nap, 5)
    settled = await exchange(store, parted, done(lease), n=5)
    assert [found.id for found in settled.leases] == ["b"]


async def test_a_worker_that_sleeps_claims_the_next_job_of_the_key_it_settles(
    store: ValkeyStore, keyed: QueueName, server: Server
) -> None:
    await store.put([spec(keyed, "a", key="k")])
    lease, nap = await asleep_with_a_run_of(store, keyed, server)
    await store.put([spec(keyed, "b", key="k")])
    settled = await exchange(store, keyed, done(lease), n=5)
    assert [found.id for found in settled.leases] == ["b"]
    nap.cancel()


async def test_a_worker_that_settles_asleep_still_knows_when_a_job_is_due(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    await store.put([spec(parted, "later", delay_ms=2_000)])
    lease, nap = await asleep_with_a_run(store, parted, server)
    settled = await exchange(store, parted, done(lease), n=5)
    assert settled.asleep
    assert settled.next_due_ms is not None
    assert settled.next_due_ms <= 2_000
    nap.cancel()


async def test_an_id_is_still_a_duplicate(store: ValkeyStore, parted: QueueName) -> None:
    await store.put([spec(parted, "a")])
    (again,) = await store.put([spec(parted, "a")])
    assert again.duplicate
    assert await drain(store, parted) == ["a"]


async def test_a_queue_is_plain_in_all_partitions_unless_declared_keyed(
    store: ValkeyStore, parted: QueueName
) -> None:
    assert (await store.declare(parted, QueueConfig())).mode == "plain"
    with pytest.raises(ConfigError, match="plain"):
        await store.put([spec(parted, "a", key="k")])
    with pytest.raises(ConfigError, match="plain"):
        await store.declare(parted, QueueConfig(mode="keyed"))


async def test_a_queue_declared_keyed_is_keyed_in_all_partitions(
    store: ValkeyStore, keyed: QueueName
) -> None:
    assert (await store.declare(keyed, QueueConfig())).mode == "keyed"
    for id in "abcdefgh":
        with pytest.raises(ConfigError, match="keyed"):
            await store.put([spec(keyed, id)])


async def test_dead_letters_go_to_their_partitions(
    store: ValkeyStore, parted: QueueName, queue: QueueName
) -> None:
    source = QueueName(parted.tenant, f"{parted.queue}-source")
    await store.declare(source, QueueConfig(dead_letters=parted.queue))
    await store.put([spec(source, f"j{n}") for n in range(20)])
    await store.settle(
        [failed(lease) for lease in await take(store, source, 20)], worker="w1", call="fail"
    )
    letters = await drain(store, parted)
    assert sorted(letters) == sorted(f"{source.queue}/j{n}/0" for n in range(20))
    (found,) = await store.get([JobKey(parted, f"{source.queue}/j7/0")])
    assert found is not None
    assert found.origin == f"{source.queue}/j7"


async def test_dead_letters_find_a_queue_that_was_partitioned_after_the_handle_knew_it(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    source = QueueName(queue.tenant, f"{queue.queue}-source")
    await store.declare(source, QueueConfig(dead_letters=queue.queue))
    assert len(await store.partitions.prefixes(queue)) == 1
    async with open_store(server.url) as other:
        await other.declare(queue, QueueConfig(partitions=PARTS, mode="keyed"))
    await store.put([spec(source, "j")])
    await store.settle(
        [failed(lease) for lease in await take(store, source)], worker="w1", call="fail"
    )
    await store.tick()
    (letter,) = await take(store, queue)
    assert (letter.id, letter.key) == (f"{source.queue}/j/0", source.queue)


async def test_jobs_of_a_key_stay_together_and_in_order(
    store: ValkeyStore, keyed: QueueName
) -> None:
    parted = keyed
    await store.put([spec(parted, f"{key}{n}", key=key) for n in range(5) for key in "abcdefgh"])
    seen: dict[str, list[str]] = {}
    while leases := await take(store, parted, 10):
        assert max(Counter(lease.key for lease in leases).values()) == 1
        for lease in leases:
            seen.setdefault(str(lease.key), []).append(lease.id)
        await store.settle([done(lease) for lease in leases], worker="w1", call=leases[0].token)
    assert seen == {key: [f"{key}{n}" for n in range(5)] for key in "abcdefgh"}


async def test_another_handle_reads_the_number_of_partitions(
    store: ValkeyStore, parted: QueueName, server: Server
) -> None:
    async with open_store(server.url) as other:
        await other.put([spec(parted, f"j{n}") for n in range(50)])
        assert len(await drain(store, parted)) == 50


async def test_a_handle_that_knew_the_unpartitioned_queue_learns_of_partitions(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    async with open_store(server.url) as other:
        assert await take(other, queue) == []
        await store.declare(queue, QueueConfig(partitions=4))
        await other.put([spec(queue, "a")])
        assert await drain(store, queue) == ["a"]


async def test_other_partitions_than_stored_are_refused(
    store: ValkeyStore, parted: QueueName
) -> None:
    with pytest.raises(ConfigError, match="16 partitions"):
        await store.declare(parted, QueueConfig(partitions=8))
    assert (await store.declare(parted, QueueConfig())).partitions == PARTS


async def test_a_queue_with_jobs_cannot_be_partitioned_later(
    store: ValkeyStore, queue: QueueName
) -> None:
    await store.put([spec(queue, "a")])
    with pytest.raises(ConfigError, match="1 partitions"):
        await store.declare(queue, QueueConfig(partitions=4))


async def test_a_limit_of_the_whole_queue_is_refused(store: ValkeyStore, queue: QueueName) -> None:
    for limits in (Limits(limit=3), Limits(rate=Window(limit=1, per_ms=1000))):
        with pytest.raises(ConfigError, match="one partition"):
            await store.declare(queue, QueueConfig(partitions=4, limits=limits))
    await store.declare(queue, QueueConfig(partitions=4, limits=Limits(key_limit=2)))
    with pytest.raises(ConfigError, match="one partition"):
        await store.set_limits(queue, Limits(limit=3))


async def test_a_job_in_any_partition_wakes_one_sleeping_worker(
    store: ValkeyStore, parted: QueueName
) -> None:
    names = [f"w{n}" for n in range(4)]
    for name in names:
        assert await take(store, parted, worker=name) == []
    sleeping = [
        asyncio.create_task(store.sleep([parted], worker=name, slots=1, timeout_ms=1500))
        for name in names
    ]
    await store.put([spec(parted, "a")])
    assert 1 <= sum(await asyncio.gather(*sleeping)) <= 3  # two deputies may look as well


async def test_a_repeated_exchange_returns_the_lost_reply(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.put([spec(parted, f"j{n}") for n in range(40)])
    claim = Claim(queues=(parted,), limit=20, lease_ms=30_000)
    first = await store.settle([], worker="w1", call="x", then=claim)
    again = await store.settle([], worker="w1", call="x", then=claim)
    assert sorted(lease.token for lease in first.leases) == sorted(
        lease.token for lease in again.leases
    )
    assert len(first.leases) == 20
    assert (await store.count(parted))[State.ACTIVE] == 20


async def test_leases_are_renewed_and_cancelled_in_their_partition(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.put([spec(parted, f"j{n}") for n in range(20)])
    leases = await take(store, parted, 20)
    assert await store.alter([Cancel(job=JobKey(parted, leases[3].id))]) == ["done"]
    states = await store.extend(
        [LeaseRef(lease.queue, lease.id, lease.token) for lease in leases], lease_ms=1000
    )
    assert states == ["held"] * 3 + ["cancel"] + ["held"] * 16


async def test_listings_events_and_upkeep_cover_all_partitions(
    store: ValkeyStore, parted: QueueName
) -> None:
    ids = {f"j{n}" for n in range(60)}
    await store.put([spec(parted, id, delay_ms=1) for id in ids])
    async with asyncio.timeout(10):
        while (await store.count(parted))[State.WAITING] < 60:
            await store.tick()
    listed: set[str] = set()
    cursor: str | None = None
    while True:
        page = await store.find(Filter(queue=parted, state=State.WAITING), cursor=cursor, limit=7)
        listed |= {record.id for record in page.records}
        cursor = page.cursor
        if cursor is None:
            break
    assert listed == ids
    accepted: list[str] = []
    position = "0"
    while (events := await store.read_events(parted, after=position, limit=25)).events:
        accepted += [e.job for e in events.events if e.kind == "accepted"]
        position = events.position
    assert sorted(accepted) == sorted(ids)
    assert await store.ack_events(parted, "relay", position) == position


async def test_flows_cross_partitions(store: ValkeyStore, parted: QueueName) -> None:
    children = [spec(parted, f"c{n}") for n in range(10)]
    parent = spec(parted, "p", after=tuple(Edge(JobKey(parted, child.id)) for child in children))
    await store.put([*children, parent], flow="f1")
    assert (await store.get([JobKey(parted, "p")]))[0].state is State.BLOCKED  # type: ignore[union-attr]
    seen = []
    while leases := await take(store, parted, 4):
        seen += [lease.id for lease in leases]
        if seen[-1] == "p":
            assert len(leases[-1].inputs) == 10
        await exchange(store, parted, *map(done, leases), n=0)
    assert len(seen) == 11
    assert seen[-1] == "p"


async def test_schedules_put_their_jobs_in_the_right_partition(
    store: ValkeyStore, parted: QueueName
) -> None:
    template = spec(parted, "template")
    schedule = ScheduleSpec(
        queue=parted, id="s", template=template, every_ms=1000, after_complete=True
    )
    await store.put_schedule(schedule, next_ms=5)
    assert await store.fire([Fire(queue=parted, schedule="s", at_ms=5, next_ms=None)]) == [True]
    assert await store.fire([Fire(queue=parted, schedule="s", at_ms=5, next_ms=None)]) == [False]
    assert await drain(store, parted) == ["s@5"]
    (record,) = await store.list_schedules(parted)
    assert record.next_ms is not None


async def test_pause_and_obliterate_reach_all_partitions(
    store: ValkeyStore, parted: QueueName
) -> None:
    await store.put([spec(parted, f"j{n}") for n in range(40)])
    await store.pause(parted)
    assert await take(store, parted, 100) == []
    await store.resume(parted)
    assert await store.purge_pending(parted, limit=10) == 10
    while not await store.obliterate(parted, limit=10):
        pass
    assert not any((await store.count(parted)).values())
    assert parted not in [record.queue for record in await store.queues()]


async def test_a_last_chance_is_alone_among_all_partitions(
    queue: QueueName, server: Server
) -> None:
    now = [1_700_000_000_000]
    async with open_store(server.url, clock=lambda: now[0]) as store:
        await store.declare(queue, QueueConfig(partitions=PARTS, max_stalls={"task": 1}))
        await store.put([spec(queue, f"frail{n}") for n in range(5)])
        assert len(await take(store, queue, 50, lease_ms=1000)) == 5
        now[0] += 2000
        await store.tick()
        await store.put([spec(queue, f"j{n}", name="sturdy") for n in range(40)])
        together = []
        while leases := await take(store, queue, 50):
            together.append([lease.last_chance for lease in leases])
            await store.settle(
                [done(lease) for lease in leases], worker="w1", call=f"done{len(together)}"
            )
        assert [each for each in together if True in each] == [[True]] * 5
        assert sum(map(len, together)) == 45


async def test_a_busy_worker_leaves_a_last_chance_in_its_partition(
    queue: QueueName, server: Server
) -> None:
    now = [1_700_000_000_000]
    async with open_store(server.url, clock=lambda: now[0]) as store:
        await store.declare(queue, QueueConfig(partitions=PARTS, max_stalls={"task": 1}))
        await store.put([spec(queue, "frail")])
        assert len(await take(store, queue, 50, lease_ms=1000)) == 1
        now[0] += 2000
        await store.tick()
        await store.put([spec(queue, f"j{n}", name="sturdy") for n in range(40)])
        busy = Claim(queues=(queue,), limit=50, lease_ms=30_000, alone=False)
        taken: list[str] = []
        for call in range(3):
            settled = await store.settle([], worker="busy", call=f"busy{call}", then=busy)
            assert (settled.last_chance, settled.asleep) == (True, False)
            taken += [lease.id for lease in settled.leases]
        assert "frail" not in taken
        assert taken, "the other partitions are claimed from"
        alone: list[str] = []
        while leases := await take(store, queue, 50):
            alone += [lease.id for lease in leases if lease.last_chance]
        assert alone == ["frail"]
        settled = await store.settle([], worker="busy", call="last", then=busy)
        assert (settled.leases, settled.last_chance, settled.asleep) == ((), False, True)


async def test_the_oldest_jobs_of_each_partition_are_listed_first_and_none_is_missed(
    store: ValkeyStore, parted: QueueName
) -> None:
    ids = [f"j{n:03}" for n in range(100)]
    await store.put([spec(parted, id) for id in ids])
    filter = Filter(queue=parted, state=State.WAITING, oldest_first=True)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.find(filter, cursor=cursor, limit=7)
        seen += [record.id for record in page.records]
        if (cursor := page.cursor) is None:
            break
    assert sorted(seen) == ids
    place = {id: keys.partition_of(None, id, PARTS) for id in ids}
    for part in range(PARTS):
        of_part = [id for id in seen if place[id] == part]
        assert of_part == sorted(of_part)


@pytest.mark.parametrize("count", [1, 7, 1000])
async def test_readers_that_share_a_listing_read_every_partition_once(
    store: ValkeyStore, parted: QueueName, count: int
) -> None:
    ids = [f"j{n:03}" for n in range(40)]
    await store.put([spec(parted, id) for id in ids])
    filter = Filter(queue=parted, state=State.WAITING)
    cursors: list[str | None] = [None]
    while (cursor := await store.skip(filter, cursor=cursors[-1], count=count)) is not None:
        cursors.append(cursor)
    assert len(cursors) >= PARTS
    seen: list[str] = []
    for after, stop in zip(cursors, [*cursors[1:], None], strict=True):
        place, more = after, True
        while more:
            page = await store.find(filter, cursor=place, until=stop, limit=3)
            seen += [record.id for record in page.records]
            place, more = page.cursor, page.cursor is not None
    assert (len(seen), sorted(seen)) == (40, ids)


async def test_a_lock_is_found_and_released_in_whichever_partition_it_is(
    store: ValkeyStore, parted: QueueName
) -> None:
    for n in range(PARTS):
        lock = f"L{n}"
        unique = UniqueSpec(lock=lock, mode="simple")
        await store.put([spec(parted, f"j{n}", unique=unique)])
        assert await store.find_lock(parted, lock) == LockRecord(f"j{n}")
        assert await store.release_lock(parted, lock, actor="ada")
        assert await store.find_lock(parted, lock) is None
    events = (await store.read_events(parted, after="0")).events
    released = [event for event in events if str(event.kind) == "released_lock"]
    assert sorted(event.reason or "" for event in released) == sorted(f"j{n}" for n in range(PARTS))
    assert {(event.shard, event.actor) for event in released} == {(0, "ada")}


async def test_a_flow_is_revived_across_partitions(store: ValkeyStore, parted: QueueName) -> None:
    children = [f"c{n}" for n in range(10)]
    edges = tuple(Edge(JobKey(parted, id)) for id in children)
    await store.put([*(spec(parted, id) for id in children), spec(parted, "p", after=edges)])
    leases = {lease.id: lease for lease in await take(store, parted, 20)}
    assert sorted(leases) == children
    outcomes = [
        failed(lease) if id in ("c3", "c7") else done(lease) for id, lease in leases.items()
    ]
    await store.settle(outcomes, worker="w1", call="ends")
    (parent,) = await store.get([JobKey(parted, "p")])
    assert parent
    assert parent.state is State.FAILED
    for id in ("c3", "c7", "p"):
        assert await store.alter([Revive(job=JobKey(parted, id))]) == ["done"]
    again = await take(store, parted, 20)
    assert sorted(lease.id for lease in again) == ["c3", "c7"]
    await store.settle([done(lease) for lease in again], worker="w1", call="again")
    (last,) = await take(store, parted, 20)
    assert (last.id, len(last.inputs)) == ("p", 10)
