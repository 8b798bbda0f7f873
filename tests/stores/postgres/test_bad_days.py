"""A worker and a producer while their server misbehaves.

Nothing that was accepted is lost, the worker goes on by itself, and it can be stopped at any time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import psycopg
import pytest

from tests.stores.postgres import servers
from tests.stores.postgres.load import Load, load_on, stops_within
from tests.stores.postgres.proxy import Proxy, proxy_to
from tests.stores.postgres.servers import FAST, Server, ask
from tests.waiting import takes

OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where application_name = 'jobq' and pid <> pg_backend_pid()"
)


SLEEPERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(60)'"
    " and pid <> pg_backend_pid()"
)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own: the tests stop and kill it."""
    servers.postgres_or_skip()
    with servers.running({**FAST, "max_connections": "20"}) as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server."""
    with proxy_to(server.port) as found:
        yield found


async def test_backends_are_terminated_again_and_again(server: Server) -> None:
    async with load_on(server.url) as load:
        for _ in range(20):
            await asyncio.to_thread(ask, server.url, OTHERS)
            await takes(0.1)
        await load.goes_on()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL], ids=["fast", "kill"])
async def test_the_server_restarts(server: Server, sig: signal.Signals) -> None:
    async with load_on(server.url) as load:
        for _ in range(2):
            if sig is signal.SIGKILL:
                await asyncio.to_thread(server.kill)
            else:
                await asyncio.to_thread(server.stop, sig)
            await takes(0.5)
            await asyncio.to_thread(server.start)
            await load.goes_on()


async def test_connections_are_cut_again_and_again(proxy: Proxy) -> None:
    async with load_on(proxy.url()) as load:
        for _ in range(20):
            proxy.cut()
            await takes(0.1)
        await load.goes_on()


async def test_the_network_swallows_packets_for_a_while(proxy: Proxy) -> None:
    async with load_on(f"{proxy.url()}?timeout=1") as load:
        proxy.swallow()
        await takes(2.5)
        proxy.restore()
        await load.goes_on()


async def test_somebody_locks_the_tables_for_a_while(server: Server) -> None:
    async with load_on(server.url) as load:
        with psycopg.connect(server.url) as other:
            await asyncio.to_thread(other.execute, "lock table jobq.jobs in access exclusive mode")
            await takes(4.0)
            other.rollback()
        await load.goes_on()


async def test_others_take_all_connections_when_a_worker_has_lost_its_own(server: Server) -> None:
    async with load_on(server.url) as load:
        taken: list[psycopg.Connection[tuple[object, ...]]] = []
        await asyncio.to_thread(ask, server.url, OTHERS)
        for _ in range(40):
            try:
                taken.append(await asyncio.to_thread(psycopg.connect, server.url))
            except psycopg.OperationalError:
                await asyncio.to_thread(_terminate, taken[0])
        assert len(taken) > 10
        await takes(1.0)
        for each in taken:
            each.close()
        await load.goes_on()


def _terminate(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(OTHERS)
    connection.rollback()


async def _half_open(server: Server, proxy: Proxy) -> None:
    proxy.swallow()


async def _refused(server: Server, proxy: Proxy) -> None:
    proxy.refuse()


async def _frozen(server: Server, proxy: Proxy) -> None:
    await asyncio.to_thread(server.freeze)


async def _locked(server: Server, proxy: Proxy) -> None:
    # The server holds the lock itself, until it is stopped.
    locked = "lock table jobq.jobs in access exclusive mode; select pg_sleep(60)"
    asyncio.get_running_loop().run_in_executor(None, _until_the_end, server.url, locked)


def _until_the_end(url: str, statement: str) -> None:
    with suppress(psycopg.OperationalError):
        ask(url, statement)


@pytest.mark.parametrize("trouble", [_half_open, _refused, _frozen, _locked])
async def test_a_worker_can_be_stopped_meanwhile(
    server: Server, proxy: Proxy, trouble: Callable[[Server, Proxy], Awaitable[None]]
) -> None:
    found: list[Load] = []
    stopped = False
    try:
        async with load_on(f"{proxy.url()}?timeout=2") as load:
            found.append(load)
            await trouble(server, proxy)
            await takes(0.5)
            await stops_within(load.worker, 40.0)
            stopped = True
            raise _Enough
    except _Enough:
        pass
    finally:
        server.thaw()
        await asyncio.to_thread(ask, server.url, SLEEPERS)
    assert stopped


class _Enough(Exception):
    """The rest of the load does not matter."""
