"""Hints between servers on one PostgreSQL that cannot notify, through a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.server import hints as hints_module
from jobq.server.config import load
from jobq.server.context import ServerContext
from jobq.server.hints import Hints
from jobq.server.host import Host
from jobq.server.metrics import ServerMetrics
from jobq.server.plan import Plan, plan
from jobq.server.run import serving
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.postgres import mailbox
from scripts.postgres import FAST, Missing
from scripts.postgres import running as running_postgres
from tests.stores.valkey import servers
from tests.waiting import nothing_happens, until

QUEUE = QueueName("default", "mail")
NEVER_S = 3_600.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """PostgreSQL as one sees it behind PgBouncer in transaction mode: it cannot notify."""
    try:
        with running_postgres(FAST) as server:
            yield f"{server.url}?listen=no"
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def valkey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[servers.Server]:
    monkeypatch.setattr(hints_module, "_RETRY_S", (0.05, 0.05))
    with servers.running(servers.valkey_or_skip(), tmp_path) as server:
        yield server


def planned(url: str, valkey: servers.Server | None, **more: str) -> Plan:
    environment = {
        "JQ_URL": url,
        "JQ_GRPC_PORT": "0",
        "JQ_METRICS_PORT": "0",
        "JQ_HEALTH_PORT": "0",
        **({} if valkey is None else {"JQ_REDIS_ADDR": f"127.0.0.1:{valkey.port}"}),
        **more,
    }
    return plan(load(None, environment), environment)


@contextlib.asynccontextmanager
async def two_servers(found: Plan) -> AsyncIterator[tuple[Store, Store, Host]]:
    """The stores of two servers, as their clients see them, and the first server."""
    async with (
        serving(found) as first,
        serving(found) as second,
        open_store(f"grpc://127.0.0.1:{first.port}") as one,
        open_store(f"grpc://127.0.0.1:{second.port}") as other,
    ):
        yield one, other, first


async def claim(store: Store, call: str) -> bool:
    """Whether there was a job."""
    wanted = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
    settled = await store.settle([], worker="w", call=call, then=wanted)
    assert bool(settled.leases) is not settled.asleep
    return bool(settled.leases)


async def put(store: Store, id: str) -> None:
    await store.put([JobSpec(queue=QUEUE, id=id, name="n", payload=b"[[],{}]")])


def sleep(store: Store) -> asyncio.Task[bool]:
    async def sleeping() -> bool:
        return await store.sleep([QUEUE], worker="w", slots=1, timeout_ms=20_000)

    return asyncio.create_task(sleeping())


async def test_a_job_of_one_server_wakes_a_worker_of_another(
    postgres: str, valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "POLL_S", NEVER_S)  # only a hint can wake
    async with two_servers(planned(postgres, valkey)) as (one, other, _):
        await until(lambda: b"jobq:hints:" in valkey.tell("PUBSUB", "CHANNELS"), "a subscription")
        assert not await claim(one, "1")
        asleep = sleep(one)
        await nothing_happens(0.2, "the worker sleeps")
        await put(other, "woken")
        assert await asleep, "the hint did not arrive"
        assert await claim(one, "2")

        assert not await claim(one, "3")
        await put(other, "early")  # its hint comes before the worker sleeps
        assert await sleep(one)
        assert await claim(one, "4")


async def test_without_valkey_jobs_still_start_and_the_server_warns(
    postgres: str,
    valkey: servers.Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mailbox, "POLL_S", 0.5)
    caplog.set_level(logging.INFO, logger="jobq.server")
    with_metrics: list[ServerMetrics] = []
    attach = ServerMetrics.attach

    def attached(self: ServerMetrics, context: ServerContext) -> None:
        with_metrics.append(self)
        attach(self, context)

    monkeypatch.setattr(ServerMetrics, "attach", attached)
    async with two_servers(planned(postgres, valkey)) as (one, other, _):

        def says(value: int) -> bool:
            return f"jobq_hints_up {value}.0".encode() in with_metrics[0].text([])

        await until(lambda: says(1), "hints")
        valkey.kill()
        await until(lambda: says(0), "the metric")
        assert caplog.text.count("so jobs may start later") in (1, 2), "once for each server"
        for n in range(3):
            assert not await claim(one, f"a{n}")
            asleep = sleep(one)
            await put(other, f"slow{n}")
            assert await asleep, "the store itself wakes the worker when it looks"
            assert await claim(one, f"b{n}")
        assert caplog.text.count("so jobs may start later") == 2
        valkey.start()
        await until(lambda: says(1), "hints again")
        await until(lambda: "arrive again" in caplog.text, "the log")


async def test_a_frozen_valkey_delays_nothing(
    postgres: str, valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(postgres, valkey, JQ_REDIS_CONNECT_TIMEOUT_MS="500")
    async with two_servers(found) as (one, other, _):
        await until(lambda: b"jobq:hints:" in valkey.tell("PUBSUB", "CHANNELS"), "a subscription")
        valkey.freeze()
        async with asyncio.timeout(5):
            for n in range(20):
                await put(other, f"frozen{n}")
            while await claim(one, f"c{n}"):
                n += 1


# ── without servers ───────────────────────────────────────────────────────────────────────────────


async def test_a_hint_wakes_as_many_workers_as_it_has_jobs_and_the_last_sleepers_first() -> None:
    hints = Hints("valkey://nowhere", "c")
    with contextlib.ExitStack() as stack:
        bells = [stack.enter_context(hints.wakes([QUEUE], 2)) for _ in range(4)]
        hints._received([b"message", b"c", hints_module._encode(("other", [(QUEUE, 3)]))])
        assert [bell.is_set() for bell in bells] == [False, False, True, True]
        hints._received([b"message", b"c", hints_module._encode((hints._name, [(QUEUE, 3)]))])
        hints._received([b"message", b"c", b"something else"])
        assert not bells[0].is_set(), "a server does not listen to itself"
    assert not hints._sleeping


async def test_one_worker_is_woken_if_the_store_wakes_the_others() -> None:
    hints = Hints("valkey://nowhere", "c", at_most=1)
    with hints.wakes([QUEUE], 1) as first, hints.wakes([QUEUE], 1) as second:
        hints._received([b"message", b"c", hints_module._encode(("other", [(QUEUE, 9)]))])
        assert [first.is_set(), second.is_set()] == [False, True]


@pytest.mark.parametrize(
    ("url", "alone"),
    [("postgresql://h/db", False), ("postgresql://h/db?schema=x&listen=no", True)],
)
def test_the_plan_says_whether_hints_are_the_only_way(url: str, alone: bool) -> None:
    found = planned(url, None, JQ_REDIS_ADDR="cache.example:6380", JQ_REDIS_PASSWORD="p@ss").hints
    assert found is not None
    assert found.url == "valkey://:p%40ss@cache.example:6380/0"
    assert (found.channel, found.alone) == ("jobq:hints:db", alone)
