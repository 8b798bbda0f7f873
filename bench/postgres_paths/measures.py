"""What is measured with and without a mechanism, in seconds per operation."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg

from bench.adapter import PAYLOAD
from bench.places import Postgres
from jobq import Queue, Worker, transaction
from jobq.core.records.jobs import Claim, Complete, JobKey, JobSpec, QueueName
from jobq.errors import JobqError
from jobq.stores import open_store
from jobq.stores.base import Store

NAME = QueueName("default", "bench")
REQUESTS = 300
"""Jobs whose result a caller waits for, one at a time."""
READ = 100
"""Jobs that one call reads."""
HANDLES = 4
"""Processes that use one queue at the same time, as handles of one process."""
EACH = 100
"""Calls of each of them."""


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int
    jobs: int
    dead: int
    sleeps: int


def _queue(url: str, mode: Literal["plain", "keyed"] = "plain") -> tuple[Queue, Any, list[float]]:
    """A queue, its task, and when its handler was called."""
    queue = Queue("bench", url, mode=mode)
    calls: list[float] = []

    async def noop(payload: str, key: str) -> int:
        calls.append(time.perf_counter())
        return 42

    return queue, queue.task(key="key")(noop) if mode == "keyed" else queue.task(noop), calls


async def _drain(
    where: Postgres, n: int, mode: Literal["plain", "keyed"] = "plain", concurrency: int = 100
) -> float:
    queue, task, calls = _queue(where.url, mode)
    async with queue:
        await task.enqueue_many((PAYLOAD, str(each % 50)) for each in range(n + n // 10 + 100))
        where.filled()
        async with Worker(queue, concurrency=concurrency):
            while len(calls) < n:
                await asyncio.sleep(0.02)
    return (calls[n - 1] - calls[0]) / n


async def drain(where: Postgres, size: Sizes) -> float:
    return await _drain(where, size.jobs)


async def drain_cpu(where: Postgres, size: Sizes) -> float:
    """The same in processor time of the worker and the server, which other programs do not change.

    It includes the enqueueing."""
    began = _cpu_s(where)
    await _drain(where, size.jobs)
    return (_cpu_s(where) - began) / size.jobs


def _cpu_s(where: Postgres) -> float:
    """Seconds of processor time that this process and all processes of the server have used."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *rest = path.read_text().rpartition(")")[2].split()
            if int(parent) == where.server.pid or int(path.parent.name) == where.server.pid:
                ticks += sum(map(int, rest[9:13]))  # its own time, and that of ended children
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def keyed(where: Postgres, size: Sizes) -> float:
    return await _drain(where, size.jobs // 4, "keyed")


async def bulk(where: Postgres, size: Sizes) -> float:
    queue, task, _ = _queue(where.url)
    async with queue:
        await task.enqueue(PAYLOAD, "")
        began = time.perf_counter()
        await task.enqueue_many((PAYLOAD, "") for _ in range(size.jobs * 2))
        return (time.perf_counter() - began) / (size.jobs * 2)


async def single(where: Postgres, size: Sizes) -> float:
    queue, task, _ = _queue(where.url)
    took = []
    async with queue:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            await task.enqueue(PAYLOAD, "")
            took.append(time.perf_counter() - began)
    return statistics.median(took)


async def request(where: Postgres, size: Sizes) -> float:
    """A caller waits for the result of a job, whose worker is idle in another process."""
    queue, task, _ = _queue(where.url)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(where.url,))
    process.start()
    took = []
    try:
        async with queue:
            for _ in range(REQUESTS):
                began = time.perf_counter()
                await task.options(call_timeout=30).call(PAYLOAD, "")
                took.append(time.perf_counter() - began)
    finally:
        process.kill()
        process.join()
    return statistics.median(took[REQUESTS // 10 :])


def _work(url: str) -> None:
    queue, _, _ = _queue(url)

    async def run() -> None:
        async with queue:
            await Worker(queue, concurrency=10).run()

    asyncio.run(run())


async def get(where: Postgres, size: Sizes) -> float:
    took = []
    async with open_store(where.url) as store:
        put = await store.put(new_jobs(READ))
        keys = [JobKey(NAME, each.id) for each in put]
        for _ in range(EACH):
            began = time.perf_counter()
            await store.get(keys)
            took.append(time.perf_counter() - began)
    return statistics.median(took)


async def producers(where: Postgres, size: Sizes) -> float:
    """Several producers put single jobs into one queue at the same time."""

    async def put(store: Store) -> None:
        for _ in range(EACH):
            await store.put(new_jobs(1))

    return await _side_by_side(where, put)


async def workers(where: Postgres, size: Sizes) -> float:
    """Several workers run single jobs of one queue at the same time."""

    async def work(store: Store) -> None:
        worker = uuid.uuid4().hex
        done: list[Complete] = []
        for n in range(EACH):
            claim = Claim(queues=(NAME,), limit=1, lease_ms=60_000)
            settled = await store.settle(done, worker=worker, call=f"call {n}", then=claim)
            done = [
                Complete(queue=NAME, id=lease.id, token=lease.token, result=b"42")
                for lease in settled.leases
            ]

    async with open_store(where.url) as store:
        await store.put(new_jobs(HANDLES * EACH * 2))
    where.filled()
    return await _side_by_side(where, work)


async def _side_by_side(where: Postgres, use: Callable[[Store], Awaitable[None]]) -> float:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_store(where.url)) for _ in range(HANDLES)]
        began = time.perf_counter()
        await asyncio.gather(*map(use, opened))
        return (time.perf_counter() - began) / (HANDLES * EACH)


async def beside(where: Postgres, size: Sizes) -> float:
    """Enqueue in a transaction while another one that has enqueued is open."""
    queue, task, _ = _queue(where.url)
    async with queue:
        await task.enqueue(PAYLOAD, "")
        with psycopg.connect(where.url) as first, psycopg.connect(where.url) as second:
            with transaction(first):
                await task.enqueue(PAYLOAD, "")
            began = time.perf_counter()
            with suppress(JobqError), transaction(second):  # it waits for a lock in vain
                await task.enqueue(PAYLOAD, "")
            return time.perf_counter() - began


def new_jobs(n: int) -> list[JobSpec]:
    """Jobs for calls of a store."""
    return [JobSpec(queue=NAME, id=uuid.uuid4().hex, name="noop", payload=b"[]") for _ in range(n)]


MEASURES: Mapping[str, tuple[str, Callable[[Postgres, Sizes], Coroutine[Any, Any, float]]]] = {
    "drain": ("drain at concurrency 100, per job", drain),
    "cpu": ("processor time of that drain, per job", drain_cpu),
    "keyed": ("drain of a keyed queue, per job", keyed),
    "bulk": ("enqueue in bulk, per job", bulk),
    "single": ("enqueue one job", single),
    "request": ("enqueue to result of one job", request),
    "producers": (f"enqueue one job, {HANDLES} producers", producers),
    "workers": (f"run one job, {HANDLES} workers", workers),
    "get": (f"read {READ} jobs", get),
    "beside": ("enqueue beside an open transaction", beside),
}
