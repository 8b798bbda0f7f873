"""A caller that waits for a job, while the server of its store restarts: the wait goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from jobq import Queue, QueueClosed, State, StoreUnavailable, WaitTimeout, Worker
from jobq.client import deadlines, waiting
from tests.stores.postgres import servers as postgres
from tests.stores.valkey import servers as valkey
from tests.waiting import PATIENCE_S, until


class Restartable(Protocol):
    @property
    def url(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...


@contextmanager
def _valkey(tmp: Path) -> Iterator[Restartable]:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey.running(valkey.valkey_or_skip(), tmp, *options) as server:
        yield server


@contextmanager
def _postgres(tmp: Path) -> Iterator[Restartable]:
    postgres.postgres_or_skip()
    with postgres.running(postgres.FAST) as server:
        yield server


@pytest.fixture(params=["valkey", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restartable]:
    """A server of its own, with data that survives it."""
    opened = _valkey if request.param == "valkey" else _postgres
    with opened(tmp_path) as running:
        yield running


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller reads the job all the time, so that it meets every outage."""
    monkeypatch.setattr(deadlines, "CHECK_AGAIN_S", 0.05)


def doubling(url: str) -> Queue:
    queue = Queue("work", url)

    @queue.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    return queue


def _noticed(caplog: pytest.LogCaptureFixture, times: int, what: str) -> bool:
    return sum(f"goes on, its store {what}" in text for text in caplog.messages) >= times


@pytest.mark.parametrize("how", ["result", "call"])
async def test_a_wait_survives_two_restarts(
    server: Restartable, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobq")
    async with doubling(server.url) as queue:
        double = queue.task_by_name("double")
        if how == "result":
            job = await double.enqueue(4)
            waited = asyncio.create_task(job.result(timeout=90))
        else:
            waited = asyncio.create_task(double.options(call_timeout=90).call(4))
            await until(lambda: _stored(queue), "the job")
        for n in (1, 2):
            await asyncio.to_thread(server.kill)
            await until(partial(_noticed, caplog, n, "is unavailable"), "the caller to notice")
            await asyncio.to_thread(server.start)
            await until(partial(_noticed, caplog, n, "works again"), "the caller to go on")
        async with Worker(queue, concurrency=1):
            assert await asyncio.wait_for(waited, PATIENCE_S) == 8


async def _stored(queue: Queue) -> bool:
    return bool((await queue.stats()).counts[State.WAITING])


async def test_a_wait_that_times_out_in_an_outage_says_so(server: Restartable) -> None:
    async with doubling(server.url) as queue:
        job = await queue.task_by_name("double").enqueue(4)
        await asyncio.to_thread(server.kill)
        with pytest.raises(WaitTimeout, match="store is unavailable") as caught:
            await job.result(timeout=0.5)
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        await asyncio.to_thread(server.start)


async def test_a_wait_without_a_timeout_ends_with_a_long_outage(
    server: Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_OUTAGE_S", 0.2)
    async with doubling(server.url) as queue:
        job = await queue.task_by_name("double").enqueue(4)
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable):
            await job.result()
        await asyncio.to_thread(server.start)


async def test_closing_the_queue_ends_a_wait_in_an_outage(
    server: Restartable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobq")
    queue = doubling(server.url)
    job = await queue.task_by_name("double").enqueue(4)
    waited = asyncio.create_task(job.result(timeout=90))
    await asyncio.to_thread(server.kill)
    await until(partial(_noticed, caplog, 1, "is unavailable"), "the caller to notice")
    await queue.aclose()
    with pytest.raises(QueueClosed):
        await asyncio.wait_for(waited, PATIENCE_S)
    await asyncio.to_thread(server.start)
