"""Compares the model with what servers use at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from bench.capacity import places
from bench.capacity.measure import FRAME
from bench.capacity.places import Target
from bench.capacity.program import Settings, started
from jobq.capacity import Fleet, Load, Measured, use
from jobq.capacity.use import SPARSE_CALLS

CALLS = "exchanges per job"
STORED = 3_000
"""Jobs that are enqueued in the end, to see what is stored of each."""
BOUND = 0.25
"""How far the prediction may be from what is measured."""


class Point(NamedTuple):
    """A load at which the model is checked, and the fleet that carries it."""

    name: str
    place: str
    rate: float
    seconds: float = 8.0
    payload: int = 1_000
    result: int = 200
    run_s: float = 0.02
    workers: int = 1
    concurrency: int = 20
    batch: int = 1
    primaries: int = 1
    partitions: int = 1


POINTS = (
    Point("3 primaries, 12 partitions, 40 jobs/s", "cluster", 40, primaries=3, partitions=12),
    Point("3 primaries, 12 partitions, 100 jobs/s", "cluster", 100, primaries=3, partitions=12),
    Point(
        "3 primaries, 6 partitions, 300 jobs/s, 100 at a time",
        "cluster", 300, batch=100, primaries=3, partitions=6, concurrency=100,
    ),
    Point("PostgreSQL, 60 jobs/s", "postgres", 60),
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
        """Whether the prediction is close enough, in both directions.

        Calls per job have no bound: they depend on how soon the machine runs the workers."""
        return self.figure == CALLS or 1 - BOUND <= self.ratio <= 1 / (1 - BOUND)


def compare(point: Point, measured: Measured) -> Iterator[Compared]:
    """Run the load, and compare what the servers have used."""
    with getattr(places, point.place)() as target:
        found = run(target, point)
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
    predicted = use(load, fleet, measured).calls * SPARSE_CALLS
    yield Compared(point.name, CALLS, predicted, found.exchanges)
    # Workers that do not get a core each make fewer calls. The costs are compared for the calls
    # that were made.
    model = use(load, fleet, measured, calls=min(1.0, found.exchanges / SPARSE_CALLS))
    cpu = model.server_us if load.server else model.total_us
    sent = model.server_bytes_per_s if load.server else model.store_bytes_per_s
    yield Compared(point.name, "processor time, µs/s", cpu, found.cpu_us)
    yield Compared(point.name, "network, bytes/s", sent, found.bytes)
    costs = measured.store(load.store)
    if load.store == "postgres":
        written = model.log_bytes_per_s / load.jobs_per_s
        yield Compared(point.name, "write-ahead log, bytes/job", written, found.log)
    elif not load.server:
        ended = costs.ended_bytes + load.payload + load.result + 3 * costs.event_bytes
        yield Compared(point.name, "stored, bytes/job", ended, found.stored)


class Found(NamedTuple):
    """What servers have used, per second, and what is stored per job."""

    cpu_us: float
    bytes: float
    stored: float
    log: float
    exchanges: float  # calls of workers, per job


def run(target: Target, point: Point) -> Found:
    """A steady load for some seconds."""
    settings = Settings(
        url=target.url, queue="steady", partitions=point.partitions, workers=1, run_s=point.run_s,
        concurrency=point.concurrency, result=point.result,
    )  # fmt: skip
    n = int(point.rate * point.seconds)
    with ExitStack() as stack:
        producer = stack.enter_context(
            started(Settings(url=target.url, queue="steady", partitions=point.partitions))
        )
        crew = [stack.enter_context(started(settings)) for _ in range(point.workers)]
        producer.ask("completed", n=1)
        time.sleep(1)
        calls = sum(worker.ask("report")["exchanges"] for worker in crew)
        before, began = target.meter(), time.monotonic()
        producer.ask("pace", rate=point.rate, n=n, payload=point.payload, batch=point.batch)
        passed = time.monotonic() - began
        time.sleep(0.5)
        spent = target.meter().since(before)
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
    )
