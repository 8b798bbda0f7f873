"""jobq.transaction meets jobs that others hold, or that were there before."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

import jobq
from jobq import LockTimeout, Queue, Unique, Worker, transaction
from jobq.core.records.jobs import Claim, QueueName
from jobq.stores import open_store
from jobq.stores.relational import locks
from tests.stores.postgres.callers import active, add_to, ids
from tests.stores.postgres.servers import ask
from tests.waiting import PATIENCE_S, until

# ── conflicts ─────────────────────────────────────────────────────────────────────────────────────


async def test_an_id_that_another_open_transaction_holds_is_a_lock_timeout(
    queue: Queue, url: str
) -> None:
    add = add_to(queue).options(id="same")
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as two,
    ):
        async with transaction(one):
            await add.enqueue(1)
        async with transaction(two):
            with pytest.raises(LockTimeout, match="another open transaction"):
                await add.enqueue(2)
            await two.execute("insert into orders values (2)")  # the transaction goes on
            await one.rollback()
            assert not (await add.enqueue(3)).duplicate
        await two.commit()
    assert (await queue.job("same").info()).args == (3,)
    assert ask(url, "select id from orders") == [(2,)]


async def test_a_unique_lock_that_another_open_transaction_holds_is_a_lock_timeout(
    queue: Queue, url: str
) -> None:
    add = add_to(queue, unique=Unique("a"))
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as two,
    ):
        async with transaction(one):
            first = await add.enqueue(1)
        async with transaction(two):
            with pytest.raises(LockTimeout):
                await add.enqueue(1)
            await one.commit()
            second = await add.enqueue(1)
            assert (second.duplicate, second.id) == (True, first.id)
        await two.commit()
    assert await ids(queue) == {first.id}


async def test_a_call_that_waits_does_not_hold_up_the_one_that_it_waits_for(
    queue: Queue, url: str
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))  # as busy as that of a small machine
    add = add_to(queue)
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as two,
    ):
        async with transaction(one):
            await add.options(id="same").enqueue(1)
        async with transaction(two):
            waits = asyncio.create_task(add.options(id="same").enqueue(1))
            waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            await until(lambda: bool(ask(url, waiting)), "the second call to wait")
        async with transaction(one), asyncio.timeout(2):  # less than a call waits for a lock
            await add.enqueue(2)
        await one.commit()
        assert (await waits).duplicate
        await two.commit()


@pytest.mark.parametrize("mode", ["simple", "throttle", "debounce", "keep_last"])
async def test_of_open_transactions_with_one_unique_lock_the_first_commit_wins(
    queue: Queue, url: str, mode: Any
) -> None:
    add = add_to(queue, unique=Unique("a", mode=mode, period=60 if mode[0] in "td" else None))
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as two,
    ):
        async with transaction(one):
            first = await add.enqueue(1, 1)

        async def enqueue_in_two() -> Any:
            async with transaction(two):
                return await add.enqueue(1, 2)

        others = [asyncio.create_task(enqueue_in_two()), asyncio.create_task(add.enqueue(1, 3))]
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        await until(lambda: ask(url, waiting) == [(2,)], "the others to wait for the lock")
        await one.commit()
        await until(others[0].done, "the transaction to get the lock")
        await two.commit()
        assert [(await job).id for job in others] == [first.id, first.id]
    assert await ids(queue) == {first.id}


async def test_a_job_ends_while_an_open_transaction_takes_its_lock_over(
    queue: Queue, url: str
) -> None:
    gate = asyncio.Event()

    @queue.task(unique=Unique("n", mode="debounce", period=0.1))
    async def slow(n: int) -> int:
        await gate.wait()
        return n

    async with Worker(queue), await psycopg.AsyncConnection.connect(url) as conn:
        first = await slow.enqueue(1)
        await until(lambda: active(first), "the first job to start")
        async with transaction(conn):
            second = await slow.enqueue(1)
        gate.set()
        assert await first.result(timeout=PATIENCE_S) == 1
        await conn.commit()
        assert await second.result(timeout=PATIENCE_S) == 1


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("ended", [False, True], ids=["waiting", "ended"])
async def test_an_id_that_was_put_after_the_snapshot_is_refused(
    queue: Queue, store: str, url: str, level: str, ended: bool
) -> None:
    add = add_to(queue)
    await queue.pause()  # creates the queue
    await queue.resume()
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel[level])
        await conn.execute("select 1")  # takes the snapshot
        first = await add.options(id="same").enqueue(1)
        if ended:
            async with Worker(queue):
                await first.result(timeout=PATIENCE_S)
        async with transaction(conn):
            with pytest.raises(jobq.StoreUnavailable, match="roll your transaction back"):
                await add.options(id="same").enqueue(2)
            await conn.rollback()
            assert (await add.options(id="same").enqueue(2)).duplicate
        await conn.commit()
    assert await ids(queue) == {"same"}


async def test_a_put_outside_meets_an_open_transaction_and_its_neighbours_are_stored(
    store: str, url: str
) -> None:
    async with (
        Queue("work", f"{store}&timeout=2") as queue,
        await psycopg.AsyncConnection.connect(url) as conn,
    ):
        add = add_to(queue)
        unique = add.options(unique=Unique("a"))
        async with transaction(conn):
            await add.options(id="same").enqueue(1)
            await unique.enqueue(1)
        results = await asyncio.gather(
            *(add.enqueue(n) for n in range(5)),
            add.options(id="same").enqueue(9),
            return_exceptions=True,
        )
        assert [type(result).__name__ for result in results] == [*["Job"] * 5, "LockTimeout"]
        with pytest.raises(LockTimeout):
            await unique.enqueue(1)
        await conn.commit()
        assert len(await ids(queue)) == 7


# ── jobs that were there before ───────────────────────────────────────────────────────────────────


async def test_a_flow_waits_for_a_job_that_ends_before_the_commit(queue: Queue, url: str) -> None:
    add = add_to(queue)
    gate = asyncio.Event()

    @queue.task
    async def slow() -> int:
        await gate.wait()
        return 5

    async with Worker(queue), await psycopg.AsyncConnection.connect(url) as conn:
        for already_wanted in (False, True):
            running = slow.options(id=f"slow-{already_wanted}")
            job, neighbour = await running.enqueue(), await slow.enqueue()
            await until(partial(active, job, neighbour), "both jobs to start")
            if already_wanted:
                await add.options(after=[job]).enqueue(0)
            async with transaction(conn), queue.flow() as flow:
                parent = flow.add(add, flow.add(running).ref)
            gate.set()
            await job.result(timeout=PATIENCE_S)  # the open transaction has not locked its row
            await neighbour.result(timeout=PATIENCE_S)
            await conn.commit()
            assert await parent.result(timeout=PATIENCE_S) == 6
            gate.clear()


async def test_a_flow_waits_for_a_job_that_ends_after_the_commit(queue: Queue, url: str) -> None:
    add = add_to(queue)
    before = await add.enqueue(4)
    async with await psycopg.AsyncConnection.connect(url) as conn, transaction(conn):
        after = await add.options(after=[before]).enqueue(7)
        await conn.commit()
    async with Worker(queue):
        assert await after.result(timeout=PATIENCE_S) == 8
        kinds = [e async for e in queue.events(after="0", follow=False) if e.job]
        started = [e.job for e in kinds if e.kind == "started"]
        assert started == [before.id, after.id]


async def test_a_flow_on_a_failed_job_fails_to_its_top(queue: Queue, url: str) -> None:
    add = add_to(queue)

    @queue.task(retry=0)
    async def fails() -> int:
        raise jobq.Reject("no")

    async with Worker(queue):
        with pytest.raises(jobq.JobFailed):
            await (await fails.options(id="failed").enqueue()).result(timeout=PATIENCE_S)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn), queue.flow() as flow:
                top = flow.add(add, flow.add(add, flow.add(fails.options(id="failed")).ref).ref)
            await conn.commit()
        with pytest.raises(jobq.JobFailed):
            await top.result(timeout=PATIENCE_S)


async def test_a_follow_up_starts_if_its_job_ends_before_the_commit(queue: Queue, url: str) -> None:
    gate = asyncio.Event()

    @queue.task(unique=Unique("n", mode="keep_last"))
    async def slow(n: int, value: int) -> int:
        await gate.wait()
        return value

    async with Worker(queue), await psycopg.AsyncConnection.connect(url) as conn:
        first = await slow.enqueue(1, 1)
        await until(lambda: active(first), "the first job to start")
        async with transaction(conn):
            second = await slow.enqueue(1, 2)
        gate.set()
        assert await first.result(timeout=PATIENCE_S) == 1
        await conn.commit()
        assert await second.result(timeout=PATIENCE_S) == 2


async def test_a_job_that_starts_while_it_is_replaced_keeps_its_data(
    queue: Queue, store: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = add_to(queue, unique=Unique("a", mode="keep_last"))
    first = await add.enqueue(1, 1)
    loop = asyncio.get_running_loop()
    original = locks.holder

    async def claim() -> None:
        async with open_store(store) as other:
            wanted = Claim(queues=(QueueName("default", "work"),), limit=1, lease_ms=60_000)
            assert (await other.settle([], worker="w", call="c1", then=wanted)).leases

    def holder(*args: Any) -> Any:
        found = original(*args)
        monkeypatch.setattr(locks, "holder", original)
        asyncio.run_coroutine_threadsafe(claim(), loop).result(PATIENCE_S)
        return found

    async with await psycopg.AsyncConnection.connect(url) as conn, transaction(conn):
        monkeypatch.setattr(locks, "holder", holder)
        second = await add.enqueue(1, 2)
        await conn.commit()
    assert not second.duplicate
    assert (await first.info()).args == (1, 1)
    assert [(await job.info()).state for job in (first, second)] == ["active", "blocked"]
