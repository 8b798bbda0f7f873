"""The same calls on stores of several sizes, in turns."""

from __future__ import annotations

import gc
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import apsw

from bench.growth.figures import SAME, Figure, Measure, flat
from bench.places import Place, Postgres, SqliteFile, Valkey, ask, ask_postgres, place
from jobq.core.records.jobs import Claim, Complete, JobSpec, Lease, QueueName
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.stores import open_store
from jobq.stores.base import Clock, Store
from jobq.stores.valkey.store import ValkeyStore

URLS = {
    "sqlite": "sqlite:///{folder}/jobs.db",
    "valkey": "valkey://127.0.0.1:{port}",
    "postgres": "",
}
PAYLOAD = b"[[],{}]"
BATCH = 100
"""Jobs per claim and per put of several."""
CHUNK = 1_000
"""Jobs per put that fills a store."""
WARM = 3
"""Rounds that do not count: they prepare statements and fill caches."""
PATIENCE_S = 600
"""Seconds until a server that does not reply is given up. Only processor time is measured, so a run
may be made while other programs use all processors."""
LEASE_MS = 3_600_000
"""Milliseconds. No lease may end during a run."""
SIZE = "size of the store"
KEEP_NOTHING = RetentionData(completed_ms=0, failed_ms=0, cancelled_ms=0, count=0)

Say = Callable[[str], None]


class Timer:
    """Milliseconds of processor time per call, by what was called: of this process, all its
    threads, and the server.

    Elapsed time says little on a machine that does other things: a call of 20 ms is interrupted
    more often than one of 0.2 ms, so it seems to grow.
    """

    def __init__(self, where: Place) -> None:
        self._took: dict[str, list[float]] = {}
        self._meter = Meter(where)
        self.counts = True
        self.longest: set[str] = set()

    @contextmanager
    def __call__(self, what: str, *, per: int = 1) -> Iterator[None]:
        """Time a block. `per`: the time counts for one of so many."""
        gc.disable()  # it would count what earlier calls have left
        try:
            server, own = self._meter.read(), time.process_time()
            yield
            own = time.process_time() - own
        finally:
            gc.enable()
        if self.counts:
            spent = own + self._meter.since(server)
            self.add(what, spent * 1000 / max(1, per))

    def add(self, what: str, value: float) -> None:
        """Add a value that was not timed here."""
        self._took.setdefault(what, []).append(value)

    def best(self) -> dict[str, float]:
        """The lowest of the values: whatever else the machine does only makes calls slower.

        Of steps, the longest counts."""
        return {
            what: max(took) if what in self.longest else min(took)
            for what, took in self._took.items()
        }


class Meter:
    """The processor time of a store's server, on Linux. Elsewhere it counts as none."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._valkey: int | None = None
        if isinstance(where, Valkey):
            told = ask(where.port, "INFO server")
            self._valkey = int(told.split("process_id:")[1].split()[0])

    def read(self) -> dict[int, float]:
        """Seconds by process."""
        return {pid: seconds for pid in self._pids() if (seconds := _cpu_s(pid)) is not None}

    def since(self, before: dict[int, float]) -> float:
        """Seconds since an earlier reading. A process that has ended meanwhile is left out."""
        return sum(seconds - before.get(pid, 0.0) for pid, seconds in self.read().items())

    def _pids(self) -> list[int]:
        if self._valkey is not None:
            return [self._valkey]
        if isinstance(self._where, Postgres):  # a process per connection
            parent = self._where.server.pid
            try:
                return list(
                    map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
                )
            except OSError:
                return []
        return []


def _cpu_s(pid: int) -> float | None:
    """The seconds that a process has spent on a processor, to the nanosecond."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def each_step(store: Store, timer: Timer, what: str) -> Iterator[None]:
    """Time each transaction, or each call to a Valkey server, that calls of a store make in this
    block. Others have to wait for no longer than the longest of them.

    The first transaction does not count: it stores what the caller has passed."""
    at, name = (store.calls, "fcall") if isinstance(store, ValkeyStore) else (store, "_write")
    run = getattr(at, name)
    timer.longest.add(what)
    calls = itertools.count(1 if isinstance(store, ValkeyStore) else 0)

    async def timed(*args: Any, **kwargs: Any) -> Any:
        with timer(what) if next(calls) else nullcontext():
            return await run(*args, **kwargs)

    setattr(at, name, timed)
    try:
        yield
    finally:
        delattr(at, name)


@asynccontextmanager
async def opened(kind: str, *, clock: Clock | None = None) -> AsyncIterator[tuple[Place, Store]]:
    """A new store, which is removed afterwards."""
    with place(kind, URLS[kind]) as where:
        url = where.url if kind == "sqlite" else f"{where.url}?timeout={PATIENCE_S}"
        async with open_store(url, clock=clock) as store:
            yield where, store


class Dimension(ABC):
    """What a store can have much of. `sizes` are how much, and `quick` is for a short run."""

    name: str
    title: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    stores: tuple[str, ...] = tuple(URLS)
    rounds = 30
    measures: Mapping[str, Measure] = {}
    """By what is measured. Everything else is in milliseconds and does the same at every size."""
    log = True
    """Whether plots are logarithmic."""
    x_label: str

    @abstractmethod
    async def measure(self, kind: str, sizes: Sequence[int], rounds: int, say: Say) -> list[Figure]:
        """Measure a kind of store at these sizes."""

    def figures(self, kind: str, found: dict[int, dict[str, float]]) -> list[Figure]:
        """The figures of everything that was measured at each size."""
        sizes = tuple(found)
        return [
            Figure(
                store=kind,
                dimension=self.name,
                what=what,
                unit=measure.unit,
                sizes=sizes,
                values=tuple(found[size][what] for size in sizes),
                bound=measure.bound,
            )
            for what in found[sizes[0]]
            for measure in [self._measure(what, sizes)]
        ]

    def _measure(self, what: str, sizes: tuple[int, ...]) -> Measure:
        if what == SIZE:
            # In proportion, and up to twice that: pages of an index that is filled at random are
            # half full at worst. 50 MB: what servers allocate ahead.
            return Measure("MB", flat(2.0 * sizes[-1] / sizes[0], floor=50))
        return self.measures.get(what, Measure("ms", SAME))


class Compared(Dimension):
    """Fills a store per size, and makes the same calls on all of them in turns.

    A disturbance of the machine affects all sizes.
    """

    async def measure(self, kind: str, sizes: Sequence[int], rounds: int, say: Say) -> list[Figure]:
        async with AsyncExitStack() as stack:
            timers: dict[int, Timer] = {}
            stores: dict[int, tuple[Place, Store]] = {}
            for size in sizes:
                where, store = stores[size] = await stack.enter_async_context(opened(kind))
                timers[size] = Timer(where)
                before, began = where.bytes_used() or 0, time.monotonic()
                await self.fill(store, size, timers[size])
                where.filled()
                added = (where.bytes_used() or 0) - before
                timers[size].add(SIZE, added / 1e6)
                say(
                    f"{kind}, {self.title}: {size:,} stored in {time.monotonic() - began:.0f} s, "
                    f"{added / 1e6:,.0f} MB"
                )
            for turn in range(rounds + WARM):
                for size, (_, store) in stores.items():
                    timers[size].counts = turn >= WARM
                    await self.probe(store, size, timers[size], turn)
            for size, (where, store) in stores.items():
                await self.finish(where, store, size, timers[size])
        return self.figures(kind, {size: timer.best() for size, timer in timers.items()})

    @abstractmethod
    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        """Fill a store up to this size."""

    @abstractmethod
    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        """Make each call once."""

    async def finish(self, where: Place, store: Store, size: int, timer: Timer) -> None:
        """Called once at the end, for what cannot be done in turns."""


async def probe_jobs(
    store: Store, queue: QueueName, timer: Timer, turn: int, *, limit: int = BATCH
) -> None:
    """Claim and complete jobs of a queue, and count the others."""
    of = f" of {limit}"
    with timer(f"claim{of}"):
        taken = await store.settle(
            [], worker="w", call=f"take {turn}", then=claim(queue, limit=limit)
        )
    with timer(f"completion{of}"):
        await store.settle(completed(taken.leases), worker="w", call=f"end {turn}")
    with timer("counts"):
        await store.count(queue)
    with timer("stats"):
        await store.stats(queue)


def spec(queue: QueueName, id: str, key: str | None = None, payload: bytes = PAYLOAD) -> JobSpec:
    """A job."""
    return JobSpec(queue=queue, id=id, name="noop", payload=payload, key=key)


async def put(store: Store, specs: Iterator[JobSpec]) -> None:
    """Put many jobs, a bounded number per call."""
    chunk: list[JobSpec] = []
    for each in specs:
        chunk.append(each)
        if len(chunk) == CHUNK:
            await store.put(chunk)
            chunk = []
    if chunk:
        await store.put(chunk)


async def keep_nothing(store: Store, queue: QueueName) -> None:
    """Let the records of ended jobs go at once, so that a store contains only what waits."""
    await store.declare(queue, QueueConfig(retention=KEEP_NOTHING))


def claim(*queues: QueueName, limit: int = BATCH) -> Claim:
    """A claim."""
    return Claim(queues=queues, limit=limit, lease_ms=LEASE_MS)


def completed(leases: Sequence[Lease]) -> list[Complete]:
    """The outcomes of these leases."""
    return [Complete(queue=each.queue, id=each.id, token=each.token) for each in leases]


async def drained(store: Store, queue: QueueName, worker: str, limit: int = 500) -> int:
    """Complete all jobs of a queue. Returns how many."""
    done = calls = 0
    held: list[Complete] = []
    while True:
        calls += 1
        settled = await store.settle(
            held, worker=worker, call=f"drain {calls}", then=claim(queue, limit=limit)
        )
        held = completed(settled.leases)
        done += len(held)
        if not held:
            return done


async def settled_down(store: Store, most: int = 100_000) -> None:
    """Run upkeep until nothing is left to do."""
    for _ in range(most):
        if await store.tick(limit=500) < 500:
            return
    raise TimeoutError(f"upkeep has not finished after {most} ticks")


def remains(where: Place, table: str) -> int:
    """How much is stored: rows of a table, or all keys of a Valkey server."""
    if isinstance(where, Valkey):
        return int(ask(where.port, "DBSIZE").strip(":\r\n"))
    if isinstance(where, Postgres):
        return int(ask_postgres(where.url, f"select count(*) from jobq.{table}"))
    assert isinstance(where, SqliteFile)
    (path,) = where.folder.glob("*.db")
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(file.execute(f"select count(*) from {table}").get)
    finally:
        file.close()
