"""jobq.transaction: jobs become part of the caller's own transaction."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import psycopg
import pytest

import jobq
from jobq import ConfigError, InvalidJob, LockTimeout, Queue, State, Worker, transaction
from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.stores import open_store
from jobq.sync import chain
from jobq_conformance.spec_values import base, cases, rule, with_value
from tests.stores.postgres.callers import add_to, events, ids
from tests.stores.postgres.servers import ask
from tests.waiting import PATIENCE_S, nothing_happens, until

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


async def test_nested_savepoints_keep_the_jobs_of_those_that_are_released(
    queue: Queue, url: str
) -> None:
    add = add_to(queue)
    conn = await psycopg.AsyncConnection.connect(url)
    async with Worker(queue), conn:
        async with conn.transaction(), conn.transaction(), transaction(conn):
            kept = await add.enqueue(1)
            async with conn.transaction(force_rollback=True), transaction(conn):
                await add.enqueue(2)
                async with conn.transaction():
                    await add.enqueue_many([(3,), (4,)])
            last = await add.enqueue(5)
        assert await last.result(timeout=PATIENCE_S) == 6
        assert await kept.result(timeout=PATIENCE_S) == 2
    assert await ids(queue) == {kept.id, last.id}
    assert sorted(await events(queue)) == ["accepted"] * 2 + ["completed"] * 2 + ["started"] * 2


async def test_a_savepoint_that_is_rolled_back_wakes_nobody(
    queue: Queue, url: str, store: str
) -> None:
    add = add_to(queue)
    name = QueueName("default", "work")
    async with open_store(store) as sleeper, await psycopg.AsyncConnection.connect(url) as conn:
        wanted = Claim(queues=(name,), limit=1, lease_ms=60_000)
        assert (await sleeper.settle([], worker="w", call="1", then=wanted)).asleep
        asleep = asyncio.create_task(sleeper.sleep([name], worker="w", slots=1, timeout_ms=60_000))
        rolled_back = conn.transaction(force_rollback=True)
        async with conn.transaction(), rolled_back, transaction(conn):
            await add.enqueue(1)
        await nothing_happens(0.3, "a wake-up would have come with the commit")
        assert not asleep.done()
        async with conn.transaction(), transaction(conn):
            await add.enqueue(2)
        await asyncio.wait_for(asleep, PATIENCE_S)


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
async def test_a_queue_cannot_be_removed_while_a_transaction_enqueues_in_it(
    url: str, store: str, keyed: bool
) -> None:
    async with Queue("work", store, mode="keyed" if keyed else "plain") as queue:
        add = add_to(queue, **({"key": "a"} if keyed else {}))
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn):
                job = await add.enqueue(1)
            with pytest.raises(LockTimeout, match="'work' was not removed: an open transaction"):
                await queue.obliterate(force=True)
            await conn.commit()
            async with Worker(queue):
                assert await job.result(timeout=PATIENCE_S) == 2
            await queue.obliterate()
            async with transaction(conn):  # creates the queue again
                job = await add.enqueue(3)
            await conn.commit()
            async with Worker(queue):
                assert await job.result(timeout=PATIENCE_S) == 4


def test_blocking_code_creates_a_removed_queue_again(url: str, store: str) -> None:
    queue = Queue("work", store)
    add = add_to(queue)
    stored = f"select mode, listed from {store.rpartition('=')[2]}.queues"
    with psycopg.connect(url) as conn:
        for _ in range(2):
            with transaction(conn):
                add.sync.enqueue(1)
            conn.commit()
            assert ask(url, stored) == [("plain", 1)]
            assert queue.sync.counts()[State.WAITING] == 1
            queue.sync.obliterate()


async def test_an_open_transaction_writes_no_row_of_a_queue(queue: Queue, url: str) -> None:
    await queue.pause()  # creates the queue, without a mode
    await queue.resume()
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await conn.execute("select 1")  # takes the snapshot
        async with transaction(conn):
            await add.enqueue(1)
        async with asyncio.timeout(2):  # less than a statement waits for a lock
            await queue.pause()
        await conn.commit()
    assert len(await ids(queue)) == 1


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


async def test_a_large_flow_may_take_longer_than_one_statement(url: str, store: str) -> None:
    schema = store.rpartition("=")[2]
    async with Queue("work", f"{store}&timeout=1") as queue:
        add = add_to(queue)
        await add.enqueue(0)
        slow = f"create function {schema}.slow() returns trigger language plpgsql as "
        ask(url, slow + "$$ begin perform pg_sleep(0.3); return new; end $$")
        each = f"before insert on {schema}.jobs_hot for each row execute function {schema}.slow()"
        ask(url, f"create trigger slow {each}")
        async with await psycopg.AsyncConnection.connect(url) as conn:
            async with transaction(conn), queue.flow() as flow:
                last = flow.add(add, 1)
                for _ in range(4):
                    last = flow.add(add, last.ref)
            await conn.commit()
        assert len(await ids(queue)) == 6


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


async def test_calls_that_are_made_at_the_same_time_take_turns(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        for _ in range(2):  # the first call begins the transaction
            async with transaction(conn):
                jobs, _ = await asyncio.gather(
                    asyncio.gather(*(add.enqueue(n) for n in range(20))),
                    asyncio.gather(*(conn.execute("select pg_sleep(0.001)") for _ in range(20))),
                )
        await conn.commit()
    assert len(await ids(queue)) == 40
    assert {job.id for job in jobs} <= await ids(queue)


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


async def test_a_job_in_a_transaction_is_checked_like_any_other(queue: Queue, url: str) -> None:
    """Every value for every field of a spec. A refused one leaves the transaction as it is."""
    store = await queue._context.store()
    await store.put([base(queue.qname, "there", "id")])
    wrong: list[str] = []
    async with await psycopg.AsyncConnection.connect(url) as connection:
        async with transaction(connection) as joined:
            for n, case in enumerate(cases()):
                spec = with_value(base(queue.qname, f"j{n}", case.field), case)
                expected = rule(spec)
                if isinstance(expected, JobSpec):
                    continue  # jobq_conformance puts these
                try:
                    await joined.put(store, [spec])
                except InvalidJob as error:
                    if str(error) == expected:
                        continue
                    wrong.append(f"{case!r}: {error}, and not {expected}")
                else:
                    wrong.append(f"{case!r}: accepted, and not refused: {expected}")
        await connection.commit()
    assert "\n".join(wrong) == ""
    assert sum((await queue.counts()).values()) == 1
    assert [each.queue for each in await store.queues()] == [queue.qname]
