"""Damaged data: one bad record fails one job, and one bad queue does not affect the others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from jobq import CorruptStore, Queue, Worker
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Claim, Filter, JobKey, Lease, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import done, spec

QUEUE, OTHER = QueueName("t", "q"), QueueName("t", "other")
JUNK = [
    "x",
    "",
    "\x7f" * 5,
    "a longer text that is no record at all",
    "\x00" * 40,
    "\x01" * 200,
    "~" * 12,
    "~" * 13,
]


@pytest.fixture
def clock() -> list[int]:
    """A clock in milliseconds that the test sets."""
    return [1_700_000_000_000]


@pytest.fixture
async def clocked(server: servers.Server, clock: list[int]) -> AsyncIterator[ValkeyStore]:
    """A handle with that clock."""
    handle = open_store(server.url, clock=lambda: clock[0])
    assert isinstance(handle, ValkeyStore)
    async with handle:
        yield handle


async def claim(
    store: ValkeyStore, call: str, *queues: QueueName, n: int = 100
) -> tuple[Lease, ...]:
    wanted = Claim(queues=queues or (QUEUE,), limit=n, lease_ms=60_000)
    return (await store.settle([], worker="w", call=call, then=wanted)).leases


def key_of(queue: QueueName, id: str) -> str:
    return f"{keys.Space().prefix(queue)}j:{id}"


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("options", [{}, {"ttl_ms": 60_000}, {"priority": 3}, {"timeout_ms": 500}])
async def test_a_record_that_cannot_be_read_fails_and_the_good_ones_are_claimed(
    store: ValkeyStore, server: servers.Server, junk: str, options: dict[str, object]
) -> None:
    await store.declare(QUEUE, QueueConfig(event_meta=("trace",)))
    await store.put([spec(QUEUE, f"{n}", **options) for n in range(7)])
    server.tell("SET", key_of(QUEUE, "3"), junk)
    leases = await claim(store, "1")
    assert [lease.id for lease in leases if not lease.unreadable] == [
        f"{n}" for n in range(7) if n != 3
    ]
    await store.settle(
        [done(lease) for lease in leases if not lease.unreadable], worker="w", call="2"
    )
    assert (await store.count(QUEUE))[State.COMPLETED] == 6
    (bad,) = await store.get([JobKey(QUEUE, "3")])
    assert bad is None or bad.state in (State.FAILED, State.ACTIVE)  # active: its worker fails it
    for event in (await store.read_events(QUEUE, after="0")).events:
        assert str(event.kind) != "gap"


@pytest.mark.parametrize("junk", JUNK)
async def test_a_bad_record_in_a_keyed_queue_blocks_no_key(
    store: ValkeyStore, server: servers.Server, junk: str
) -> None:
    await store.put([spec(QUEUE, f"{n}", key="k") for n in range(3)])
    server.tell("SET", key_of(QUEUE, "0"), junk)
    seen: list[str] = []
    for n in range(6):
        leases = [lease for lease in await claim(store, f"{n}") if not lease.unreadable]
        seen += [lease.id for lease in leases]
        await store.settle([done(lease) for lease in leases], worker="w", call=f"{n}d")
    assert seen == ["1", "2"]


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_record_that_vanished_while_its_job_ran_blocks_nothing(
    clocked: ValkeyStore, server: servers.Server, clock: list[int], keyed: bool
) -> None:
    options = {"key": "k"} if keyed else {}
    await clocked.put([spec(QUEUE, f"{n}", **options) for n in range(3)])
    (first,) = await claim(clocked, "1", n=1)
    server.tell("DEL", key_of(QUEUE, first.id))
    clock[0] += 120_000
    seen: list[str] = []
    for n in range(6):
        leases = await claim(clocked, f"c{n}")
        seen += [lease.id for lease in leases]
        await clocked.settle([done(lease) for lease in leases], worker="w", call=f"{n}d")
    assert seen == ["1", "2"]
    counts = await clocked.count(QUEUE)
    assert (counts[State.WAITING], counts[State.ACTIVE], counts[State.COMPLETED]) == (0, 0, 2)


async def test_the_counters_are_right_again_when_records_have_vanished(
    store: ValkeyStore, server: servers.Server
) -> None:
    await store.put([spec(QUEUE, f"{n}") for n in range(10)])
    server.tell("DEL", key_of(QUEUE, "2"), key_of(QUEUE, "5"))
    assert len(await claim(store, "1")) == 8
    counts = await store.count(QUEUE)
    assert (counts[State.WAITING], counts[State.ACTIVE]) == (0, 8)


@pytest.mark.parametrize("junk", JUNK)
async def test_a_bad_record_is_listed_and_can_be_cancelled_and_removed(
    store: ValkeyStore, server: servers.Server, junk: str
) -> None:
    await store.put([spec(QUEUE, "a"), spec(QUEUE, "b", delay_ms=60_000)])
    for id in ("a", "b"):
        server.tell("SET", key_of(QUEUE, id), junk)
    for wanted in (Filter(queue=QUEUE), Filter(queue=QUEUE, state=State.WAITING)):
        for record in (await store.find(wanted)).records:
            assert record.failure is not None
            assert record.failure.type == "Unreadable"
    assert len((await store.find(Filter(queue=QUEUE))).records) == 2
    await store.find(Filter(queue=QUEUE, name="task"))
    await store.find(Filter(queue=QUEUE, key="k"))
    await store.alter([Cancel(job=JobKey(QUEUE, id)) for id in ("a", "b")])
    assert (await store.count(QUEUE))[State.CANCELLED] == 2
    await store.tick()


async def test_a_worker_fails_a_bad_record_and_runs_the_others(server: servers.Server) -> None:
    queue = Queue("work", server.url)
    ran: list[int] = []

    @queue.task
    async def note(n: int) -> None:
        ran.append(n)

    async with queue:
        jobs = [await note.options(timeout=60).enqueue(n) for n in range(5)]
        server.tell("SET", key_of(queue.qname, jobs[2].id), "junk that is no record")
        async with Worker(queue):
            infos = [await job.wait(timeout=30) for n, job in enumerate(jobs)]
    assert [info.state for info in infos] == [
        "completed",
        "completed",
        "failed",
        "completed",
        "completed",
    ]
    assert sorted(ran) == [0, 1, 3, 4]
    failure = infos[2].failure
    assert failure is not None
    assert (failure.type, failure.reason) == ("Unreadable", "error")


async def test_unreadable_counters_of_one_queue_do_not_affect_others(
    store: ValkeyStore, server: servers.Server
) -> None:
    await store.declare(QUEUE, QueueConfig(mode="plain"))
    await store.put([spec(QUEUE, "a"), spec(OTHER, "b")])
    server.tell("SET", f"{keys.Space().prefix(QUEUE)}n", "x" * 300)
    leases = await claim(store, "1", QUEUE, OTHER)
    assert [lease.id for lease in leases] == ["b"]
    with pytest.raises(CorruptStore, match="cannot read"):
        await claim(store, "2", QUEUE)


@pytest.mark.parametrize("key", [keys.Space().queues, keys.settings(keys.Space().prefix(QUEUE))])
async def test_a_key_of_another_type_is_reported_as_damage(
    store: ValkeyStore, server: servers.Server, key: str
) -> None:
    server.tell("SET", key, "of another program")
    with pytest.raises(CorruptStore, match="WRONGTYPE"):
        await store.put([spec(QUEUE, "a")])
