"""Handles that call at the same time: what the contract promises holds in every interleaving.

Each handle has a connection and a thread of its own, so the calls of one round meet in the server.
A round repeats one meeting; the test fails if any of them broke a promise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import psycopg
import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import Claim, Lease, QueueName, UniqueSpec
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.kit import LEASE, Desk, FakeClock, complete, fresh_queue, retry
from tests.stores.postgres.servers import Server, ask

ROUNDS = 40
"""How often each meeting is repeated. Without its lock, each race below shows up within 10."""
HANDLES = 4

_calls = count(1)


@asynccontextmanager
async def opened(server: Server, handles: int = HANDLES) -> AsyncIterator[list[Desk]]:
    """Desks on one queue, each through a handle of its own."""
    queue, clock = fresh_queue(), FakeClock()
    async with AsyncExitStack() as stack:
        desks = []
        for _ in range(handles):
            store = await stack.enter_async_context(open_store(server.url))
            desks.append(Desk(store, queue, clock))
        yield desks


async def settled(
    desk: Desk, *leases: Lease, worker: str, then: Claim | None = None
) -> list[Lease]:
    """Complete these jobs and claim more, as a worker does."""
    call = f"r{next(_calls)}"
    outcomes = [complete(lease) for lease in leases]
    reply = await desk.exchange(*outcomes, worker=worker, call=call, then=then)
    assert reply.stale == ()
    return list(reply.leases)


async def drained(desk: Desk, worker: str, total: Counter[str], n: int, batch: int = 3) -> None:
    """Claim and complete jobs until the handles together have completed n of them."""
    leases: list[Lease] = []
    while sum(total.values()) < n:
        leases = await settled(desk, *leases, worker=worker, then=desk.claiming(batch))
        total.update(lease.id for lease in leases)
    await settled(desk, *leases, worker=worker)


async def events_of(store: Store, queue: QueueName) -> list[EventRecord]:
    """All events of a queue, which must have numbers without gaps."""
    found: list[EventRecord] = []
    position = "0"
    while True:
        page = await store.read_events(queue, after=position, limit=500)
        if not page.events:
            break
        found += page.events
        position = page.position
    assert [event.number for event in found] == list(range(1, len(found) + 1))
    return found


def most(events: Sequence[EventRecord], states: set[State], key: str | None = None) -> int:
    """The largest number of jobs that were in these states at the same time, by the log."""
    now = highest = 0
    for event in events:
        if event.job and (key is None or event.key == key):
            now += (event.state in states) - (event.previous in states)
            highest = max(highest, now)
    return highest


async def test_of_jobs_with_one_unique_lock_exactly_one_is_accepted(server: Server) -> None:
    async with opened(server) as desks:
        for round in range(ROUNDS):
            unique = UniqueSpec(lock=f"lock{round}", mode="simple")
            results = await asyncio.gather(
                *(desk.put_one(f"{round}-{n}", unique=unique) for n, desk in enumerate(desks))
            )
            accepted = [result for result in results if not result.duplicate]
            assert len(accepted) == 1
            assert {result.id for result in results} == {accepted[0].id}
        counts = await desks[0].store.count(desks[0].queue)
        assert counts[State.WAITING] == ROUNDS


async def test_an_id_that_is_put_by_several_is_accepted_once(server: Server) -> None:
    async with opened(server) as desks:
        for round in range(ROUNDS):
            ids = [f"{round}-{n}" for n in range(5)]
            results = await asyncio.gather(*(desk.put(*ids) for desk in desks))
            for n in range(5):
                assert sum(not result[n].duplicate for result in results) == 1
        counts = await desks[0].store.count(desks[0].queue)
        assert counts[State.WAITING] == 5 * ROUNDS
        await events_of(desks[0].store, desks[0].queue)


async def test_an_id_that_is_put_while_its_job_ends_is_a_duplicate(server: Server) -> None:
    async with opened(server, 3) as (worker, *producers):
        for round in range(ROUNDS):
            await worker.put_one(f"{round}", given_id=True)
            lease = await worker.take()
            ending = asyncio.create_task(worker.settle(complete(lease)))
            results = await asyncio.gather(
                *(desk.put_one(f"{round}", given_id=True) for desk in producers)
            )
            await ending
            assert [result.duplicate for result in results] == [True, True]
        rows = ask(
            server.url,
            "select count(*), count(distinct id) from jobq.jobs j join jobq.queues q using (qid)"
            " where tenant = %s",
            worker.queue.tenant,
        )
        assert rows == [(ROUNDS, ROUNDS)]


async def test_a_parent_starts_when_its_children_end_at_the_same_time(server: Server) -> None:
    async with opened(server, 3) as (parents, *workers):
        one, other = (desk.beside(f"q{n}") for n, desk in enumerate(workers))
        for round in range(ROUNDS):
            await one.put_one(f"a{round}")
            await other.put_one(f"b{round}")
            edges = (one.edge(f"a{round}"), other.edge(f"b{round}"))
            await parents.put_one(f"p{round}", after=edges)
            first, second = await one.take("w1"), await other.take("w2")
            await asyncio.gather(one.settle(complete(first)), other.settle(complete(second)))
            parent = await parents.take("w3")
            assert parent.id == f"p{round}"
            assert len(parent.inputs) == 2
            await parents.settle(complete(parent))


@pytest.mark.parametrize("key_limit", [1, 3])
async def test_no_key_has_more_active_jobs_than_its_limit(server: Server, key_limit: int) -> None:
    async with opened(server) as desks:
        first = desks[0]
        config = QueueConfig(mode="keyed", limits=Limits(key_limit=key_limit), limits_version=1)
        await first.store.declare(first.queue, config)
        for key in ("a", "b"):
            await first.put(*(f"{key}{n}" for n in range(ROUNDS)), key=key)
        total: Counter[str] = Counter()
        await asyncio.gather(
            *(drained(desk, f"w{n}", total, 2 * ROUNDS) for n, desk in enumerate(desks))
        )
        assert set(total.values()) == {1}
        events = await events_of(first.store, first.queue)
        for key in ("a", "b"):
            assert most(events, {State.ACTIVE}, key) <= key_limit


async def test_a_queue_has_no_more_active_jobs_than_its_limit(server: Server) -> None:
    async with opened(server) as desks:
        first = desks[0]
        config = QueueConfig(limits=Limits(limit=4), limits_version=1)
        await first.store.declare(first.queue, config)
        await first.put(*(f"{n}" for n in range(2 * ROUNDS)))
        total: Counter[str] = Counter()
        await asyncio.gather(
            *(drained(desk, f"w{n}", total, 2 * ROUNDS) for n, desk in enumerate(desks))
        )
        assert set(total.values()) == {1}
        assert most(await events_of(first.store, first.queue), {State.ACTIVE}) <= 4


async def test_a_queue_has_no_more_waiting_jobs_than_max_waiting(server: Server) -> None:
    async with opened(server) as desks:
        first = desks[0]
        config = QueueConfig(limits=Limits(max_waiting=10), limits_version=1)
        await first.store.declare(first.queue, config)

        async def produce(desk: Desk, name: int) -> int:
            accepted = 0
            for round in range(ROUNDS):
                results = await desk.put(*(f"{name}-{round}-{n}" for n in range(3)))
                accepted += sum(result.full is None for result in results)
            return accepted

        async def consume(desk: Desk, worker: str, ended: asyncio.Event) -> None:
            leases: list[Lease] = []
            while leases or not ended.is_set():
                leases = await settled(desk, *leases, worker=worker, then=desk.claiming(2))

        ended = asyncio.Event()
        consumers = [asyncio.create_task(consume(desks[n], f"w{n}", ended)) for n in (0, 1)]
        accepted = sum(await asyncio.gather(*(produce(desks[n], n) for n in (2, 3))))
        ended.set()
        await asyncio.gather(*consumers)
        await drained(first, "w9", Counter({"": accepted}), accepted)
        events = await events_of(first.store, first.queue)
        assert most(events, {State.WAITING, State.DELAYED, State.BLOCKED}) <= 10
        assert sum(event.kind == "accepted" for event in events) == accepted


async def test_no_claim_that_begins_after_a_pause_gets_a_job(server: Server) -> None:
    async with opened(server) as desks:
        operator, *workers = desks
        for round in range(ROUNDS):
            await operator.put(*(f"{round}-{n}" for n in range(6)))

            async def pause() -> list[list[Lease]]:
                await operator.store.pause(operator.queue)
                return await asyncio.gather(*(desk.claim(2, worker="late") for desk in workers))

            pausing = asyncio.create_task(pause())
            before = await asyncio.gather(
                *(desk.claim(1, worker=f"w{n}") for n, desk in enumerate(workers))
            )
            assert await pausing == [[], [], []]
            leases = [lease for found in before for lease in found]
            await operator.settle(*(complete(lease) for lease in leases))
            await operator.store.resume(operator.queue)
            rest = await operator.claim(6)
            assert len(rest) == 6 - len(leases)
            await operator.settle(*(complete(lease) for lease in rest))


async def test_an_exchange_that_is_sent_twice_at_once_claims_once(server: Server) -> None:
    async with opened(server, 2) as desks:
        for round in range(ROUNDS):
            await desks[0].put(*(f"{round}-{n}" for n in range(4)))
            replies = await asyncio.gather(
                *(
                    desk.exchange(worker="w1", call=f"same{round}", then=desk.claiming(2))
                    for desk in desks
                )
            )
            first, second = ({lease.id for lease in reply.leases} for reply in replies)
            assert first == second
            assert len(first) == 2
            await desks[0].settle(*(complete(lease) for lease in replies[0].leases))
            rest = await desks[0].claim(4)
            assert len(rest) == 2
            await desks[0].settle(*(complete(lease) for lease in rest))


async def test_a_job_is_claimed_by_one_worker_and_counters_agree_with_the_rows(
    server: Server,
) -> None:
    async with opened(server) as desks:
        first = desks[0]
        total: Counter[str] = Counter()
        jobs = 10 * ROUNDS

        async def produce() -> None:
            for round in range(ROUNDS):
                await desks[-1].put(*(f"{round}-{n}" for n in range(10)))

        await asyncio.gather(
            produce(),
            *(drained(desk, f"w{n}", total, jobs, 7) for n, desk in enumerate(desks[:-1])),
        )
        assert set(total.values()) == {1}
        counts = await first.store.count(first.queue)
        assert counts == {**dict.fromkeys(State, 0), State.COMPLETED: jobs}
        last: dict[str, State | None] = {}
        for event in await events_of(first.store, first.queue):
            assert event.previous == last.get(event.job), "the events of a job are in order"
            last[event.job] = event.state
        assert set(last.values()) == {State.COMPLETED}


async def test_workers_that_fall_asleep_and_wake_do_not_wait_in_a_circle(server: Server) -> None:
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = ask(server.url, deadlocks)
    async with opened(server) as desks:
        total: Counter[str] = Counter()

        async def produce() -> None:
            for round in range(2 * ROUNDS):
                await desks[-1].put_one(f"{round}")

        await asyncio.gather(
            produce(),
            *(drained(desk, f"w{n}", total, 2 * ROUNDS, 1) for n, desk in enumerate(desks[:-1])),
        )
    assert ask(server.url, deadlocks) == before


async def test_readers_that_number_at_the_same_time_read_the_same_log(server: Server) -> None:
    async with opened(server) as desks:
        producers, readers = desks[:2], desks[2:]

        async def produce(desk: Desk, name: int) -> None:
            for round in range(ROUNDS):
                await desk.put(*(f"{name}-{round}-{n}" for n in range(3)))

        async def follow(desk: Desk) -> list[str]:
            ids: list[str] = []
            position = "0"
            while len(ids) < 6 * ROUNDS:
                page = await desk.store.read_events(desk.queue, after=position, limit=10)
                ids += [event.id for event in page.events]
                position = page.position
            return ids

        async with asyncio.timeout(LEASE / 1000):
            producing = [asyncio.create_task(produce(desk, n)) for n, desk in enumerate(producers)]
            one, other = await asyncio.gather(*(follow(desk) for desk in readers))
            await asyncio.gather(*producing)
        assert one == other
        assert len(set(one)) == 6 * ROUNDS


async def test_an_open_transaction_delays_neither_events_nor_counters(server: Server) -> None:
    async with opened(server, 2) as (desk, other):
        await desk.put("a")
        # As a caller's transaction does: it has an entry in the log, and does not commit yet.
        with psycopg.connect(server.url) as connection:
            ((qid,),) = ask(
                server.url, "select qid from jobq.queues where tenant = %s", desk.queue.tenant
            )
            connection.execute(
                "insert into jobq.entries (qid, at_ms, n, moved) values (%s, 1, 0, %s)",
                (qid, [0, 0, 5, 0, 0, 0, 0]),
            )
            await other.put("b")
            assert len(await events_of(desk.store, desk.queue)) == 2
            assert (await desk.store.count(desk.queue))[State.WAITING] == 2
            connection.commit()
        assert (await desk.store.count(desk.queue))[State.WAITING] == 7
        await events_of(desk.store, desk.queue)
        assert (await desk.store.count(desk.queue))[State.WAITING] == 7


async def test_a_retried_job_and_its_cancellation_leave_one_end(server: Server) -> None:
    async with opened(server, 2) as (worker, operator):
        for round in range(ROUNDS):
            await worker.put_one(f"{round}")
            lease = await worker.take()
            await asyncio.gather(
                worker.exchange(retry(lease), worker="w1"),
                operator.altered(Cancel(job=operator.key(f"{round}"))),
            )
            for left in await worker.claim(2):
                await worker.settle(complete(left))
            assert (await worker.store.count(worker.queue))[State.CANCELLED] == round + 1
        events = await events_of(worker.store, worker.queue)
        ends = Counter(e.job for e in events if e.state is State.CANCELLED)
        assert set(ends.values()) == {1}
