"""Floors against doing without them, while another transaction holds a snapshot."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg

from bench.places import ask_postgres
from bench.postgres_paths.measures import NAME, Sizes, new_jobs
from bench.postgres_paths.without import patched
from jobq.core.records.jobs import Claim, Complete
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.stores import open_store
from jobq.stores.postgres import fast, snapshots
from jobq.stores.postgres.floors import LAG_S, STATEMENTS_WITH_FLOORS
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.store import PostgresStore

BATCH = 10
"""Jobs of each claim."""
TURNS = 40
"""Claims of each side at one number of dead rows."""


class Row(NamedTuple):
    """What was measured: seconds with and without a mechanism."""

    what: str
    measured: str
    with_it: list[float]
    without: list[float]


@asynccontextmanager
async def two_handles(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two handles while somebody holds a snapshot: only the first one ever uses floors."""
    with closing(psycopg.connect(url)) as somebody:
        async with open_store(url) as first, open_store(url) as second:
            assert isinstance(first, PostgresStore)
            assert isinstance(second, PostgresStore)
            await first.declare(NAME, QueueConfig(retention=RetentionData(count=1_000)))
            somebody.execute("set transaction isolation level repeatable read")
            somebody.execute("select count(*) from pg_class")
            await first.tick()
            await asyncio.sleep(snapshots.HELD_S)
            await _run_jobs(first, 100)  # a snapshot is old if others have begun since
            await first.tick()
            assert first._memory.floors.active
            with patch.object(second._memory.floors, "start", lambda *_: False):
                yield first, second


async def _run_jobs(store: PostgresStore, n: int) -> None:
    """Put, claim and complete jobs. Each leaves dead entries in the indexes."""
    for left in range(n, 0, -1_000):
        await store.put(new_jobs(min(left, 1_000)))
        await _claim(store, 1_000)


def _worker(store: PostgresStore) -> str:
    return f"worker-{id(store)}"


_names = (f"call {n}" for n in itertools.count())


async def _claim(store: PostgresStore, limit: int) -> float:
    """Claim jobs, and complete them. Returns how long the claim took."""
    claim = Claim(queues=(NAME,), limit=limit, lease_ms=60_000)
    began = time.perf_counter()
    settled = await store.settle([], worker=_worker(store), call=next(_names), then=claim)
    took = time.perf_counter() - began
    ended = [
        Complete(queue=NAME, id=lease.id, token=lease.token, result=b"42")
        for lease in settled.leases
    ]
    await store.settle(ended, worker=_worker(store), call=next(_names))
    return took


async def put_and_claim(store: PostgresStore) -> float:
    """Claim a few new jobs."""
    await store.put(new_jobs(BATCH))
    return await _claim(store, BATCH)


async def sleep_and_wake(store: PostgresStore) -> float:
    """Find nothing, so that the worker is asleep, and then claim a job."""
    claim = Claim(queues=(NAME,), limit=BATCH, lease_ms=60_000)
    began = time.perf_counter()
    await store.settle([], worker=_worker(store), call=next(_names), then=claim)
    await store.put(new_jobs(1))
    await _claim(store, BATCH)
    return time.perf_counter() - began


async def tick(store: PostgresStore) -> float:
    """A tick of the leader between two looks from the beginning."""
    store._memory.held.next_full = time.monotonic() + 3600
    began = time.perf_counter()
    await store.tick()
    return time.perf_counter() - began


async def held_rows(url: str, size: Sizes) -> list[Row]:
    """Measure with and without floors in turn, before and after many jobs."""
    found = []
    async with two_handles(url) as (first, second):
        for dead in (0, size.dead):
            await _run_jobs(first, dead)
            await first.tick()
            await asyncio.sleep(2 * LAG_S)
            after = f"after {dead:,} jobs"
            row = Row("floors", f"claim {after}", [], [])
            found.append(await _in_turn(row, put_and_claim, first, second))
            row = Row("floors: of the general way", f"claim {after}", [], [])
            with patched(((fast, "may_exchange", lambda *_: False),)):
                found.append(await _in_turn(row, put_and_claim, first, second))
            row = Row("floors: of upkeep", f"tick {after}", [], [])
            upkeep = {
                sql: floor_statements
                for sql, floor_statements in STATEMENTS_WITH_FLOORS.items()
                if sql not in UPKEEP
            }
            without = patch.dict(STATEMENTS_WITH_FLOORS, upkeep, clear=True)
            found.append(await _in_turn(row, tick, first, first, without))
    return found


async def sleeper_rows(url: str, size: Sizes) -> list[Row]:
    """The same for registrations of sleepers that stay."""
    found = []
    without = patch.multiple(fast.Claiming, registered=lambda *_: False, sleeper=_sleeper_that_goes)
    async with two_handles(url) as (first, _), open_store(url) as second:
        assert isinstance(second, PostgresStore)
        for sleeps in (0, size.sleeps):
            ask_postgres(url, _SLEEPS.format(n=sleeps, worker=_worker(second)))
            row = Row("floors: registrations stay", f"sleep, wake, claim after {sleeps:,}", [], [])
            found.append(await _in_turn(row, sleep_and_wake, first, second, without))
    return found


_SLEEPS = """
DO $$ BEGIN
    FOR n IN 1..{n} LOOP
        INSERT INTO jobq.sleepers (qid, worker, mailbox, slots, since_ms)
        SELECT qid, '{worker}', 'nobody', 1, n FROM jobq.queues;
        DELETE FROM jobq.sleepers WHERE worker = '{worker}';
    END LOOP;
END $$
"""
"""What is left of a worker that fell asleep and woke up so often."""


def _sleeper_that_goes(claiming: fast.Claiming, mailbox: str) -> tuple[Any, ...]:
    return (*_sleeper(claiming, mailbox)[:-1], False)


_sleeper = fast.Claiming.sleeper
UPKEEP = {SQL.upkeep[name] for name in ("to_tick", "past_retention", "beyond_count")}


async def _in_turn(
    row: Row,
    take: Callable[[PostgresStore], Awaitable[float]],
    first: PostgresStore,
    second: PostgresStore,
    without: Any = None,
) -> Row:
    for _ in range(TURNS):
        row.with_it.append(await take(first))
        with without or nullcontext():
            row.without.append(await take(second))
    return row
