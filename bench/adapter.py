"""The base classes of adapters, and the program that runs a Python adapter.

This module uses the standard library only, because it is imported in the environments of other
libraries. The harness starts `python -m bench.peers.NAME COMMAND` with a JSON command and reads one
reply, a line that starts with `BENCH`. bench/peers/node/driver.mjs has the same protocol.

    command                                                     reply
    {"do": "prepare"}                                           {}, after it made the tables
    {"do": "enqueue", "mode": "one"|"concurrent"|"bulk", "n"}   {"n", "seconds"} or {"unsupported"}
    {"do": "fill", "n"}                                         {"n"}, by the fastest way
    {"do": "work", "concurrency", "target", "fill"}             {"n", "seconds"} at the target
    {"do": "request", "n"}                                      {"ms": [one value per request]}

After its reply, `work` continues until it is killed.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any, ClassVar

PAYLOAD = "x" * 100
RESULT = 42
WARM_UP = 20  # requests that are not timed, because the worker may still be starting
TASKS = 100  # concurrent producers for an asyncio library
THREADS = 10  # concurrent producers for a blocking library; more only contend for the GIL


class Unsupported(Exception):
    """The library has no such feature."""


class Counter:
    """Counts handler calls in the worker's process and replies when the target is reached.

    The time is measured from the first call to the last counted one, so it includes neither the
    start of the process nor the last results in flight. A call costs one `next()`, which is
    thread-safe.
    """

    def __init__(self) -> None:
        self._next = itertools.count(1).__next__
        self._started = 0.0
        self.target = 0

    def tick(self) -> None:
        n = self._next()
        if n == 1:
            self._started = time.perf_counter()
        elif n == self.target:
            answer({"n": n - 1, "seconds": time.perf_counter() - self._started})


counter = Counter()
tick = counter.tick


class Adapter:
    """The common part of both kinds of adapters."""

    packages: ClassVar[tuple[str, ...]] = ()  # packages whose versions are reported

    def __init__(self, url: str) -> None:
        self.url = url


class AsyncAdapter(Adapter):
    """An adapter of an asyncio library. Its methods do what a user of the library would write."""

    async def prepare(self) -> None:
        """Create the tables of the library. Called before `open`, in a new database."""

    async def open(self) -> None:
        """Connect as a producer."""

    async def close(self) -> None:
        """Disconnect."""

    async def enqueue(self) -> object:
        """Enqueue one job with PAYLOAD as its argument."""
        raise NotImplementedError

    async def bulk(self, n: int) -> None:
        """Enqueue n jobs with the library's bulk call."""
        raise Unsupported("no bulk enqueue")

    async def request(self) -> object:
        """Enqueue one job and wait for its result."""
        raise NotImplementedError

    async def work(self, concurrency: int) -> None:
        """Run one worker in this process, forever.

        Its handler calls tick() and returns RESULT, which the library must store."""
        raise NotImplementedError


class SyncAdapter(Adapter):
    """An adapter of a blocking library, with the same methods."""

    def prepare(self) -> None:
        """Create the tables of the library. Called before `open`, in a new database."""

    def open(self) -> None:
        """Connect as a producer."""

    def close(self) -> None:
        """Disconnect."""

    def enqueue(self) -> object:
        raise NotImplementedError

    def bulk(self, n: int) -> None:
        raise Unsupported("no bulk enqueue")

    def request(self) -> object:
        raise NotImplementedError

    def work(self, concurrency: int) -> None:
        raise NotImplementedError


def answer(value: dict[str, Any]) -> None:
    """Print the reply for the harness. Bypasses sys.stdout, which Celery replaces."""
    os.write(1, f"BENCH {json.dumps(value)}\n".encode())


def main(adapter: AsyncAdapter | SyncAdapter | type[AsyncAdapter] | type[SyncAdapter]) -> None:
    """Carry out the command given as the program's argument."""
    command = json.loads(sys.argv[1])
    made = adapter(command["url"]) if isinstance(adapter, type) else adapter
    counter.target = command.get("target", 0)
    try:
        if isinstance(made, SyncAdapter):
            reply = _SyncProgram(made).run(command)
        else:
            reply = _run_loop(_AsyncProgram(made).run(command), command.get("loop", "asyncio"))
    except Unsupported as e:
        reply = {"unsupported": str(e)}
    if reply is not None:
        answer({**reply, "versions": {package: version(package) for package in made.packages}})


def _run_loop(program: Any, loop: str) -> dict[str, Any] | None:
    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        reply: dict[str, Any] | None = runner.run(program)
        return reply


class _AsyncProgram:
    def __init__(self, adapter: AsyncAdapter) -> None:
        self.adapter = adapter

    async def run(self, command: dict[str, Any]) -> dict[str, Any] | None:
        if command["do"] == "prepare":
            await self.adapter.prepare()
            return {}
        await self.adapter.open()
        try:
            match command["do"]:
                case "enqueue":
                    return await self.timed(command["mode"], command["n"])
                case "fill":
                    await self.fill(command["n"])
                    return {"n": command["n"]}
                case "request":
                    return {"ms": await self.requests(command["n"])}
                case "work":
                    if command.get("fill"):
                        await self.fill(command["fill"])
                    await self.adapter.work(command["concurrency"])
            return None
        finally:
            await self.adapter.close()

    async def timed(self, mode: str, n: int) -> dict[str, Any]:
        await self.adapter.enqueue()  # not timed: opens connections, loads scripts
        way = {"one": self.one_by_one, "concurrent": self.concurrently, "bulk": self.adapter.bulk}[
            mode
        ]
        started = time.perf_counter()
        await way(n)
        return {"n": n, "seconds": time.perf_counter() - started}

    async def one_by_one(self, n: int) -> None:
        enqueue = self.adapter.enqueue
        for _ in range(n):
            await enqueue()

    async def concurrently(self, n: int) -> None:
        await asyncio.gather(*(self.one_by_one(part) for part in _parts(n, TASKS)))

    async def fill(self, n: int) -> None:
        try:
            await self.adapter.bulk(n)
        except Unsupported:
            await self.concurrently(n)

    async def requests(self, n: int) -> list[float]:
        for _ in range(WARM_UP):
            await self.adapter.request()
        times = []
        for _ in range(n):
            started = time.perf_counter()
            await self.adapter.request()
            times.append((time.perf_counter() - started) * 1000)
        return times


class _SyncProgram:
    def __init__(self, adapter: SyncAdapter) -> None:
        self.adapter = adapter

    def run(self, command: dict[str, Any]) -> dict[str, Any] | None:
        if command["do"] == "prepare":
            self.adapter.prepare()
            return {}
        self.adapter.open()
        try:
            match command["do"]:
                case "enqueue":
                    return self.timed(command["mode"], command["n"])
                case "fill":
                    self.fill(command["n"])
                    return {"n": command["n"]}
                case "request":
                    return {"ms": self.requests(command["n"])}
                case "work":
                    self.adapter.work(command["concurrency"])
            return None
        finally:
            self.adapter.close()

    def timed(self, mode: str, n: int) -> dict[str, Any]:
        self.adapter.enqueue()
        way = {"one": self.one_by_one, "concurrent": self.concurrently, "bulk": self.adapter.bulk}[
            mode
        ]
        started = time.perf_counter()
        way(n)
        return {"n": n, "seconds": time.perf_counter() - started}

    def one_by_one(self, n: int) -> None:
        enqueue = self.adapter.enqueue
        for _ in range(n):
            enqueue()

    def concurrently(self, n: int) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self.one_by_one, _parts(n, THREADS)))

    def fill(self, n: int) -> None:
        try:
            self.adapter.bulk(n)
        except Unsupported:
            self.one_by_one(n)

    def requests(self, n: int) -> list[float]:
        for _ in range(WARM_UP):
            self.adapter.request()
        times = []
        for _ in range(n):
            started = time.perf_counter()
            self.adapter.request()
            times.append((time.perf_counter() - started) * 1000)
        return times


def _parts(n: int, parts: int) -> list[int]:
    """Split n into `parts` numbers that differ by at most 1."""
    return [n // parts + (part < n % parts) for part in range(parts)]


def chunks(n: int, size: int) -> list[int]:
    """Split n into parts of `size`; the last one may be smaller."""
    return [min(size, n - start) for start in range(0, n, size)]
