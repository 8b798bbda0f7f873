"""jobq.transaction: jobs become part of the caller's own transaction."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

import jobq
from jobq import ConfigError, LockTimeout, Queue, Unique, Worker, transaction
from jobq.core.records import Claim, QueueName
from jobq.stores import open_store
from jobq.stores.relational import locks
from jobq.sync import chain
from tests.stores.postgres.servers import FAST, Missing, ask, running
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with running(FAST) as server:
            yield server.url
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def url(server: str) -> str:
    ask(server, "drop table if exists orders")
    ask(server, "create table orders (id int primary key)")
    return server


_schemas = count(1)


@pytest.fixture
def store(url: str) -> str:
    """The URL of an empty store in the database of `url`."""
    return f"{url}?schema=jobq{next(_schemas)}"


@pytest.fixture
async def queue(store: str) -> AsyncIterator[Queue]:
    async with Queue("work", store) as queue:
        yield queue


def add_to(queue: Queue, **options: Any) -> Any:
    @queue.task(**options)
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return add


async def ids(queue: Queue) -> set[str]:
    return {info.id async for info in queue.find()}


async def events(queue: Queue) -> list[str]:
    return [str(e.kind) async for e in queue.events(after="0", follow=False) if e.job]


# ── committed, or rolled back ─────────────────────────────────────────────────────────────────────


async def test_a_commit_stores_the_job_with_the_callers_row(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("insert into orders values (1)")
        async with transaction(conn):
            job = await add.enqueue(1, 2)
            many = await add.enqueue_many([(n,) for n in range(3)])
            mixed = await queue.enqueue_many([add.bind(7), add.bind(8)])
        assert await ids(queue) == set()
        await conn.commit()
    assert await ids(queue) == {job.id, *(j.id for j in many), *(j.id for j in mixed)}
    assert ask(url, "select id from orders") == [(1,)]
    async with Worker(queue):
        assert await job.result(timeout=PATIENCE_S) == 3
    assert (await events(queue)).count("accepted") == 6


async def test_a_rollback_leaves_no_job_and_no_event(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        async with transaction(conn):
            job = await add.enqueue(1)
            async with queue.flow() as flow:
                flow.add(add, flow.add(add, 1).ref)
        await conn.rollback()
    assert await ids(queue) == set()
    assert await events(queue) == []
    assert sum((await queue.counts()).values()) == 0
    with pytest.raises(jobq.JobNotFound):
        await job.info()


async def test_a_rollback_wakes_no_worker_and_a_commit_does(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with Worker(queue, concurrency=1):
        await (await add.enqueue(1)).result(timeout=PATIENCE_S)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with conn.transaction(force_rollback=True), transaction(conn):
                await add.enqueue(1)
            async with conn.transaction(), transaction(conn):
                job = await add.enqueue(2)
            assert await job.result(timeout=PATIENCE_S) == 3


async def test_a_worker_that_falls_asleep_before_the_commit_starts_the_job(
    queue: Queue, url: str
) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        async with transaction(conn):
            job = await add.enqueue(1)
        async with Worker(queue):  # it finds nothing, and sleeps
            assert await (await add.enqueue(5)).result(timeout=PATIENCE_S) == 6
            await conn.commit()
            assert await job.result(timeout=PATIENCE_S) == 2


async def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(queue: Queue, url: str) -> None:
    add = add_to(queue)
    conn = await psycopg.AsyncConnection.connect(url)
    async with conn, conn.transaction(), transaction(conn):
        kept = await add.enqueue(1)
        async with conn.transaction(force_rollback=True):
            await add.enqueue(2)
        last = await add.enqueue(3)
    assert await ids(queue) == {kept.id, last.id}


async def test_the_settings_of_the_connection_are_as_before(queue: Queue, url: str) -> None:
    add = add_to(queue)
    shown = "select current_setting('search_path'), current_setting('lock_timeout')"
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("set search_path to public, \"it's\"; set lock_timeout to '7s'")
        before = await (await conn.execute(shown)).fetchall()
        async with transaction(conn):
            await add.enqueue(1)
            assert await (await conn.execute(shown)).fetchall() == before
            with pytest.raises(jobq.InvalidJob):
                await add.options(after=[queue.job("missing")]).enqueue(1)
            assert await (await conn.execute(shown)).fetchall() == before
        await conn.commit()
    assert len(await ids(queue)) == 1


async def test_a_flow_is_stored_whole_by_the_commit(queue: Queue, url: str) -> None:
    add = add_to(queue)
    conn = await psycopg.AsyncConnection.connect(url)
    async with conn, conn.transaction(), transaction(conn), queue.flow() as flow:
        first = flow.add(add, 1)
        last = flow.add(add, first.ref, 10)
    async with Worker(queue):
        assert await last.result(timeout=PATIENCE_S) == 12


async def test_keyed_jobs_keep_their_order_and_lock_no_key(url: str, store: str) -> None:
    async with Queue("keyed", store, mode="keyed") as queue:
        seen: list[int] = []

        @queue.task(key="key")
        async def note(key: str, n: int) -> None:
            seen.append(n)

        await note.enqueue("a", 0)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn):
                await note.enqueue_many([("a", n) for n in (1, 2, 3)])
            async with Worker(queue):  # the open transaction holds up nobody
                done = await note.enqueue("a", 9)
                await done.result(timeout=PATIENCE_S)
            assert seen == [0, 9]
            await conn.commit()
        async with Worker(queue):
            await until(lambda: len(seen) == 5, "all jobs to run")
        assert seen == [0, 9, 1, 2, 3]


async def test_an_open_transaction_holds_up_neither_puts_nor_claims_nor_events(
    queue: Queue, url: str
) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn, transaction(conn):
        await add.enqueue(1)
        outside = contextvars.Context()
        other = asyncio.create_task(_works(queue, add), context=outside)
        assert await asyncio.wait_for(other, PATIENCE_S) == 20
        await queue.pause()
        await queue.resume()
        await conn.commit()


async def _works(queue: Queue, add: Any) -> int:
    async with Worker(queue):
        jobs = await add.enqueue_many([(n,) for n in range(20)])
        for job in jobs:
            await job.result(timeout=PATIENCE_S)
    return (await events(queue)).count("completed")


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


async def active(*jobs: jobq.Job[Any]) -> bool:
    return all([(await job.info()).state == "active" for job in jobs])


# ── refused ───────────────────────────────────────────────────────────────────────────────────────


async def test_misuse_is_refused_with_words(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with Queue("other", "memory://tx") as other:
        elsewhere = add_to(other)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn) as block:
                with pytest.raises(ConfigError, match="needs a queue that is stored in PostgreSQL"):
                    await elsewhere.enqueue(1)
                with pytest.raises(ConfigError, match=r"add.call\(\) inside"):
                    await add.call(1)
                with pytest.raises(ConfigError, match="entered twice"):
                    block.__enter__()
                await conn.execute("select 1")
                with pytest.raises(psycopg.errors.DivisionByZero):
                    await conn.execute("select 1/0")
                with pytest.raises(ConfigError, match="has failed"):
                    await add.enqueue(1)
            late = asyncio.create_task(_late(add, block))
            with pytest.raises(ConfigError, match="the block has ended"):
                await late
        conn = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with conn, transaction(conn):
            with pytest.raises(ConfigError, match="autocommit"):
                await add.enqueue(1)
        with transaction(object()), pytest.raises(ConfigError, match="give a connection of"):
            await add.enqueue(1)
    assert await ids(queue) == set()


async def _late(add: Any, block: Any) -> None:
    from jobq.client import transaction as module

    module._current.set(block)
    await add.enqueue(1)


async def test_what_the_callers_transaction_cannot_store_is_an_error_that_says_so(
    queue: Queue, url: str
) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await conn.execute("select * from orders")  # takes the snapshot
        async with transaction(conn):
            with pytest.raises(ConfigError, match="created after the snapshot"):
                await add.enqueue(1)
        await conn.rollback()
        await conn.execute("select * from orders")
        await add.options(id="newer").enqueue(1)
        async with transaction(conn):
            with pytest.raises(jobq.StoreUnavailable, match="repeat it"):
                await add.options(id="newer").enqueue(1)
            assert not (await add.enqueue(2)).duplicate  # the transaction is still usable
        await conn.commit()
        await conn.set_read_only(True)
        async with transaction(conn):
            with pytest.raises(ConfigError, match="read-only"):
                await add.enqueue(1)


async def test_another_database_is_refused(queue: Queue, url: str, store: str) -> None:
    add = add_to(queue)
    ask(url, "drop database if exists elsewhere")
    ask(url, "create database elsewhere")
    there = url.removesuffix("/postgres") + "/elsewhere"
    async with await psycopg.AsyncConnection.connect(there) as conn, transaction(conn):
        with pytest.raises(ConfigError, match="without the schema 'jobq"):
            await add.enqueue(1)
        async with Queue("work", store.replace("/postgres?", "/elsewhere?")):
            with pytest.raises(ConfigError, match="another database"):
                await add.enqueue(1)
    assert await ids(queue) == set()


# ── blocking code ─────────────────────────────────────────────────────────────────────────────────


def test_blocking_code_has_the_same(url: str, store: str) -> None:
    queue = Queue("work", store)
    add = add_to(queue)
    with psycopg.connect(url) as conn:
        with conn.transaction(), transaction(conn):
            one = add.sync.enqueue(1)
            add.sync.enqueue_many([(2,), (3,)])
            with queue.sync.flow() as flow:
                flow.add(add, flow._flow.add(add, 1).ref)
            last = chain(add, add, first=(1,))
        with conn.transaction(force_rollback=True), transaction(conn):
            add.sync.enqueue(4)
            chain(add, add, first=(1,))
    assert queue.sync.counts()[jobq.State.WAITING] == 5
    assert last.state() == "blocked"
    assert one.info().args == (1,)


def test_an_async_connection_is_refused_in_blocking_code(url: str, store: str) -> None:
    queue = Queue("work", store)
    add = add_to(queue)

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(url)

    conn = asyncio.run(connect())
    with transaction(conn), pytest.raises(ConfigError, match=r"not with `\.sync`"):
        add.sync.enqueue(1)
    asyncio.run(conn.close())


def test_threads_have_transactions_of_their_own(url: str, store: str) -> None:
    queue = Queue("work", store)
    add = add_to(queue)
    add.sync.enqueue(0)

    def work(n: int) -> None:
        with psycopg.connect(url) as conn:
            for i in range(10):
                with conn.transaction(force_rollback=bool(i % 2)), transaction(conn):
                    add.options(id=f"{n}.{i}").sync.enqueue(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.sync.counts()[jobq.State.WAITING] == 21
