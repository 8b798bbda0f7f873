"""current_job().complete_in: the end of a job is part of its handler's transaction."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import psycopg
import pytest

from jobq import (
    ConfigError,
    InvalidJob,
    LeaseLost,
    Queue,
    State,
    StoreUnavailable,
    Unique,
    Worker,
    current_job,
)
from jobq.core.records.jobs import Claim, Complete, LeaseRef, QueueName
from jobq.stores import open_store
from jobq.stores.postgres import caller
from tests.stores.postgres.servers import ask
from tests.waiting import PATIENCE_S, nothing_happens, until


async def effect(url: str, *, commit: bool = True, result: Any = None) -> None:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("insert into effects values (%s)", [current_job().id])
        await current_job().complete_in(conn, result)
        await (conn.commit() if commit else conn.rollback())


def effects(url: str) -> int:
    ((n,),) = ask(url, "select count(*) from effects")
    return int(n)


async def test_the_job_and_the_effect_are_committed_together(queue: Queue, url: str) -> None:
    @queue.task
    async def work() -> Any:
        await effect(url, result={"n": 7})
        return "not used"

    async with Worker(queue):
        job = await work.enqueue()
        assert await job.result(timeout=PATIENCE_S) == {"n": 7}
    assert effects(url) == 1
    assert (await queue.counts())[State.COMPLETED] == 1
    kinds = [str(e.kind) async for e in queue.events(after="0", follow=False) if e.job]
    assert kinds == ["accepted", "started", "completed"]


async def test_a_plain_function_completes_its_job(queue: Queue, url: str) -> None:
    @queue.task
    def work() -> Any:
        with psycopg.connect(url) as conn:
            conn.execute("insert into effects values ('x')")
            current_job().sync.complete_in(conn, 5)

    async with Worker(queue):
        assert await (await work.enqueue()).result(timeout=PATIENCE_S) == 5
    assert effects(url) == 1


async def test_a_rollback_fails_the_run(queue: Queue, url: str) -> None:
    @queue.task(retry=1)
    async def work() -> None:
        await effect(url, commit=current_job().attempt == 2)

    async with Worker(queue):
        job = await work.options(retry=1).enqueue()
        info = await job.wait(timeout=PATIENCE_S)
    assert (info.state, info.attempt, info.failures) == (State.COMPLETED, 2, 1)
    assert "not committed" in (await job.info()).errors[0].message
    assert effects(url) == 1


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_may_repeat_its_transaction(queue: Queue, url: str, kind: str) -> None:
    @queue.task(retry=0)
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            for end in (conn.rollback, conn.commit):  # as after a serialization failure
                await conn.execute("insert into effects values ('x')")
                await current_job().complete_in(conn, end.__name__)
                await end()
            with pytest.raises(InvalidJob, match="was completed before"):
                await current_job().complete_in(conn)

    @queue.task(retry=0)
    def plain() -> Any:
        with psycopg.connect(url) as conn:
            for end in (conn.rollback, conn.commit):
                conn.execute("insert into effects values ('x')")
                current_job().sync.complete_in(conn, end.__name__)
                end()
            with pytest.raises(InvalidJob, match="was completed before"):
                current_job().sync.complete_in(conn)

    async with Worker(queue):
        job = await (work if kind == "async" else plain).enqueue()
        assert await job.result(timeout=PATIENCE_S) == "commit"
    assert effects(url) == 1


async def test_a_savepoint_that_is_released_completes_the_job(queue: Queue, url: str) -> None:
    @queue.task
    async def work() -> Any:
        conn = await psycopg.AsyncConnection.connect(url)
        async with conn, conn.transaction(), conn.transaction():
            await conn.execute("insert into effects values ('x')")
            await current_job().complete_in(conn, "done")

    async with Worker(queue):
        assert await (await work.enqueue()).result(timeout=PATIENCE_S) == "done"
    assert effects(url) == 1


async def test_a_savepoint_that_is_rolled_back_fails_the_run_and_keeps_the_rest(
    queue: Queue, url: str
) -> None:
    @queue.task
    async def work() -> None:
        again = current_job().attempt > 1
        conn = await psycopg.AsyncConnection.connect(url)
        async with conn, conn.transaction():
            await conn.execute("insert into effects values ('outside')")
            async with conn.transaction(force_rollback=not again):
                await conn.execute("insert into effects values ('inside')")
                await current_job().complete_in(conn)

    async with Worker(queue):
        job = await work.options(retry=1).enqueue()
        info = await job.wait(timeout=PATIENCE_S)
    assert (info.state, info.attempt, info.failures) == (State.COMPLETED, 2, 1)
    assert "not committed" in (await job.info()).errors[0].message
    written = ask(url, "select job, count(*) from effects group by job order by job")
    assert written == [("inside", 1), ("outside", 2)]
    kinds = [str(e.kind) async for e in queue.events(after="0", follow=False) if e.job]
    assert kinds.count("completed") == 1


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
async def test_a_transaction_with_one_snapshot_must_complete_the_job_first(
    queue: Queue, url: str, store: str, first: bool
) -> None:
    renew = f"update {store.rpartition('=')[2]}.jobs_hot set at_ms = at_ms + 1"
    problem = ""

    # A renewal that comes between the snapshot and complete_in is a reason to try again.
    @queue.task(retry=5 if first else 0)
    async def work() -> Any:
        nonlocal problem
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await conn.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            if first:
                await current_job().complete_in(conn, "done")
            await conn.execute("insert into effects values ('x')")
            if not first:
                ask(url, renew)
                with pytest.raises(StoreUnavailable) as raised:
                    await current_job().complete_in(conn, "done")
                problem = str(raised.value)
                raise raised.value
            await conn.commit()

    async with Worker(queue):
        info = await (await work.enqueue()).wait(timeout=PATIENCE_S)
    assert (info.state, effects(url)) == ((State.COMPLETED, 1) if first else (State.FAILED, 0))
    assert first or "call complete_in first in the transaction" in problem


async def test_an_error_after_the_commit_leaves_the_job_completed(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task
    async def work() -> None:
        await effect(url)
        raise ValueError("too late")

    with caplog.at_level(logging.WARNING, "jobq"):
        async with Worker(queue):
            info = await (await work.enqueue()).wait(timeout=PATIENCE_S)
    assert (info.state, info.failures) == (State.COMPLETED, 0)
    assert "raised after complete_in was committed" in caplog.text


async def test_a_lost_lease_aborts_the_transaction(queue: Queue, store: str, url: str) -> None:
    name = QueueName("default", "work")

    @queue.task
    async def work() -> None: ...

    await work.enqueue()
    async with open_store(store) as handle:
        claim = Claim(queues=(name,), limit=1, lease_ms=1)
        (lease,) = (await handle.settle([], worker="w", call="1", then=claim)).leases
        ref = LeaseRef(lease.queue, lease.id, lease.token)

        async def again() -> bool:
            return bool((await handle.settle([], worker="v", call="2", then=claim)).leases)

        await until(again, "another worker to get the job")
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await conn.execute("insert into effects values ('x')")
            with pytest.raises(LeaseLost, match="roll back"):
                await handle.join(conn).complete_async(ref, None)  # type: ignore[attr-defined]
            await conn.rollback()
    assert effects(url) == 0


async def test_keys_locks_parents_and_callers_follow_after_the_commit(
    store: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "FOLLOW_MS", 10**9)  # no tick does it: the worker must
    async with Queue("keyed", store, mode="keyed") as queue:

        @queue.task(key="key", unique=Unique("key", "n"))
        async def work(key: str, n: int) -> Any:
            await effect(url, result=n)

        @queue.task(key="key")
        async def total(key: str, numbers: list[int]) -> int:
            return sum(numbers)

        async with Worker(queue):
            async with queue.flow() as flow:
                parts = [flow.add(work, "a", n) for n in (1, 2)]
                last = flow.add(total, "a", [part.ref for part in parts])
            assert await last.result(timeout=PATIENCE_S) == 3
            again = await work.enqueue("a", 1)
            assert not again.duplicate
            await again.result(timeout=PATIENCE_S)
    assert effects(url) == 3


async def test_a_tick_does_what_follows_if_the_worker_died(store: str, url: str) -> None:
    clock = [1_700_000_000_000]
    name = QueueName("default", "q")
    async with (
        open_store(store, clock=lambda: clock[0]) as handle,
        Queue("q", store) as queue,
    ):

        @queue.task(unique=Unique())
        async def work() -> None: ...

        spec = work.bind()._spec
        await handle.put([spec])
        claim = Claim(queues=(name,), limit=1, lease_ms=1000)
        (lease,) = (await handle.settle([], worker="w", call="1", then=claim)).leases
        ref = LeaseRef(lease.queue, lease.id, lease.token)
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await handle.join(conn).complete_async(ref, b"1")  # type: ignore[attr-defined]
            await conn.commit()
        assert (await handle.put([work.bind()._spec]))[0].duplicate  # it still has its lock
        clock[0] += caller.FOLLOW_MS + 1
        await handle.tick()
        assert not (await handle.put([work.bind()._spec]))[0].duplicate
        # The worker was only slow: its outcome is not stale.
        outcome = Complete(queue=lease.queue, id=lease.id, token=lease.token)
        assert (await handle.settle([outcome], worker="w", call="2")).stale == ()


async def test_an_open_transaction_costs_neighbours_nothing(
    queue: Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()
    held = asyncio.Event()

    @queue.task
    async def slow() -> None:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await current_job().complete_in(conn)
            held.set()
            await go.wait()
            await conn.commit()

    @queue.task
    async def quick(n: int) -> int:
        return n

    lease_s = 1.0
    async with Worker(queue, lease=lease_s, concurrency=10):
        job = await slow.enqueue()
        await held.wait()
        end = asyncio.get_running_loop().time() + 3 * lease_s
        n = 0
        while asyncio.get_running_loop().time() < end:
            assert await quick.options(call_timeout=2).call(n) == n
            n += 1
        assert (await job.info()).state is State.ACTIVE
        go.set()
        info = await job.wait(timeout=PATIENCE_S)
    assert (info.state, info.attempt, info.stalls) == (State.COMPLETED, 1, 0)
    assert (await queue.counts())[State.COMPLETED] == n + 1
    assert "lost" not in caplog.text


async def test_what_cannot_work_is_refused_with_words(queue: Queue, url: str) -> None:
    said: list[str] = []

    async def refused(connection: Any) -> None:
        try:
            await current_job().complete_in(connection)
        except (ConfigError, InvalidJob) as error:
            said.append(str(error))

    @queue.task
    async def work() -> None:
        await refused(object())
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await current_job().complete_in(conn)
            await refused(conn)
            with pytest.raises(InvalidJob, match="after complete_in"):
                await current_job().log("late")
            await conn.commit()

    async with Queue("other", "memory://complete_in") as other:

        @other.task
        async def elsewhere() -> None:
            async with await psycopg.AsyncConnection.connect(url) as conn:
                await refused(conn)

        async with Worker(queue), Worker(other):
            await (await work.enqueue()).result(timeout=PATIENCE_S)
            await (await elsewhere.enqueue()).result(timeout=PATIENCE_S)
    assert "give a connection of psycopg" in said[0]
    assert "was completed before" in said[1]
    assert "needs a queue that is stored in PostgreSQL" in said[2]


async def test_cancels_and_timeouts_skip_a_job_that_is_being_completed(
    queue: Queue, url: str
) -> None:
    go, held = threading.Event(), threading.Event()

    @queue.task(timeout=1.5)
    def slow() -> Any:
        with psycopg.connect(url) as conn:
            current_job().sync.complete_in(conn, "done")
            held.set()
            go.wait(PATIENCE_S)  # longer than the timeout: a thread cannot be stopped

    @queue.task
    async def quick(n: int) -> int:
        return n

    loop = asyncio.get_running_loop()
    async with Worker(queue, lease=2, grace=0.2):
        job = await slow.enqueue()
        await asyncio.to_thread(held.wait)
        began = loop.time()
        assert not await job.cancel()
        for n in range(50):
            assert await quick.options(call_timeout=5).call(n) == n
            await nothing_happens(0.05, "a settle of the timed-out run would hold up the others")
        assert loop.time() - began < PATIENCE_S
        assert (await job.info()).state is State.ACTIVE
        go.set()

        async def completed() -> bool:
            return (await job.info()).state is State.COMPLETED

        await until(completed, "the transaction to decide")
    assert await job.result(timeout=PATIENCE_S) == "done"
    assert (await job.info()).attempt == 1


async def test_producers_do_not_wait_for_a_job_that_is_being_completed(
    queue: Queue, url: str
) -> None:
    go, held = asyncio.Event(), asyncio.Event()

    @queue.task(unique=Unique("n"))
    async def slow(n: int) -> None:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await current_job().complete_in(conn, n)
            held.set()
            await go.wait()
            await conn.commit()

    @queue.task
    async def after(n: int) -> int:
        return n + 1

    async with Worker(queue):
        job = await slow.enqueue(1)
        await held.wait()
        async with asyncio.timeout(2):  # less than a statement waits for a lock
            again = await slow.enqueue(1)
            follower = await after.options(after=[job]).enqueue(1)
        assert (again.duplicate, again.id) == (True, job.id)
        assert (await follower.info()).state is State.BLOCKED
        go.set()
        assert await follower.result(timeout=PATIENCE_S) == 2
    assert (await job.info()).state is State.COMPLETED
