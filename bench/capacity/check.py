"""Compares the model with what servers use at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from bench.capacity import places
from bench.capacity.limits import limited
from bench.capacity.measure import FRAME
from bench.capacity.meters import cpu_us
from bench.capacity.places import Target
from bench.capacity.program import Settings, started
from jobq.operations.capacity import Fleet, Load, Measured, use
from jobq.operations.capacity.use import SPARSE_CALLS

QUEUE = "steady"
STORED = 3_000
"""Jobs that are enqueued in the end, to see what is stored of each."""
RUNS = 3
"""Runs of each load, each with new servers. Their medians are compared."""
BOUND = 0.25
"""How far the prediction may be from what is measured."""


class Point(NamedTuple):
    """A load at which the model is checked, and the fleet that carries it."""

    name: str
    place: str
    rate: float
    seconds: float = 12.0
    payload: int = 1_000
    result: int = 200
    run_s: float = 0.02
    workers: int = 1
    concurrency: int = 20
    batch: int = 1
    primaries: int = 1
    partitions: int = 1
    limit: float = 0.0  # cores that each primary may use; 0: no limit


POINTS = (
    Point("3 primaries, 12 partitions, 40 jobs/s", "cluster", 40, primaries=3, partitions=12),
    Point("3 primaries, 12 partitions, 100 jobs/s", "cluster", 100, primaries=3, partitions=12),
    Point(
        "3 primaries, 6 partitions, 300 jobs/s, 100 at a time",
        "cluster", 300, batch=100, primaries=3, partitions=6, concurrency=100,
    ),
    Point(
        "3 primaries of 0.15 cores, 12 partitions, 80 jobs/s",
        "cluster", 80, primaries=3, partitions=12, limit=0.15,
    ),
    Point("one Valkey, 200 jobs/s, 20 at a time", "valkey", 200, batch=20, concurrency=100),
    Point("PostgreSQL, 60 jobs/s", "postgres", 60),
    Point("PostgreSQL, 300 jobs/s, 30 at a time", "postgres", 300, batch=30, concurrency=100),
    Point("jq-server on Valkey, 100 jobs/s", "jq_server", 100),
)  # fmt: skip
"""Rates at which one worker on a shared machine of two cores still meets jobs one by one."""


class Compared(NamedTuple):
    """One figure of a point."""

    point: str
    figure: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted divided by measured."""
        return self.predicted / self.measured

    @property
    def within(self) -> bool:
        """Whether the prediction is close enough, in both directions."""
        return abs(self.ratio - 1) <= BOUND


def compare(point: Point, measured: Measured) -> Iterator[Compared]:
    """Run the load, and compare what the servers have used."""
    found = Found(*map(median, zip(*(_once(point) for _ in range(RUNS)), strict=True)))
    load = Load(
        jobs_per_s=point.rate,
        payload=point.payload + FRAME,
        result=point.result,
        run_s=point.run_s,
        concurrency=point.concurrency,
        enqueue_batch=point.batch,
        store="postgres" if point.place == "postgres" else "valkey",
        server=point.place == "jq_server",
    )
    fleet = Fleet(
        workers=point.workers,
        primaries=point.primaries,
        partitions=point.partitions,
        servers=int(load.server),
    )
    model = use(load, fleet, measured)
    yield Compared(point.name, "exchanges per job", model.calls * SPARSE_CALLS, found.exchanges)
    waking = model.waking
    store, server = model.total_us + waking.store_us, model.server_us + waking.server_us
    cpu = server if load.server else store
    sent = model.server_bytes_per_s if load.server else model.store_bytes_per_s
    yield Compared(point.name, "processor time, µs/s", cpu, found.cpu_us)
    if point.limit:
        share = max(places.shares(QUEUE, point.partitions, point.primaries))
        busiest = model.primary_us(share, 1.0) + model.primary_waking_us(share, 1.0)
        busiest /= 1e6 * point.limit
        yield Compared(point.name, "busiest primary, part of its limit", busiest, found.busiest)
    yield Compared(point.name, "network, bytes/s", sent, found.bytes)
    costs = measured.store(load.store)
    if load.store == "postgres":
        written = model.log_bytes_per_s / load.jobs_per_s
        yield Compared(point.name, "write-ahead log, bytes/job", written, found.log)
    elif not load.server:
        ended = costs.ended_bytes + load.payload + load.result + 3 * costs.event_bytes
        yield Compared(point.name, "stored, bytes/job", ended, found.stored)


def _once(point: Point) -> Found:
    with getattr(places, point.place)() as target:
        return run(target, point)


class Found(NamedTuple):
    """What servers have used, per second, and what is stored per job."""

    cpu_us: float
    bytes: float
    stored: float
    log: float
    exchanges: float  # calls of workers, per job
    busiest: float  # primary, as a part of its limit


def run(target: Target, point: Point) -> Found:
    """A steady load for some seconds."""
    settings = Settings(
        url=target.url, queue=QUEUE, partitions=point.partitions, workers=1, run_s=point.run_s,
        concurrency=point.concurrency, result=point.result,
    )  # fmt: skip
    n = int(point.rate * point.seconds)
    with ExitStack() as stack:
        producer = stack.enter_context(
            started(Settings(url=target.url, queue=QUEUE, partitions=point.partitions))
        )
        crew = [stack.enter_context(started(settings)) for _ in range(point.workers)]
        producer.ask("completed", n=1)
        primaries = [places.pid_of(port) for port in target.ports]
        stack.enter_context(limited(primaries, point.limit))
        time.sleep(1)
        calls = sum(worker.ask("report")["exchanges"] for worker in crew)
        each = [cpu_us(pid) for pid in primaries]
        before, began = target.meter(), time.monotonic()
        producer.ask(
            "pace", rate=point.rate, n=n, payload=point.payload, batch=point.batch, random=True
        )
        passed = time.monotonic() - began
        time.sleep(0.5)
        spent = target.meter().since(before)
        each = [cpu_us(pid) - then for pid, then in zip(primaries, each, strict=True)]
        calls = sum(worker.ask("report")["exchanges"] for worker in crew) - calls
        producer.ask("completed", n=n + 1)
        # What is stored per job, without what the first jobs of a queue need.
        empty = target.meter().stored
        producer.ask("put", n=STORED, batch=100, payload=point.payload)
        producer.ask("completed", n=n + 1 + STORED)
        stored = (target.meter().stored - empty) / STORED
    # The rate that was reached may be a little lower: compare per job.
    share = n / passed / point.rate
    return Found(
        cpu_us=spent.cpu_us / passed / share,
        bytes=spent.bytes / passed / share,
        stored=stored,
        log=spent.log / n,
        exchanges=calls / n,
        busiest=max(each) / passed / share / 1e6 / point.limit if point.limit else 0.0,
    )
