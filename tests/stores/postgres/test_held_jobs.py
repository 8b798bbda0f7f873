"""A put meets a job that another transaction holds: what it returns, and that it does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, get_args

import psycopg
import pytest
from msgspec.structs import replace

from jobq import LockTimeout
from jobq.core.records.commands import Cancel, Remove, Rerun
from jobq.core.records.jobs import (
    Claim,
    Edge,
    JobKey,
    JobSpec,
    Lease,
    PutResult,
    QueueName,
    UniqueMode,
    UniqueSpec,
)
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.postgres.store import PostgresStore
from jobq_conformance.audit import audit
from jobq_conformance.kit import Desk, FakeClock, complete, fresh_queue, ref
from tests.places.postgres import without_fast_calls

NEIGHBOUR = "neighbour"

SHARED = ["id", *get_args(UniqueMode)]
"""What the new job has in common with the one that is held: its id, or a unique lock of a mode."""

HELD = ["waiting", "producing", "completing", "completed"]
"""How the first job is held.

`waiting`: it is committed, and nobody holds it. `producing`: the transaction that puts it is open.
`completing`: the transaction that completes it is open. `completed`: that one has committed, and
the worker has not settled the job yet.
"""

WAYS = ["alone", "beside another", "general", "in a flow", "in a transaction"]

DUPLICATE = "duplicate"
ACCEPTED = "accepted"
FOLLOWS = "accepted, and follows"
TIMES_OUT = "LockTimeout"

EXPECTED: dict[str, dict[str, str]] = {
    "id": {"waiting": DUPLICATE, "completing": DUPLICATE, "completed": DUPLICATE},
    "simple": {"waiting": DUPLICATE, "completing": DUPLICATE, "completed": DUPLICATE},
    "throttle": {"waiting": DUPLICATE, "completing": DUPLICATE, "completed": DUPLICATE},
    "debounce": {"waiting": DUPLICATE, "completing": ACCEPTED, "completed": ACCEPTED},
    "keep_last": {"waiting": DUPLICATE, "completing": FOLLOWS, "completed": FOLLOWS},
}
"""Whoever meets a job of an open producer waits, and then times out."""


def spec(queue: QueueName, shared: str, id: str) -> JobSpec:
    """A job that has its id or its lock in common with all others of the queue."""
    if shared == "id":
        return JobSpec(queue=queue, id="same", name="add", payload=b"1", given_id=True)
    mode: Any = shared
    period = 60_000 if mode in ("throttle", "debounce") else None
    lock = UniqueSpec(lock="lock", mode=mode, ttl_ms=period)
    return JobSpec(queue=queue, id=id, name="add", payload=b"1", unique=lock)


@asynccontextmanager
async def held(
    handle: PostgresStore, url: str, queue: QueueName, shared: str, how: str
) -> AsyncIterator[None]:
    """The first job, held like this while the context lasts."""
    first = spec(queue, shared, "first")
    await handle.prepare_for_callers(queue, keyed=False)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        if how == "producing":
            await handle.join(conn).put_async([first])
        else:
            await handle.put([first])
        if how.startswith("complet"):
            wanted = Claim(queues=(queue,), limit=1, lease_ms=60_000)
            (lease,) = (await handle.settle([], worker=queue.queue, call="1", then=wanted)).leases
            await handle.join(conn).complete_async(ref(lease), None)
        if how == "completed":
            await conn.commit()
        yield
        await conn.rollback()


async def met(
    store: PostgresStore, general: PostgresStore, url: str, queue: QueueName, shared: str, way: str
) -> str:
    """What happens to a second job that is put in this way."""
    second = spec(queue, shared, "second")
    other = JobSpec(queue=queue, id=NEIGHBOUR, name="add", payload=b"1")
    specs = [second]
    if way == "beside another":
        specs = [other, second]
    if way == "in a flow":
        child = JobKey(queue, second.id)
        specs = [second, replace(other, after=(Edge(job=child),))]
    try:
        if way == "in a transaction":
            async with await psycopg.AsyncConnection.connect(url) as conn:
                results = await store.join(conn).put_async(specs)
                await conn.commit()
        else:
            results = await (general if way == "general" else store).put(specs)
    except LockTimeout:
        return TIMES_OUT
    return said(results[specs.index(second)])


def said(result: PutResult) -> str:
    if result.duplicate:
        return DUPLICATE
    return FOLLOWS if result.state is State.BLOCKED else ACCEPTED


@pytest.mark.parametrize("how", HELD)
@pytest.mark.parametrize("shared", SHARED)
async def test_a_put_that_meets_a_held_job_returns_what_the_table_says(
    store: str, url: str, shared: str, how: str
) -> None:
    timeout_s = 1.5
    async with AsyncExitStack() as stack:
        opened = f"{store}&timeout={timeout_s}"
        handle = await stack.enter_async_context(open_store(opened))
        with without_fast_calls():
            general = await stack.enter_async_context(open_store(opened))
        assert isinstance(handle, PostgresStore)
        assert isinstance(general, PostgresStore)
        calls: dict[str, Awaitable[str]] = {}
        for way in WAYS:
            queue = QueueName("default", way.replace(" ", "-"))
            await stack.enter_async_context(held(handle, url, queue, shared, how))
            calls[way] = met(handle, general, url, queue, shared, way)
        found = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
    assert found == dict.fromkeys(WAYS, EXPECTED[shared].get(how, TIMES_OUT))


# ── completed, and what follows is still to do ────────────────────────────────────────────────────


@pytest.fixture
async def desk(store: str) -> AsyncIterator[Desk]:
    """A queue by the server's clock. After the test, its events and counts must add up."""
    async with open_store(store) as handle:
        desk = Desk(handle, fresh_queue(), FakeClock())
        yield desk
        await audit(handle, desk.queue)


async def completing(desk: Desk, conn: psycopg.AsyncConnection[Any]) -> Lease:
    """Claim a job and complete it in the connection's transaction."""
    lease = await desk.take()
    assert isinstance(desk.store, PostgresStore)
    await desk.store.join(conn).complete_async(ref(lease), None)
    return lease


async def rerun(desk: Desk) -> None:
    await desk.alter(Rerun(job=desk.key("one")))


async def remove(desk: Desk) -> None:
    await desk.alter(Remove(job=desk.key("one")))


async def purge(desk: Desk) -> None:
    await desk.store.purge_ended(desk.queue, State.COMPLETED, older_than_ms=0, limit=10)


@pytest.mark.parametrize(
    ("command", "next_jobs"), [(rerun, ["one", "two"]), (remove, ["two"]), (purge, ["two"])]
)
async def test_a_command_on_a_job_that_was_just_completed_frees_its_key(
    desk: Desk, url: str, command: Callable[[Desk], Awaitable[None]], next_jobs: list[str]
) -> None:
    await desk.put_one("one", key="k")
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await completing(desk, conn)
    await command(desk)
    await desk.put_one("two", key="k")
    for expected in next_jobs:
        lease = await desk.take()
        assert lease.id == expected
        await desk.settle(complete(lease))


async def test_the_last_job_of_a_lock_starts_after_the_one_that_was_just_completed(
    desk: Desk, url: str
) -> None:
    lock = UniqueSpec(lock="lock", mode="keep_last", ttl_ms=None)
    await desk.put_one("one", unique=lock)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        first = await completing(desk, conn)
    await desk.put_one("two", unique=lock)
    await desk.settle(complete(first))
    last = await desk.take()
    assert last.id == "two"
    await desk.settle(complete(last))


async def test_a_cancel_of_a_flow_skips_a_child_that_is_being_completed(
    desk: Desk, url: str
) -> None:
    await desk.put_one("child")
    await desk.put_one("parent", after=(desk.edge("child"),))
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await completing(desk, conn)
        async with asyncio.timeout(2):  # less than a statement waits for a lock
            await desk.alter(Cancel(job=desk.key("parent"), cascade=True))
        assert await desk.state("child") is State.ACTIVE
        await conn.commit()
    assert await desk.state("child") is State.COMPLETED
    assert await desk.state("parent") is State.CANCELLED
