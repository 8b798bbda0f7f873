"""The connections of a handle: deadlines, repetitions, lost connections and closing.

Each test gives the connections work of its own, so that they are tested without the store's
statements.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.postgres import schema
from jobq.stores.postgres.address import parse
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.connection import Connections, Kind
from jobq.stores.postgres.link import Link
from jobq.stores.postgres.mailbox import ChannelMailbox
from jobq.stores.postgres.memory import PostgresMemory
from jobq.stores.relational.mailbox import Notice
from tests.stores.postgres import servers
from tests.stores.postgres.proxy import proxy_to
from tests.stores.postgres.servers import FAST, Server, ask
from tests.waiting import until

COMMITTING = "from pg_stat_activity where query = 'COMMIT' and state = 'active'"


class Tx:
    """What a transaction of these tests can do: execute, and notify."""

    tells_later = False
    memory = PostgresMemory()

    def __init__(self, link: Link, now: int) -> None:
        self.execute = link.execute
        self.now = now
        self.notices: list[Notice] = []

    def flush(self) -> None:
        """Write nothing more."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that no test of this file damages."""
    servers.postgres_or_skip()
    with servers.running(FAST) as running:
        ask(running.url, "create table numbers (n bigint primary key)")
        yield running


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connections]:
    """Connections to a database that has the tables of jobq."""
    address = parse(url)
    found = Connections(
        address, StoreClock(None), lambda link, now, ahead, writes: Tx(link, now), ChannelMailbox()
    )
    try:
        await found.submit(Kind.LINK, schema.prepare, (address,), 60.0)
        yield found
    finally:
        await asyncio.to_thread(found.close)


@pytest.fixture(autouse=True)
def _only_execute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of these tests records nothing that the shared logic would have to finish."""
    monkeypatch.setattr("jobq.stores.postgres.connection.finish", lambda tx: None)


def insert(tx: Tx, n: int) -> None:
    """Insert a number. Nobody reads the reply."""
    tx.execute("insert into public.numbers values ($1)", (n,))


def numbers(tx: Tx) -> list[int]:
    """All numbers."""
    return [n for (n,) in tx.execute("select n from public.numbers order by n")]


def sleep_s(tx: Tx, seconds: float) -> None:
    """Keep the server busy."""
    tx.execute("select pg_sleep($1)", (seconds,)).fetchone()


def backend(tx: Tx) -> int:
    """The process of the server that runs the transaction."""
    row = tx.execute("select pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


async def test_a_write_is_committed_and_a_failed_one_leaves_nothing(server: Server) -> None:
    async with connected(server.url) as found:
        await found.submit(Kind.WRITE, insert, (1,))
        with pytest.raises(ValueError, match="by the test"):
            await found.submit(Kind.WRITE, _insert_and_raise, (2,))
        assert await found.submit(Kind.READ, numbers, ()) == [1]


def _insert_and_raise(tx: Tx, n: int) -> None:
    insert(tx, n)
    raise ValueError("by the test")


async def test_an_error_of_a_statement_that_nobody_reads_fails_the_commit(server: Server) -> None:
    async with connected(server.url) as found:
        await found.submit(Kind.WRITE, insert, (10,))
        with pytest.raises(Exception, match="duplicate key"):
            await found.submit(Kind.WRITE, _insert_twice, (11, 10))
        assert 11 not in await found.submit(Kind.READ, numbers, ())


def _insert_twice(tx: Tx, first: int, second: int) -> None:
    insert(tx, first)
    insert(tx, second)


async def test_a_transaction_that_met_a_deadlock_is_repeated(server: Server) -> None:
    ask(server.url, "insert into numbers values (100), (101)")
    async with connected(server.url) as one, connected(server.url) as other:
        both = asyncio.Barrier(2)
        loop = asyncio.get_running_loop()

        def meet() -> None:
            asyncio.run_coroutine_threadsafe(_within(both), loop).result()

        def cross(tx: Tx, first: int, second: int) -> None:
            lock = "select n from public.numbers where n = $1 for update"
            tx.execute(lock, (first,)).fetchone()
            meet()
            tx.execute(lock, (second,)).fetchone()

        await asyncio.gather(
            one.submit(Kind.WRITE, cross, (100, 101)), other.submit(Kind.WRITE, cross, (101, 100))
        )


async def _within(barrier: asyncio.Barrier) -> None:
    try:  # a repeated transaction comes alone
        async with asyncio.timeout(2.0):
            await barrier.wait()
    except (TimeoutError, asyncio.BrokenBarrierError):
        await barrier.reset()


async def test_a_lost_connection_is_replaced_before_the_next_call(server: Server) -> None:
    async with connected(server.url) as found:
        first = await found.submit(Kind.READ, backend, ())
        ask(server.url, "select pg_terminate_backend(%s, 5000)", first)
        assert await found.submit(Kind.READ, backend, ()) != first


async def test_a_call_that_loses_its_connection_before_the_commit_is_repeated(
    server: Server,
) -> None:
    async with connected(server.url) as found:
        killed: list[int] = []

        def insert_and_die(tx: Tx) -> None:
            insert(tx, 20)
            if not killed:
                killed.append(backend(tx))
                ask(server.url, "select pg_terminate_backend(%s, 5000)", killed[0])
                backend(tx)

        await found.submit(Kind.WRITE, insert_and_die, ())
        assert 20 in await found.submit(Kind.READ, numbers, ())
        assert killed


async def test_a_call_that_loses_its_connection_at_the_commit_is_unavailable(
    server: Server,
) -> None:
    # The trigger makes the commit wait, so that the connection can be cut during it.
    ask(
        server.url,
        "create table slow (n int);"
        "create function wait() returns trigger language plpgsql as"
        " 'begin perform pg_sleep(30); return null; end';"
        "create constraint trigger slow after insert on slow deferrable initially deferred"
        " for each row execute function wait()",
    )
    with proxy_to(server.port) as proxy:
        async with connected(proxy.url()) as found:
            call = found.submit(
                Kind.WRITE, lambda tx: tx.execute("insert into public.slow values (1)"), ()
            )
            committing = (
                "select 1 from pg_stat_activity where query = 'COMMIT' and state = 'active'"
            )
            await until(lambda: ask(server.url, committing), "the commit to begin")
            proxy.cut()
            with pytest.raises(StoreUnavailable, match="unavailable"):
                await call
    ask(server.url, f"select pg_terminate_backend(pid, 5000) {COMMITTING}")


async def test_a_half_open_connection_is_given_up_at_the_deadline(server: Server) -> None:
    with proxy_to(server.port) as proxy:
        async with connected(f"{proxy.url()}?timeout=1") as found:
            await found.submit(Kind.READ, numbers, ())
            proxy.swallow()
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable, match="in time"):
                await found.submit(Kind.READ, numbers, ())
            assert time.monotonic() - begun < 5
            proxy.restore()
            await until(lambda: _reads(found), "the connection to be replaced")


async def _reads(found: Connections) -> bool:
    try:
        await found.submit(Kind.READ, numbers, ())
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize(
    "where", ["in a statement", "half-open", "connecting", "waiting for a lock"]
)
async def test_closing_ends_what_is_in_flight(server: Server, where: str) -> None:
    with proxy_to(server.port) as proxy:
        async with connected(proxy.url()) as found:
            if where in ("half-open", "connecting"):
                proxy.swallow()
            if where == "connecting":
                proxy.cut()
            work: Any = (
                (numbers, ()) if where in ("half-open", "connecting") else (sleep_s, (30.0,))
            )
            if where == "waiting for a lock":
                work = (_lock_twice, ())
            call = found.submit(Kind.WRITE, *work)
            await until(lambda: not found.requests, "the thread to take the call")
            begun = time.monotonic()
            await asyncio.to_thread(found.close)
            assert time.monotonic() - begun < 2
            with pytest.raises(StoreUnavailable):
                await call
    busy = "select 1 from pg_stat_activity where state = 'active' and pid <> pg_backend_pid()"
    await until(lambda: not ask(server.url, busy), "the server to end the statement")


def _lock_twice(tx: Tx) -> None:
    tx.execute("select pg_advisory_xact_lock(7)").fetchone()
    tx.execute("select pg_sleep(20)").fetchone()


async def test_a_statement_that_takes_too_long_is_unavailable_and_the_connection_stays(
    server: Server,
) -> None:
    async with connected(f"{server.url}?timeout=1") as found:
        first = await found.submit(Kind.READ, backend, ())
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            await found.submit(Kind.WRITE, sleep_s, (5.0,))
        assert await found.submit(Kind.READ, backend, ()) == first


async def test_a_server_without_free_connections_is_unavailable_until_one_is_free() -> None:
    servers.postgres_or_skip()
    with servers.running(
        {**FAST, "max_connections": "4", "superuser_reserved_connections": "0"}
    ) as small:
        async with connected(small.url) as one:
            taken = [psycopg.connect(small.url) for _ in range(3)]
            with pytest.raises(StoreUnavailable, match=r"too many clients|connection slots"):
                await connected(small.url).__aenter__()
            await one.submit(Kind.READ, backend, ())
            for each in taken:
                each.close()
            await until(lambda: _opens(small.url), "a connection to be free")


async def _opens(url: str) -> bool:
    try:
        async with connected(url):
            return True
    except StoreUnavailable:
        return False


async def test_two_calls_at_a_time_use_two_connections_once_the_handle_settles(
    server: Server,
) -> None:
    async with connected(server.url) as found:
        loop = asyncio.get_running_loop()

        def both(tx: Tx, barrier: asyncio.Barrier) -> int:
            asyncio.run_coroutine_threadsafe(barrier.wait(), loop).result(10)
            return backend(tx)

        found.settles = True
        barrier = asyncio.Barrier(2)
        pids = await asyncio.gather(*(found.submit(Kind.READ, both, (barrier,)) for _ in range(2)))
        assert len(set(pids)) == 2
        for _ in range(20):
            await asyncio.gather(*(found.submit(Kind.READ, backend, ()) for _ in range(4)))
        # The two of the handle, and the one that asks.
        ((n,),) = ask(
            server.url,
            "select count(*) from pg_stat_activity where backend_type = 'client backend'",
        )
        assert n <= 3


async def test_a_notice_reaches_the_mailbox_of_another_handle(server: Server) -> None:
    async with connected(server.url) as one, connected(server.url) as other:
        woken = other.box.wake("w1")

        def notify(tx: Tx) -> None:
            tx.notices.append(Notice(other.box.address, "work", "t", "q", "w1"))

        await one.submit(Kind.WRITE, notify, ())
        async with asyncio.timeout(10):
            await woken.wait()


async def test_a_handle_of_a_forked_parent_is_refused(server: Server) -> None:
    async with connected(server.url) as found:
        found._pid = os.getpid() + 1  # as a child sees it
        with pytest.raises(StoreUnavailable, match="forked"):
            found.submit(Kind.READ, numbers, ())


async def test_a_schema_of_another_program_is_refused(server: Server) -> None:
    ask(server.url, "create schema theirs; create table theirs.jobs (n int)")
    with pytest.raises(ConfigError, match="belongs to another program: it has 'jobs'"):
        async with connected(f"{server.url}?schema=theirs"):
            pass
