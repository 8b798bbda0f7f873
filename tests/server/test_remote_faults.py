"""grpc:// when the server or the network between goes away: callers and workers go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, Worker
from jobq.access.guarded.store import GuardedStore
from jobq.core.records.jobs import (
    Claim,
    Filter,
    JobKey,
    JobRecord,
    JobSpec,
    PutResult,
    QueueName,
    Topic,
)
from jobq.core.records.states import State
from jobq.errors import ConfigError, PayloadTooLarge, StoreUnavailable
from jobq.rpc import frames
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.exchange import ExchangeService
from jobq.server.host import Host
from jobq.stores import open_store
from jobq.stores.base import Store, pipeline_of
from tests.server.processes import ServerProcess, server_process
from tests.stores.postgres.proxy import Proxy, proxy_to
from tests.waiting import PATIENCE_S, blocks, nothing_happens, takes, until, until_it_succeeds

BEAT_MS, DEAF_MS = 200, 2_000
"""Much shorter than in production, so that tests are."""
QUEUE = QueueName("default", "work")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(
        f"sqlite:///{tmp_path}/jobs.db", beat_ms=BEAT_MS, deaf_ms=DEAF_MS
    ) as process:
        yield process


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[Proxy]:
    with proxy_to(server.port) as proxy:
        yield proxy


def spec(id: str, payload: bytes = b"[[1],{}]") -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="double", payload=payload)


def doubling(url: str) -> Queue:
    queue = Queue("work", url)

    @queue.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    return queue


@asynccontextmanager
async def working(url: str) -> AsyncIterator[Queue]:
    """An open queue with a worker in this process."""
    async with doubling(url) as queue, Worker(queue, concurrency=5):
        yield queue


async def doubled(queue: Queue, n: int) -> int:
    """The result of a new job. Its put may be in flight when a server is killed: it is repeated."""
    task = queue.task_by_name("double").options(id=f"double-{n}")
    job = await until_it_succeeds(lambda: task.enqueue(n), StoreUnavailable, "a server")
    found: int = await job.result(timeout=PATIENCE_S)
    return found


async def test_a_worker_goes_on_when_its_server_was_killed(server: ServerProcess) -> None:
    async with working(server.url) as queue:
        assert await doubled(queue, 1) == 2
        await asyncio.to_thread(server.restart)
        assert await doubled(queue, 2) == 4


async def test_a_caller_that_waits_hears_of_an_end_after_the_restart(
    server: ServerProcess,
) -> None:
    async with doubling(server.url) as queue:
        job = await queue.task_by_name("double").enqueue(4)
        waiting = asyncio.create_task(job.result(timeout=PATIENCE_S))
        await nothing_happens(0.1, "the caller listens by then")
        await asyncio.to_thread(server.restart)
        async with Worker(queue, concurrency=1):
            assert await waiting == 8


async def test_a_call_in_flight_fails_when_the_server_is_killed(server: ServerProcess) -> None:
    async with open_store(server.url) as store:
        await store.put([spec("a")])
        await store.settle([], worker="w", call="1", then=None)
        sleeping = asyncio.create_task(store.sleep([QUEUE], worker="w", slots=1, timeout_ms=60_000))
        await nothing_happens(0.2, "the call has arrived by then")
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable, match=r"grpc://127\.0\.0\.1"):
            await asyncio.wait_for(sleeping, PATIENCE_S)


async def test_a_read_is_repeated_on_the_next_stream(server: ServerProcess) -> None:
    async with open_store(server.url) as store:
        await store.put([spec("a")])
        await asyncio.to_thread(server.kill)
        reading = asyncio.create_task(store.get([JobKey(QUEUE, "a")]))
        await nothing_happens(0.1, "the read waits for a server by then")
        await asyncio.to_thread(server.start)
        (record,) = await asyncio.wait_for(reading, PATIENCE_S)
        assert record is not None


async def test_calls_fail_in_time_when_no_server_comes_back(server: ServerProcess) -> None:
    async with open_store(f"{server.url}?timeout=0.5") as store:
        await store.put([spec("a")])
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable, match=r"(?i)unavailable"):
            await asyncio.wait_for(store.put([spec("b")]), PATIENCE_S)


async def test_the_next_server_of_the_list_is_used(server: ServerProcess, tmp_path: Path) -> None:
    # Both have the same store. The list begins at a random server.
    with server_process(f"sqlite:///{tmp_path}/jobs.db") as other:
        url = f"grpc://127.0.0.1:{server.port},127.0.0.1:{other.port}"
        async with working(url) as queue:
            assert await doubled(queue, 1) == 2
            await asyncio.to_thread(server.kill)
            assert await doubled(queue, 2) == 4
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(other.kill)
            assert await doubled(queue, 3) == 6


async def test_a_deaf_connection_is_replaced(server: ServerProcess, proxy: Proxy) -> None:
    async with working(f"grpc://127.0.0.1:{proxy.port}?timeout=8") as queue:
        assert await doubled(queue, 1) == 2
        before = proxy.opened
        proxy.swallow()
        # Nothing tells the client: no reset, no end of the stream. Its beats get no reply.
        await until(lambda: proxy.opened > before, "a new connection")
        proxy.restore()
        assert await doubled(queue, 2) == 4


async def test_a_deaf_connection_that_carries_no_call_is_replaced_too(
    server: ServerProcess, proxy: Proxy
) -> None:
    # No call runs into its timeout: only the missing beats show that nothing arrives.
    async with (
        open_store(f"grpc://127.0.0.1:{proxy.port}?timeout=120") as store,
        store.listen([Topic("log", QUEUE, None)]) as signals,
    ):
        before = proxy.opened
        proxy.swallow()
        await until(lambda: proxy.opened > before, "a new connection")
        # The try that began while the proxy was deaf ends with its own deadline. Cut it short.
        proxy.restore()
        proxy.cut()
        assert (await asyncio.wait_for(anext(signals), PATIENCE_S)).kind == "log"


async def test_beats_keep_a_stream_from_being_idle(server: ServerProcess, proxy: Proxy) -> None:
    async with open_store(f"grpc://127.0.0.1:{proxy.port}") as store:
        await store.count(QUEUE)
        before = proxy.opened
        silence = await proxy_silence(proxy, seconds=3.0)
        assert silence < DEAF_MS / 1000
        assert proxy.opened == before


async def proxy_silence(proxy: Proxy, seconds: float) -> float:
    """The longest time in which no byte passed, as a proxy that cuts idle streams sees it."""
    loop = asyncio.get_running_loop()
    end, longest, last, seen = loop.time() + seconds, 0.0, loop.time(), proxy.passed
    while (now := loop.time()) < end:
        if proxy.passed != seen:
            seen, last = proxy.passed, now
        longest = max(longest, now - last)
        await nothing_happens(0.02, "more bytes pass meanwhile")
    return longest


async def test_a_blocked_event_loop_does_not_look_like_a_dead_client(
    server: ServerProcess, proxy: Proxy
) -> None:
    async with open_store(f"grpc://127.0.0.1:{proxy.port}") as store:
        await store.count(QUEUE)
        before = proxy.opened
        blocks(2 * DEAF_MS / 1000)
        await store.count(QUEUE)
        assert proxy.opened == before


async def test_closing_works_while_the_server_is_deaf(server: ServerProcess, proxy: Proxy) -> None:
    store = open_store(f"grpc://127.0.0.1:{proxy.port}")
    await store.migrate()
    proxy.swallow()
    call = asyncio.create_task(store.put([spec("a")]))
    await nothing_happens(0.05, "the call is in flight by then")
    await asyncio.wait_for(store.aclose(), 2)
    with pytest.raises(StoreUnavailable, match="closed"):
        await call


async def test_closing_works_while_no_server_is_there(server: ServerProcess) -> None:
    store = open_store(server.url)
    await store.migrate()
    await asyncio.to_thread(server.kill)
    call = asyncio.create_task(store.put([spec("a")]))
    await nothing_happens(0.2, "the client tries to connect by then")
    await asyncio.wait_for(store.aclose(), 2)
    with pytest.raises(StoreUnavailable):
        await call


async def test_a_hello_without_a_reply_ends_in_time(server: ServerProcess, proxy: Proxy) -> None:
    proxy.swallow()
    store = open_store(f"grpc://127.0.0.1:{proxy.port}?timeout=0.5")
    with pytest.raises(StoreUnavailable, match="no reply"):
        await asyncio.wait_for(store.migrate(), PATIENCE_S)
    await store.aclose()


async def test_a_server_that_is_not_there_is_named() -> None:
    store = open_store("grpc://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match=r"grpc://127\.0\.0\.1:1"):
        await asyncio.wait_for(store.migrate(), PATIENCE_S)
    await store.aclose()


def test_a_forked_child_opens_its_own_connection(server: ServerProcess) -> None:
    program = textwrap.dedent(f"""
        import asyncio, os, sys
        from jobq import Queue
        queue = Queue("work", {server.url!r})
        @queue.task
        async def double(n: int) -> int:
            return 2 * n
        async def put(n):
            async with queue:
                await double.enqueue(n)
                if n == 1 and not os.fork():
                    return True
        if asyncio.run(put(1)) is None:
            pid, status = os.wait()
            sys.exit(status)
        else:
            asyncio.run(put(2))
            os._exit(0)
    """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_forked_child_that_uses_the_parents_handle_is_told_at_once(
    server: ServerProcess,
) -> None:
    program = textwrap.dedent(f"""
        import asyncio, os, sys
        from jobq.errors import ConfigError
        from jobq.stores import open_store
        async def main():
            async with open_store({server.url!r}) as store:
                if not (pid := os.fork()):
                    try:
                        asyncio.run(asyncio.wait_for(store.queues(), 3))
                    except ConfigError:
                        os._exit(0)
                    except BaseException:
                        os._exit(1)
                return os.waitpid(pid, 0)[1]
        sys.exit(asyncio.run(main()) != 0)
    """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_handle_that_is_used_in_another_event_loop_says_so(server: ServerProcess) -> None:
    store = open_store(server.url)
    home = asyncio.new_event_loop()
    home.run_until_complete(store.migrate())
    with pytest.raises(ConfigError, match="opened in another event loop"):
        asyncio.run(asyncio.wait_for(store.queues(), 3))
    home.run_until_complete(store.aclose())
    home.close()


# ── a server in the test's own process ──


@asynccontextmanager
async def hosted(
    name: str, guard: type[GuardedStore] = GuardedStore
) -> AsyncIterator[tuple[Host, Store]]:
    async with open_store(f"memory://{name}") as store:
        context = ServerContext(store, ServerSettings(grpc_port=0, upkeep=False))
        context.guard = guard
        async with Host(context, [ExchangeService]) as host:
            yield host, store


async def test_a_clock_is_refused_by_a_server_that_is_not_for_tests() -> None:
    async with hosted("remote-clock") as (host, _):
        store = open_store(f"grpc://127.0.0.1:{host.port}", clock=lambda: 0)
        with pytest.raises(ConfigError, match="only the clock of the server counts"):
            await store.migrate()
        await store.aclose()


async def test_a_stopping_server_lets_calls_end_and_wakes_those_that_wait() -> None:
    async with (
        hosted("remote-stopping") as (host, _),
        open_store(f"grpc://127.0.0.1:{host.port}?timeout=5") as store,
    ):
        await store.put([spec("a")])
        sleeping = asyncio.create_task(store.sleep([QUEUE], worker="w", slots=1, timeout_ms=60_000))
        async with store.listen([Topic("ended", QUEUE, "a")]):
            await asyncio.wait_for(host.stop(5), 4)
            with pytest.raises(StoreUnavailable, match="stopped"):
                await sleeping


async def test_the_end_of_a_stream_releases_no_lease() -> None:
    async with hosted("remote-leases") as (host, behind):
        (service,) = host.services
        assert isinstance(service, ExchangeService)
        async with open_store(f"grpc://127.0.0.1:{host.port}") as store:
            await store.put([spec("a")])
            claim = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
            settled = await store.settle([], worker="w", call="1", then=claim)
            assert len(settled.leases) == 1
        await until(lambda: not service.streams, "the end of the stream")
        (record,) = await behind.get([JobKey(QUEUE, "a")])
        assert record is not None
        assert record.state is State.ACTIVE


async def test_a_claim_repeated_over_another_stream_gets_the_same_lease() -> None:
    async with hosted("remote-repeats") as (host, _):
        claim = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
        replies = []
        for _ in range(2):
            async with open_store(f"grpc://127.0.0.1:{host.port}") as store:
                await store.put([spec("a")])
                replies.append(await store.settle([], worker="w", call="1", then=claim))
        assert replies[0].leases
        assert replies[0] == replies[1]


async def test_jobs_that_are_larger_than_a_packet_together_are_claimed_and_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PACKET", 2 << 20)
    async with (
        hosted("remote-large") as (host, behind),
        open_store(f"grpc://127.0.0.1:{host.port}?timeout=10") as store,
    ):
        await behind.put([spec(f"{n}", payload=b"x" * 900_000) for n in range(4)])
        assert len((await store.find(Filter(queue=QUEUE))).records) == 4
        claim = Claim(queues=(QUEUE,), limit=10, lease_ms=60_000)
        assert len((await store.settle([], worker="w", call="1", then=claim)).leases) == 4


async def test_a_call_that_is_larger_than_a_packet_is_refused_and_no_other_call_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PACKET", 2 << 20)
    async with (
        hosted("remote-too-large") as (host, _),
        open_store(f"grpc://127.0.0.1:{host.port}?timeout=10") as store,
    ):
        sleeping = asyncio.create_task(store.sleep([QUEUE], worker="w", slots=1, timeout_ms=2_000))
        with pytest.raises(PayloadTooLarge, match="send fewer"):
            await store.put([spec(f"{n}", payload=b"x" * 900_000) for n in range(4)])
        await store.put([spec("small")])
        assert await sleeping in (True, False)


async def test_a_put_waits_until_the_server_expects_its_job() -> None:
    order: list[str] = []

    class Slow(GuardedStore):
        @asynccontextmanager
        async def expect(self, job: JobKey) -> AsyncIterator[AsyncIterator[JobRecord | None]]:
            await takes(0.1)
            async with super().expect(job) as ends:
                order.append("expect")
                yield ends

        async def put(self, *args: Any, **kwargs: Any) -> list[PutResult]:
            order.append("put")
            return await super().put(*args, **kwargs)

    async with (
        hosted("remote-expect", Slow) as (host, _),
        open_store(f"grpc://127.0.0.1:{host.port}") as store,
    ):
        pipeline = pipeline_of(store)
        assert pipeline is not None
        async with pipeline.expect(JobKey(QUEUE, "a")):
            await store.put([spec("a")])
        assert order == ["expect", "put"]
