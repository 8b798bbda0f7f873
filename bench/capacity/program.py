"""The processes that make load: a producer, a worker, or a fleet of idle workers.

    python -m bench.capacity.program SETTINGS

The process prints a line when it is ready. Each line of its standard input is a command in JSON,
and each reply is a line of JSON. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from random import Random
from typing import Any

import msgspec

from jobq import Queue, Worker
from jobq.core.records.jobs import Claim, Complete, JobSpec, Lease, LeaseRef, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.relay.files import FilesTarget
from jobq.relay.relay import Relay
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.valkey.keys import Space, counters

_calls = count()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is."""

    url: str
    queue: str = "load"
    partitions: int = 1
    workers: int = 0  # 0: a producer
    concurrency: int = 100
    run_s: float = 0.0
    result: int = 2


class Producer:
    """Puts jobs by the public API, and calls the store itself for costs of single calls."""

    go: Callable[[], Awaitable[Any]]

    def __init__(self, queue: Queue, store: Store, url: str) -> None:
        self.queue, self.store, self.url = queue, store, url
        self.work = queue.task_by_name("work")
        self.name = QueueName("default", queue.name)

    async def put(self, n: int, batch: int = 1, payload: int = 100) -> dict[str, Any]:
        """Put n jobs, `batch` at a time, one call after the other."""
        text, began = "x" * payload, time.process_time()
        for start in range(0, n, batch):
            if batch == 1:
                await self.work.enqueue(text)
            else:
                await self.work.enqueue_many([(text,)] * min(batch, n - start))
        return {"cpu_us": (time.process_time() - began) * 1e6}

    async def pace(
        self, rate: float, n: int, payload: int = 100, batch: int = 1, random: bool = False
    ) -> dict[str, Any]:
        """Put n jobs at a rate, each alone or `batch` together, evenly or at random times."""
        times = [start / rate for start in range(0, n, batch)]
        if random:
            drawn = Random(n)
            times = sorted(drawn.uniform(0, n / rate) for _ in times)
        text, began = "x" * payload, time.monotonic()
        tasks: list[asyncio.Future[Any]] = []
        for start, at in zip(range(0, n, batch), times, strict=True):
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            put = (
                self.work.enqueue(text)
                if batch == 1
                else self.work.enqueue_many([(text,)] * min(batch, n - start))
            )
            tasks.append(asyncio.ensure_future(put))
        await asyncio.gather(*tasks)
        return {"seconds": time.monotonic() - began}

    async def pause(self, paused: bool) -> dict[str, Any]:
        """Pause or resume the queue."""
        await (self.queue.pause() if paused else self.queue.resume())
        return {}

    async def completed(self, n: int) -> dict[str, Any]:
        """Wait until n jobs have completed."""
        while (await self.queue.counts())["completed"] < n:  # type: ignore[index]
            await asyncio.sleep(0.1)
        return {}

    # ── calls of the store ──

    async def exchange(self, n: int, batch: int, payload: int = 100) -> dict[str, Any]:
        """Settle `batch` jobs and claim as many in each of n calls."""
        queue = QueueName("default", "exchange")
        await self._fill(queue, (n + 1) * batch, payload)
        leases: Sequence[Lease] = await self._take(queue, batch)
        times, began = [], time.process_time()
        for _ in range(n):
            at = time.perf_counter()
            leases = await self._take(queue, batch, leases)
            times.append(time.perf_counter() - at)
        used = time.process_time() - began
        await self._take(queue, 0, leases)
        return {"ms": statistics.median(times) * 1000, "cpu_us": used * 1e6}

    async def cycle(self, n: int, partitions: int = 1, handles: int = 8) -> dict[str, Any]:
        """The calls of n sparse jobs: put, claim, look for more, settle. Several handles at once,
        each with its own queue, so that the server is busy."""
        url = self.url

        async def one(number: int, jobs: int) -> None:
            queue = QueueName("default", f"cycle-{partitions}-{number}")
            async with open_store(url) as store:
                if partitions > 1:
                    await store.declare(queue, QueueConfig(partitions=partitions))
                for _ in range(jobs):
                    await store.put([_spec(queue, 100)])
                    leases = await self._take(queue, 10, store=store, worker=f"c{number}")
                    await self._take(queue, 9, store=store, worker=f"c{number}")
                    await self._take(queue, 10, leases, store=store, worker=f"c{number}")

        await asyncio.gather(*(one(number, 1) for number in range(handles)))  # not measured
        self.go = lambda: asyncio.gather(*(one(k, n // handles) for k in range(handles)))
        return {}

    async def peek(self, n: int, width: int, handles: int = 8) -> dict[str, Any]:
        """Read counters, `width` at a time, as a worker of a partitioned Valkey queue does."""
        url, key = self.url, counters(Space().prefix(self.name))

        async def one() -> None:
            async with open_store(url) as store:
                servers: Any = store.servers  # type: ignore[attr-defined]
                for _ in range(n // handles):
                    await servers.get_all([key] * width)

        self.go = lambda: asyncio.gather(*(one() for _ in range(handles)))
        return {}

    async def run(self) -> dict[str, Any]:
        """Do what the last command has prepared."""
        await self.go()
        return {}

    async def store_put(self, n: int, batch: int, payload: int = 100) -> dict[str, Any]:
        """Put jobs by the store's own call."""
        queue, began = QueueName("default", "store-put"), time.process_time()
        for _ in range(n // batch):
            await self.store.put([_spec(queue, payload) for _ in range(batch)])
        return {"cpu_us": (time.process_time() - began) * 1e6}

    async def lease(self, n: int) -> dict[str, Any]:
        """Claim n jobs, to be renewed."""
        queue = QueueName("default", "renewed")
        await self._fill(queue, n, 100)
        self.leases = [
            LeaseRef(lease.queue, lease.id, lease.token) for lease in await self._take(queue, n)
        ]
        return {}

    async def renew(self, times: int) -> dict[str, Any]:
        """Renew all leases."""
        for _ in range(times):
            await self.store.extend(self.leases, lease_ms=60_000)
        return {}

    async def make_queues(self, n: int) -> dict[str, Any]:
        """Make queues with a job each."""
        for number in range(n):
            await self.store.put([_spec(QueueName("default", f"queue-{number}"), 100)])
        return {}

    async def tick(self, times: int) -> dict[str, Any]:
        """Run passes of upkeep."""
        for _ in range(times):
            await self.store.tick(limit=500)
        return {}

    async def schedules(self, times: int) -> dict[str, Any]:
        """Look for due schedules."""
        for _ in range(times):
            await self.store.list_schedules(due=True, limit=100)
        return {}

    async def register(self) -> dict[str, Any]:
        """Register a reader, so that the store keeps events."""
        await self.store.ack_events(self.name, "relay", "0")
        return {}

    async def relay(self) -> dict[str, Any]:
        """Ship the events of all queues to files."""
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            target = FilesTarget(f"files://{folder}")
            await target.open()
            began = time.process_time()
            events = await Relay(self.store, target).drain()
            used = time.process_time() - began
            await target.aclose()
            size = sum(
                os.path.getsize(os.path.join(folder, name))
                for name in os.listdir(folder)
                if os.path.isfile(os.path.join(folder, name))
            )
        return {"events": events, "cpu_us": used * 1e6, "bytes": size}

    async def _fill(self, queue: QueueName, n: int, payload: int) -> None:
        for start in range(0, n, 1000):
            some = min(1000, n - start)
            await self.store.put([_spec(queue, payload) for _ in range(some)])

    async def _take(
        self,
        queue: QueueName,
        limit: int,
        leases: Sequence[Lease] = (),
        *,
        store: Store | None = None,
        worker: str = "bench",
    ) -> Sequence[Lease]:
        outcomes = [
            Complete(queue=lease.queue, id=lease.id, token=lease.token, result=b"42")
            for lease in leases
        ]
        claim = Claim(queues=(queue,), limit=limit, lease_ms=60_000, alone=False) if limit else None
        call = f"x{os.getpid()}.{next(_calls)}"
        found = await (store or self.store).settle(outcomes, worker=worker, call=call, then=claim)
        return found.leases


def _spec(queue: QueueName, payload: int) -> JobSpec:
    data = msgspec.json.encode([["x" * payload], {}])
    return JobSpec(queue=queue, id=f"{os.getpid()}-{next(_calls)}", name="work", payload=data)


class Crew:
    """One worker, or many that have nothing to do."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.done = self.exchanges = 0

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the workers."""
        given = self.settings
        for number in range(given.workers):
            queue = Queue(given.queue, given.url, partitions=given.partitions)
            queue.task(name="work")(self._work)
            store = await (await stack.enter_async_context(queue))._context.store()
            if number == 0:
                self._count(store)
            worker = Worker(queue, concurrency=given.concurrency, name=f"w{os.getpid()}-{number}")
            await stack.enter_async_context(worker)

    async def _work(self, payload: str) -> str:
        if self.settings.run_s:
            await asyncio.sleep(self.settings.run_s)
        self.done += 1
        return "x" * (self.settings.result - 2)  # with the quotes of JSON

    def _count(self, store: Store) -> None:
        settle = store.settle

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.exchanges += 1
            return await settle(*args, **kwargs)

        store.settle = counted  # type: ignore[method-assign]

    async def report(self) -> dict[str, Any]:
        """What the process has done so far."""
        used = time.process_time() * 1e6
        return {"done": self.done, "exchanges": self.exchanges, "cpu_us": used}

    async def until(self, n: int) -> dict[str, Any]:
        """Wait until n jobs have run and are probably settled, and report."""
        while self.done < n:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        return await self.report()


async def _main(settings: Settings) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        if settings.workers:
            crew = Crew(settings)
            await crew.start(stack)
            served: Any = crew
        else:
            queue = Queue(settings.queue, settings.url, partitions=settings.partitions)
            await stack.enter_async_context(queue)
            served = Producer(
                queue, await stack.enter_async_context(open_store(settings.url)), settings.url
            )
            await served.put(1)
        print("{}", flush=True)
        while line := await lines.readline():
            command = json.loads(line)
            print(json.dumps(await getattr(served, command.pop("do"))(**command)), flush=True)


class Process:
    """Such a process, as the benchmark sees it."""

    def __init__(self, settings: Settings) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.capacity.program",
                msgspec.json.encode(settings).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def wait(self) -> dict[str, Any]:
        """Wait for the next reply."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the load ended with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def send(self, do: str, **arguments: Any) -> None:
        """Send a command without waiting for its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its reply."""
        self.send(do, **arguments)
        return self.wait()

    def end(self) -> None:
        """End the process, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def started(settings: Settings) -> Iterator[Process]:
    """A process that is ready, and ends with the block."""
    process = Process(settings)
    try:
        process.wait()
        yield process
    finally:
        process.end()


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=Settings)))
