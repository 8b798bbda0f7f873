"""Plain calls meet calls of operators: nothing is lost, nothing runs twice, and the books agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey
from jobq.core.records.queues import Limits
from jobq.core.records.states import State
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.postgres import fast
from jobq.stores.postgres.connection import Kind
from jobq.stores.postgres.fast import Claiming
from jobq.stores.postgres.link import Link, LinkLost
from jobq.stores.postgres.store import PostgresStore
from jobq_conformance.audit import audit
from jobq_conformance.kit import Desk, complete, retry
from tests.stores.postgres.servers import Server, ask
from tests.stores.postgres.test_races import events_of, opened, settled
from tests.waiting import until

BATCHES = 40
EACH = 25
ENDS = {State.COMPLETED, State.FAILED, State.CANCELLED}


async def _produce(desk: Desk, done: asyncio.Event) -> None:
    for n in range(BATCHES):
        await desk.store.put([desk.spec(id=f"j{n}-{each}") for each in range(EACH)])
    done.set()


async def _work(desk: Desk, worker: str, started: Counter[str], ended: asyncio.Event) -> None:
    leases = await settled(desk, worker=worker, then=desk.claiming(10))
    while leases or not ended.is_set():
        started.update(lease.id for lease in leases)
        leases = await settled(desk, *leases, worker=worker, then=desk.claiming(10))


async def _operate(desk: Desk, put: asyncio.Event, ended: asyncio.Event) -> None:
    """Change the queue and its jobs until all jobs have ended."""
    n = 0
    while True:
        n += 1
        job = f"j{n % BATCHES}-{n % EACH}"
        await desk.store.alter([Cancel(job=JobKey(desk.queue, job))])
        await desk.store.pause(desk.queue)
        await desk.store.resume(desk.queue)
        await desk.store.set_limits(desk.queue, Limits(limit=5))
        await desk.store.set_limits(desk.queue, None)
        counts = await desk.store.count(desk.queue)
        if put.is_set() and not counts[State.WAITING] and not counts[State.ACTIVE]:
            ended.set()
            return


async def test_operators_and_plain_workers_leave_each_job_one_end(server: Server) -> None:
    started: Counter[str] = Counter()
    put, ended = asyncio.Event(), asyncio.Event()
    async with opened(server, 4) as desks:
        producer, one, two, operator = desks
        async with asyncio.timeout(120):
            await asyncio.gather(
                _produce(producer, put),
                _work(one, "one", started, ended),
                _work(two, "two", started, ended),
                _operate(operator, put, ended),
            )
        counts = await operator.store.count(operator.queue)
        events = await events_of(operator.store, operator.queue)
    assert max(started.values()) == 1
    assert counts[State.COMPLETED] + counts[State.CANCELLED] == BATCHES * EACH
    ends = Counter(event.job for event in events if event.job and event.state in ENDS)
    assert len(ends) == BATCHES * EACH
    assert set(ends.values()) == {1}
    rows = ask(
        server.url,
        "select state, count(*) from jobq.jobs j join jobq.queues q using (qid) "
        "where q.name = %s group by 1",
        operator.queue.queue,
    )
    assert dict(rows) == {
        code: n for code, n in ((4, counts[State.COMPLETED]), (6, counts[State.CANCELLED])) if n
    }


async def test_a_claim_that_was_sent_late_starts_no_job_before_it_was_promoted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server, 2) as (one, late):
        await one.put_one("a")
        await late.claim(0, worker="late")  # the handle knows the queue and the time
        clock = late.store._connections.clock  # type: ignore[attr-defined]
        now, ahead = clock.read()
        await one.settle(retry(await one.take(), 1))

        async def promoted() -> bool:
            await one.store.tick()
            return await one.state("a") is State.WAITING

        await until(promoted, "the job to be promoted")
        # The call reads the clock, and is then held up for a while.
        monkeypatch.setattr(clock, "read", lambda: (now, ahead))
        (lease,) = await late.claim(1, worker="late")
        monkeypatch.undo()
        await late.settle(complete(lease), worker="late")
        await audit(one.store, one.queue)


async def test_a_repeated_claim_gets_the_jobs_whose_reply_was_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handle remembers the call before it, and nothing else waits in the queue."""

    def lost(_claiming: Claiming, _reply: object) -> None:
        raise LinkLost("the connection was lost after the commit")

    async with opened(server, 1) as (desk,):
        await desk.put("before", "job")
        await desk.settle(complete(await desk.take()))
        with monkeypatch.context() as patch:
            patch.setattr(Claiming, "leases", lost)
            with pytest.raises(StoreUnavailable):
                await desk.exchange(call="again", then=desk.claiming(5))
        repeated = await desk.exchange(call="again", then=desk.claiming(5))
        assert [lease.id for lease in repeated.leases] == ["job"]
        await desk.settle(*map(complete, repeated.leases))
        await audit(desk.store, desk.queue)


async def test_a_put_finds_its_queue_again_after_a_backup_was_restored(server: Server) -> None:
    """The queue was created after the backup, and another one has got its number since."""
    async with opened(server, 1) as (desk,):
        await desk.put("first")
        await desk.put("second")  # the handle knows the queue's number
        ask(
            server.url,
            "update jobq.queues set name = 'other' where tenant = %s and name = %s",
            desk.queue.tenant,
            desk.queue.queue,
        )
        ask(
            server.url,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'jobq'",
        )

        async def put() -> bool:
            with suppress(StoreUnavailable):
                return bool(await desk.store.put([desk.spec("after")]))
            return False

        await until(put, "the connection to be replaced")
        question = "select q.name from jobq.jobs join jobq.queues q using (qid) where id = 'after'"
        assert ask(server.url, question) == [(desk.queue.queue,)]


async def test_calls_are_read_committed_whatever_the_database_defaults_to(server: Server) -> None:
    ask(server.url, "create database strict")
    ask(server.url, "alter database strict set default_transaction_isolation to 'serializable'")
    async with open_store(server.url_of("strict")) as store:
        assert isinstance(store, PostgresStore)
        shown = await store._submit(Kind.LINK, _isolation, ())
    assert shown == ("read committed",)


def _isolation(link: Link) -> tuple[str, ...] | None:
    return link.execute("select current_setting('transaction_isolation')").fetchone()


@pytest.mark.parametrize("again", [None, 0, 3, 6])
async def test_a_put_of_several_parts_keeps_its_order_and_stores_an_id_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, again: int | None
) -> None:
    """`again`: the place at which the first id is named once more, in its part or a later one."""
    monkeypatch.setattr(fast, "PART", 3)
    ids = [f"{n}" for n in range(7)]
    named = ids if again is None else [*ids[: again + 1], ids[0], *ids[again + 1 :]]
    async with opened(server, 1) as (desk,):
        results = await desk.store.put([desk.spec(id=id, given_id=True) for id in named])
        assert [result.id for result in results] == named
        assert await desk.claim_ids(10) == ids
        assert [event.number for event in await desk.events()] == [*range(1, 7 + 7 + 1)]
