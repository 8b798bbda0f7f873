"""The clock of a real server is set while two handles are open. One has noticed it, one has not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from jobq.core.records.jobs import Lease
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.postgres import clock as clocks
from jobq.stores.postgres.clock import StoreClock
from jobq_conformance.audit import audit
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    MINUTE,
    Desk,
    FakeClock,
    complete,
    fresh_queue,
    ref,
    retry,
)
from scripts.postgres import new_folder
from tests.faults.ledger.shimming import Clock, Missing, environment
from tests.stores.postgres import servers
from tests.stores.postgres.servers import FAST, Server, ask

CONFIGS = {"plain": QueueConfig(), "limited": QueueConfig(limits=Limits(limit=50))}
Desks = tuple[Desk, Desk]


@pytest.fixture(scope="module")
def server_clock() -> Iterator[Clock]:
    """The clock of the server."""
    servers.postgres_or_skip()
    folder = new_folder()
    try:
        yield Clock("server", folder)
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(server_clock: Clock) -> Iterator[Server]:
    with environment(server_clock.variables), servers.running(FAST) as running:
        yield running


@pytest.fixture(params=CONFIGS)
async def desks(
    server: Server, server_clock: Clock, request: pytest.FixtureRequest
) -> AsyncIterator[Desks]:
    """One queue through two handles that know the server's clock."""
    ask(server.url, "drop schema if exists jobq cascade")
    async with AsyncExitStack() as stack:
        one, other = [
            Desk(await stack.enter_async_context(open_store(server.url)), queue, FakeClock())
            for queue in [fresh_queue()] * 2
        ]
        await one.store.declare(one.queue, CONFIGS[request.param])
        await other.run("before")
        yield one, other
        await audit(other.store, other.queue)


def time_of(server: Server) -> int:
    ((ms,),) = ask(server.url, "select (extract(epoch from clock_timestamp()) * 1000)::bigint")
    return int(ms)


async def notices(desk: Desk) -> None:
    """A handle notices that the clock was set. Any call on the queue would do."""
    await desk.store.pause(desk.queue)
    await desk.store.resume(desk.queue)


def check_lease(lease: Lease, server: Server) -> None:
    assert lease.started_ms >= lease.created_ms
    assert abs(lease.started_ms - time_of(server)) < MINUTE // 2
    assert lease.expires_ms == lease.started_ms + LEASE


@pytest.mark.parametrize("putter", ["noticed", "late"])
async def test_a_lease_of_a_handle_that_has_not_noticed_does_not_expire_at_once(
    desks: Desks, server: Server, server_clock: Clock, putter: str
) -> None:
    noticed, late = desks
    server_clock.jump(60)
    await notices(noticed)
    await (noticed if putter == "noticed" else late).put("a")
    lease = await late.take()
    check_lease(lease, server)
    await noticed.tick()
    await late.settle(retry(lease))
    again = await noticed.take("w2")
    check_lease(again, server)
    await noticed.settle(complete(again), worker="w2")
    assert await noticed.kinds("a") == ["accepted", "started", "retried", "started", "completed"]


async def test_a_lease_is_renewed_by_the_servers_clock(
    desks: Desks, server: Server, server_clock: Clock
) -> None:
    noticed, late = desks
    await noticed.put("a")
    lease = await late.take(lease_ms=10 * MINUTE)
    server_clock.jump(60)
    await notices(noticed)
    assert await late.store.extend([ref(lease)], lease_ms=LEASE) == ["held"]
    await noticed.tick()
    assert await noticed.state("a") is State.ACTIVE
    await noticed.settle(complete(lease))
    record = await late.get("a")
    assert record.finished_ms is not None
    assert record.finished_ms >= lease.started_ms + MINUTE


async def test_jobs_that_were_put_before_the_clock_was_set_back_again_can_start(
    desks: Desks, server: Server, server_clock: Clock
) -> None:
    gone, late = desks
    server_clock.jump(3600)
    await notices(gone)
    await gone.put("a", "b")
    await gone.store.aclose()
    server_clock.jump(-3600)
    first, second = await late.claim(2)
    for lease in (first, second):
        assert lease.started_ms >= lease.created_ms
    await late.settle(complete(first), complete(second))


async def test_jobs_pass_between_handles_after_the_clock_was_set_back(
    desks: Desks, server: Server, server_clock: Clock
) -> None:
    noticed, late = desks
    before = time_of(server)
    server_clock.jump(-3600)
    try:
        await notices(noticed)
        await noticed.put("a")
        lease = await late.take()
        assert lease.started_ms >= lease.created_ms >= before
        async with open_store(server.url) as store:
            third = Desk(store, noticed.queue, FakeClock())
            await third.tick()
            await third.settle(retry(lease))
            again = await late.take("w2")
            await noticed.settle(complete(again), worker="w2")
    finally:
        server_clock.jump(3600)


def test_a_handle_that_was_idle_while_the_clock_was_set_back_continues_from_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = 1_000.0
    monkeypatch.setattr(clocks, "elapsed", lambda: passed)
    clock = StoreClock(None)
    clock.observe(50_000.0, passed, passed, None, None)
    assert clock.read() == (50_000_000, 0)
    passed += 20  # and the server's clock is set back by an hour
    clock.observe(50_020.0 - 3600, passed, passed, None, None)
    assert clock.read() == (50_020_000, HOUR)
    passed += 1
    assert clock.read() == (50_021_000, HOUR)


def test_a_reply_shows_that_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 1_000.0
    monkeypatch.setattr(clocks, "elapsed", lambda: passed)
    clock = StoreClock(None)
    for _ in range(clocks.READINGS):
        clock.observe(50_000.0, passed, passed, None, None)
    passed += 1
    assert clock.time_of_reply(50_001_000, passed) == (50_001_000, 0)
    assert not clock.stale()
    assert clock.time_of_reply(50_061_000, passed) == (50_061_000, 0)
    assert clock.stale()
    assert clock.read() == (50_061_000, 0)
