"""complete_in under kills and long transactions: each effect happens exactly once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from jobq import Queue, State, Worker, current_job
from tests.faults.postgres.complete_in import define
from tests.stores.postgres.servers import FAST, ask, postgres_or_skip, running
from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("COMPLETE_IN_KILLS", "200"))
"""How many workers are killed."""
JOBS = 25 * KILLS
"""Jobs: enough that workers are busy until the last kill."""
HELD_S = float(os.environ.get("COMPLETE_IN_HELD", "60"))
"""Seconds that a transaction with complete_in stays open."""


@pytest.fixture
def database() -> Iterator[str]:
    postgres_or_skip()
    with running(FAST) as server:
        ask(server.url, "create table effects (n int)")
        yield server.url


@contextmanager
def killing(database: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.postgres.complete_in", database, database, str(KILLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=30)
        finally:
            process.kill()


async def test_each_effect_happens_once_however_often_workers_are_killed(database: str) -> None:
    async with define(database, database) as queue:
        work = queue.task_by_name("work")
        await work.enqueue_many([(n,) for n in range(JOBS)])
        with killing(database) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            assert line == f"killed {KILLS}\n"

            async def done() -> bool:
                return (await queue.counts())[State.COMPLETED] == JOBS

            await until(done, "all jobs to complete", seconds=300)
        wrong = ask(database, "select n, count(*) from effects group by n having count(*) <> 1")
        assert wrong == []
        assert ask(database, "select count(*) from effects") == [(JOBS,)]
        counts = await queue.counts()
        assert {state: n for state, n in counts.items() if n} == {State.COMPLETED: JOBS}


@pytest.fixture
async def neighbours(database: str) -> AsyncIterator[Queue]:
    async with Queue("work", database) as queue:
        yield queue


async def test_a_transaction_that_is_open_for_a_minute_costs_neighbours_no_lease(
    neighbours: Queue, database: str
) -> None:
    opened, go = asyncio.Event(), asyncio.Event()

    @neighbours.task
    async def slow() -> None:
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await current_job().complete_in(conn)
            opened.set()
            await go.wait()
            await conn.commit()

    @neighbours.task
    async def quick(n: int) -> int:
        return n

    loop = asyncio.get_running_loop()
    async with (
        Worker(neighbours, lease=2, concurrency=20, name="one"),
        Worker(neighbours, lease=2, concurrency=20, name="two"),
    ):
        job = await slow.enqueue()
        await opened.wait()
        end, done = loop.time() + HELD_S, 0
        while loop.time() < end:
            jobs = await quick.enqueue_many([(n,) for n in range(50)])
            for each in jobs:
                await each.result(timeout=10)
            done += len(jobs)
        go.set()
        info = await job.wait(timeout=30)
    assert (info.state, info.attempt, info.stalls) == (State.COMPLETED, 1, 0)
    assert (await neighbours.counts())[State.COMPLETED] == done + 1
    kinds = {str(e.kind) async for e in neighbours.events(after="0", follow=False)}
    assert "stalled" not in kinds
