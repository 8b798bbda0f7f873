"""While somebody holds a snapshot, claims stay as fast as before, and no job is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from jobq.core.records.commands import Remove, Reprioritise, Rerun
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.stores import open_store
from jobq.stores.postgres import fast, floors, snapshots
from jobq.stores.postgres.store import PostgresStore
from jobq_conformance.kit import (
    MINUTE,
    SECOND,
    Desk,
    FakeClock,
    complete,
    fresh_queue,
    hold,
    release,
    retry,
)
from tests.stores.postgres import servers
from tests.stores.postgres.servers import FAST, Server, ask
from tests.stores.postgres.test_wakes import SLOW_S, _race
from tests.waiting import wait_until

ROUNDS, EACH = 60, 50
"""Rounds of a load, and jobs of each round."""
LEASE_MS = 100
"""Milliseconds. All rounds together take less than the 30 s for which a sleeper counts as alive.
After that, nobody would look for jobs that the sleeper could run."""
ENTRIES = 8 * EACH
"""Entries of an index that a round may read: it looks when it claims, when it completes, and after
each of both for jobs that a sleeper could run. Each of these four reads past the jobs of this round
and of the one before."""
EARLY = 12
"""The rounds until floors are used read as much as this many: five rounds, the first of which read
from the beginning. A floor that is one round too low would cost ROUNDS // 2 more."""
MOST_ENTRIES = (ROUNDS + EARLY) * ENTRIES


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server for the tests of this file. Vacuum would change what they count."""
    servers.postgres_or_skip()
    with servers.running({**FAST, "autovacuum": "off"}) as running:
        yield running


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles notice a snapshot at once, and look from the beginning only when they are told to."""
    monkeypatch.setattr(floors, "LAG_S", 0.0)
    monkeypatch.setattr(snapshots, "HELD_S", 0.0)
    monkeypatch.setattr(snapshots, "ASK_S", 0.0)
    monkeypatch.setattr(snapshots, "FULL_S", 3600.0)
    monkeypatch.setattr(snapshots, "SLOW_S", 3600.0)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine reads as much as a fast one.

    The worker stays registered as a sleeper for the whole test, and what the leader has published
    stays fresh. Otherwise both are renewed by the second, and then claims look once more.
    """
    monkeypatch.setattr(fast, "STAYS_S", 3600.0)
    monkeypatch.setattr(fast, "BUSY_S", 3600.0)
    monkeypatch.setattr(snapshots, "FRESH_S", 3600.0)


@contextmanager
def snapshot_of_somebody(server: Server) -> Iterator[None]:
    """Another program's transaction, which has read something and stays open."""
    with psycopg.connect(server.url) as connection:
        connection.execute("set transaction isolation level repeatable read")
        connection.execute("select count(*) from pg_class")
        yield


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[Desk]:
    """A desk whose handle is the leader's."""
    clock = FakeClock()
    async with open_store(server.url, clock=clock) as store:
        yield Desk(store, fresh_queue(), clock)


def floors_of(desk: Desk) -> floors.Floors:
    assert isinstance(desk.store, PostgresStore)
    return desk.store._memory.floors


async def rounds(desk: Desk, n: int, **options: object) -> None:
    """Put, claim and complete jobs. The leases of earlier rounds would have expired."""
    for _ in range(n):
        ids = [f"r{desk.clock.now_ms}-{each}" for each in range(EACH)]
        await desk.put(*ids, **options)
        leases = await desk.claim(EACH, lease_ms=LEASE_MS)
        assert [lease.id for lease in leases] == ids
        await desk.exchange(*map(complete, leases), then=desk.claiming(EACH, lease_ms=LEASE_MS))
        desk.clock.advance(2 * LEASE_MS)


async def raise_floors(desk: Desk) -> None:
    """Let the leader notice the snapshot, and run jobs until claims begin behind them."""
    await rounds(desk, 1)
    await desk.tick()
    await rounds(desk, 1)
    await desk.tick()
    assert floors_of(desk).active
    await rounds(desk, 3)


async def look_from_the_beginning(desk: Desk) -> None:
    """A tick of the leader that looks for jobs below the floors."""
    assert isinstance(desk.store, PostgresStore)
    desk.store._memory.held.next_full = 0.0
    await desk.tick()


def entries_read(server: Server) -> dict[str, int]:
    """How many entries of each index were read, once all sessions have ended and said so."""
    sessions = (
        "select 1 from pg_stat_activity where application_name = 'jobq' or query ~ 'jobs_hot'"
    )
    wait_until(lambda: len(ask(server.url, sessions)) <= 1, "the sessions to end")
    return entries_read_now(server)


def entries_read_now(server: Server) -> dict[str, int]:
    """The same, without what sessions have not said yet."""
    question = (
        "select indexrelname, idx_tup_read from pg_stat_user_indexes where relname ~ '^jobs_'"
    )
    return dict(ask(server.url, question))


@pytest.mark.usefixtures("steady")
async def test_a_claim_reads_as_little_while_dead_rows_grow(server: Server) -> None:
    with snapshot_of_somebody(server):
        async with opened(server) as desk:
            await raise_floors(desk)
        before = entries_read(server)
        async with opened(server) as desk:
            await raise_floors(desk)
            for _ in range(ROUNDS // 10):
                await rounds(desk, 10)
                await desk.tick()
        after = entries_read(server)
    read = {name: after[name] - before[name] for name in after}
    assert read["jobs_hot_line"] > 0
    assert read["jobs_hot_line"] <= MOST_ENTRIES
    assert read["jobs_hot_clock"] <= MOST_ENTRIES


@pytest.mark.usefixtures("steady")
async def test_retention_by_count_reads_as_little_while_dead_rows_grow(server: Server) -> None:
    with snapshot_of_somebody(server):
        async with opened(server) as desk:
            retention = RetentionData(count=EACH)
            await desk.store.declare(desk.queue, QueueConfig(mode="plain", retention=retention))
            await raise_floors(desk)
            before = entries_read_now(server)
            for _ in range(ROUNDS):
                await rounds(desk, 1)
                await desk.tick()
            counts = await desk.counts()
        after = entries_read(server)
    assert counts == {"completed": EACH}
    assert after["jobs_ended_clock"] - before["jobs_ended_clock"] <= MOST_ENTRIES


@pytest.mark.usefixtures("steady")
async def test_priorities_have_floors_of_their_own(server: Server) -> None:
    with snapshot_of_somebody(server):
        async with opened(server) as desk:
            await raise_floors(desk)
        before = entries_read(server)
        async with opened(server) as desk:
            await raise_floors(desk)
            for n in range(ROUNDS // 3):
                await rounds(desk, 1, priority=n % 3 * 10)
                await rounds(desk, 1, priority=7)
                await rounds(desk, 1)
        after = entries_read(server)
    assert after["jobs_hot_line"] - before["jobs_hot_line"] <= MOST_ENTRIES


async def test_a_backlog_is_claimed_in_order(server: Server) -> None:
    with snapshot_of_somebody(server):
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as other:
            beside = desk.through(other)
            await raise_floors(desk)
            expected: list[tuple[int, str]] = []
            for n in range(60):
                priority = n * 7 % 20  # more priorities than have floors of their own
                ids = [f"{n}-{each}" for each in range(5)]
                await desk.put(*ids, priority=priority)
                expected += [(-priority, id) for id in ids]
            claimed: list[str] = []
            while found := await desk.claim_ids(7) + await beside.claim_ids(3, worker="w2"):
                claimed += found
    assert claimed == [id for _, id in sorted(expected, key=lambda each: each[0])]


async def test_jobs_below_the_floors_are_found_by_the_leader(server: Server) -> None:
    """A caller's transaction takes places, and commits when claims begin behind them."""
    with snapshot_of_somebody(server), psycopg.connect(server.url) as late:
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as other:
            await rounds(desk, 1)
            assert isinstance(desk.store, PostgresStore)
            specs = [desk.spec(f"late{n}") for n in range(10)]
            desk.store.join(late).put(specs)
            desk.store.join(late).put([desk.spec("delayed", delay_ms=SECOND)])
            await raise_floors(desk)
            late.commit()
            await desk.put("new")
            await look_from_the_beginning(desk)
            beside = desk.through(other)
            claimed = await desk.claim_ids(6)
            claimed += await beside.claim_ids(3, worker="w2")
            claimed += await desk.claim_ids(6)
    assert claimed == [*(f"late{n}" for n in range(10)), "new", "delayed"]


async def test_any_number_of_jobs_below_the_floors_is_found_by_one_look(server: Server) -> None:
    """Each call of a caller's transaction takes a block of places for itself."""
    n = 3 * floors.BLOCKS
    with snapshot_of_somebody(server), psycopg.connect(server.url) as late:
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as other:
            beside = desk.through(other)
            await rounds(desk, 1)
            assert isinstance(desk.store, PostgresStore)
            for each in range(n):
                desk.store.join(late).put([desk.spec(f"late{each}")])
            await raise_floors(desk)
            await rounds(beside, 3)
            late.commit()
            assert await beside.claim_ids(n) == []
            await look_from_the_beginning(desk)
            assert (await beside.exchange(then=beside.claiming(1))).next_due_ms == 0
            assert await beside.claim_ids(2 * n) == [f"late{each}" for each in range(n)]


async def test_a_job_that_was_locked_for_long_is_found_by_the_leader(server: Server) -> None:
    with snapshot_of_somebody(server), psycopg.connect(server.url) as other:
        async with opened(server) as desk:
            await raise_floors(desk)
            await desk.put("locked")
            other.execute("select 1 from jobq.jobs_hot where id = 'locked' for update")
            await rounds(desk, 3)
            other.rollback()
            assert await desk.claim_ids() == []
            await look_from_the_beginning(desk)
            assert await desk.claim_ids() == ["locked"]


PassBy = Callable[[], Awaitable[None]]


async def test_a_worker_looks_again_when_the_leader_has_found_a_job(server: Server) -> None:
    """Otherwise the worker would sleep beside the job until its next poll."""
    with snapshot_of_somebody(server), psycopg.connect(server.url) as other:
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as second:
            beside = desk.through(second)
            await raise_floors(desk)
            await rounds(beside, 3)
            await desk.put("locked")
            other.execute("select 1 from jobq.jobs_hot where id = 'locked' for update")
            await rounds(beside, 3)
            other.rollback()
            await look_from_the_beginning(desk)
            settled = await beside.exchange(then=beside.claiming(5))
            assert settled.leases == ()
            assert settled.next_due_ms == 0
            assert await beside.claim_ids() == ["locked"]


async def test_a_worker_without_room_does_not_stay_registered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is put then must wake another worker."""
    monkeypatch.setattr(fast, "BUSY_S", 0.0)
    with snapshot_of_somebody(server):
        async with opened(server) as desk:
            await raise_floors(desk)
            assert ask(server.url, "select stays from jobq.sleepers") == [(True,)]
            await desk.put("a", "b")
            await desk.take()
            await desk.look("a")  # the connection has sent what it had to
            wait_until(
                lambda: ask(server.url, "select stays from jobq.sleepers") == [],
                "the server to delete the registration",
            )


async def _released(desk: Desk, pass_by: PassBy) -> None:
    lease = await desk.take()
    await pass_by()
    await desk.settle(release(lease))


async def _stalled(desk: Desk, pass_by: PassBy) -> None:
    await desk.take(lease_ms=MINUTE)
    await pass_by()
    desk.clock.advance(2 * MINUTE)


async def _held_back(desk: Desk, pass_by: PassBy) -> None:
    lease = await desk.take()
    await pass_by()
    await desk.settle(hold(lease, SECOND))
    desk.clock.advance(MINUTE)


async def _retried(desk: Desk, pass_by: PassBy) -> None:
    lease = await desk.take()
    await pass_by()
    await desk.settle(retry(lease))


async def _retried_later(desk: Desk, pass_by: PassBy) -> None:
    lease = await desk.take()
    await desk.settle(retry(lease, 5 * MINUTE))
    await pass_by()
    desk.clock.advance(10 * MINUTE)


async def _rerun(desk: Desk, pass_by: PassBy) -> None:
    await desk.settle(complete(await desk.take()))
    await pass_by()
    assert await desk.alter(Rerun(job=desk.key("job")))


async def _put_again(desk: Desk, pass_by: PassBy) -> None:
    await desk.settle(complete(await desk.take()))
    await pass_by()
    assert await desk.alter(Remove(job=desk.key("job")))
    await desk.put("job")


async def _moved_up(desk: Desk, pass_by: PassBy) -> None:
    await desk.settle(complete(await desk.take()))
    await pass_by()
    assert await desk.alter(Remove(job=desk.key("job")))
    await desk.put("job", delay_ms=SECOND)
    assert await desk.alter(Reprioritise(job=desk.key("job"), priority=5))
    desk.clock.advance(2 * SECOND)


async def _lifo(desk: Desk, pass_by: PassBy) -> None:
    await desk.settle(complete(await desk.take()))
    for n in range(3):
        await desk.run(f"lifo{desk.clock.now_ms}-{n}", lifo=True)
        await pass_by()
    assert await desk.alter(Remove(job=desk.key("job")))
    await desk.put("job", lifo=True)


async def _with_ttl(desk: Desk, pass_by: PassBy) -> None:
    await desk.settle(complete(await desk.take()))
    await pass_by()
    assert await desk.alter(Remove(job=desk.key("job")))
    await desk.put("job", ttl_ms=MINUTE)


@pytest.mark.parametrize(
    "how",
    [
        _released, _stalled, _held_back, _retried, _retried_later, _rerun, _put_again, _moved_up,
        _lifo, _with_ttl,
    ],
    ids=lambda how: how.__name__.strip("_"),
)  # fmt: skip
async def test_a_job_that_comes_back_is_claimed_at_once(
    server: Server, how: Callable[[Desk, PassBy], Awaitable[None]]
) -> None:
    """No leader looks from the beginning meanwhile."""
    with snapshot_of_somebody(server):
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as other:
            beside = desk.through(other)

            async def pass_by() -> None:
                """Other jobs pass, and the floors of both handles with them."""
                await rounds(desk, 3)
                await rounds(beside, 3)

            await raise_floors(desk)
            await pass_by()
            await desk.put("job")
            await how(desk, pass_by)
            assert await beside.claim_ids() == ["job"]


async def test_without_a_leader_claims_read_from_the_beginning_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "FRESH_S", 0.0)
    with snapshot_of_somebody(server), psycopg.connect(server.url) as other:
        async with opened(server) as desk:
            await rounds(desk, 1)
            await desk.tick()
            await rounds(desk, 1)
            await desk.tick()
            await desk.put("locked")
            other.execute("select 1 from jobq.jobs_hot where id = 'locked' for update")
            await rounds(desk, 3)
            other.rollback()
            assert await desk.claim_ids() == ["locked"]


async def test_after_the_snapshot_claims_read_from_the_beginning_again(server: Server) -> None:
    with psycopg.connect(server.url) as other:
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as second:
            beside = desk.through(second)
            with snapshot_of_somebody(server):
                await raise_floors(desk)
                await rounds(beside, 3)
                assert floors_of(beside).active
                await desk.put("locked")
                other.execute("select 1 from jobq.jobs_hot where id = 'locked' for update")
                await rounds(beside, 3)
                other.rollback()
            await desk.tick()
            assert await beside.claim_ids() == []  # with this call it learns of it
            assert not floors_of(desk).active
            assert not floors_of(beside).active
            assert await beside.claim_ids() == ["locked"]
    assert ask(server.url, "select count(*) from jobq.looks") == [(0,)]


async def test_a_transaction_that_has_written_and_waits_counts_as_a_snapshot(
    server: Server,
) -> None:
    """Between two statements it has none, and dead rows are kept nevertheless."""
    with psycopg.connect(server.url) as other:
        other.execute("select pg_current_xact_id()")
        async with opened(server) as desk:
            await raise_floors(desk)
            other.rollback()
            await desk.tick()
            assert not floors_of(desk).active


async def test_what_was_published_before_the_clock_was_set_back_is_ignored(
    server: Server,
) -> None:
    """Otherwise it would seem to be the newest for as long as the clock was set back."""
    async with opened(server) as desk:
        await rounds(desk, 1)
        old = "insert into jobq.looks values (clock_timestamp() + interval '1 hour', '[]')"
        ask(server.url, old)
        await rounds(desk, 1)
        assert not floors_of(desk).active
    ask(server.url, "delete from jobq.looks")


async def test_a_new_leader_keeps_what_was_published_until_it_knows(server: Server) -> None:
    """Otherwise all claims would read from the beginning after every change of the leader."""
    with snapshot_of_somebody(server):
        async with opened(server) as desk, open_store(server.url, clock=desk.clock) as other:
            await raise_floors(desk)
            leader = desk.through(other)
            await leader.tick()
            await rounds(desk, 1)
            assert floors_of(desk).active
            await leader.tick()
            await rounds(desk, 1)
            assert floors_of(desk).active
    async with opened(server) as desk:
        await desk.tick()
        await desk.tick()
    assert ask(server.url, "select count(*) from jobq.looks") == [(0,)]


async def test_nobody_uses_floors_without_a_snapshot(server: Server) -> None:
    async with opened(server) as desk:
        for _ in range(3):
            await rounds(desk, 1)
            await desk.tick()
            assert not floors_of(desk).active
    assert ask(server.url, "select count(*) from jobq.looks") == [(0,)]


async def test_no_wake_up_is_lost_while_registrations_stay(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "STAYS_S", 0.1)
    url = f"{server.url}?schema=wakes"
    with snapshot_of_somebody(server):
        async with open_store(url) as producer, open_store(url) as consumer:
            for each in (producer, consumer):
                assert isinstance(each, PostgresStore)
                each._memory.floors.start({}, 600.0)
                monkeypatch.setattr(each._memory.floors, "stop", lambda: None)
            slowest = await _race(producer, consumer)
    assert slowest < SLOW_S / 2


async def test_a_worker_that_sleeps_often_is_registered_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of its row would leave a dead one that every later put reads past."""
    monkeypatch.setattr(fast, "STAYS_S", 3600.0)
    monkeypatch.setattr(fast, "BUSY_S", 3600.0)
    with snapshot_of_somebody(server):
        async with opened(server) as desk:
            await raise_floors(desk)
            changed = "select xmin::text from jobq.sleepers"
            before = ask(server.url, changed)
            assert len(before) == 1
            await rounds(desk, 20)
            assert await desk.claim_ids() == []
            assert ask(server.url, changed) == before
