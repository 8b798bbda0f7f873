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

BOUND = 0.25
"""How far the prediction may be from what is measured."""


class Point(NamedTuple):
    """A load at which the model is checked, and the fleet that carries it."""

    name: str
    place: str
    rate: float
    seconds: float = 6.0
    payload: int = 1_000
    result: int = 200
    run_s: float = 0.02
    workers: int = 2
    concurrency: int = 20
    batch: int = 1
    primaries: int = 1
    partitions: int = 1


POINTS = (
    Point("3 primaries, 12 partitions, 150 jobs/s", "cluster", 150, primaries=3, partitions=12),
    Point("3 primaries, 12 partitions, 450 jobs/s", "cluster", 450, primaries=3, partitions=12),
    Point(
        "3 primaries, 6 partitions, 2,000 jobs/s in batches of 100",
        "cluster", 2_000, batch=100, primaries=3, partitions=6, concurrency=100,
    ),
    Point("PostgreSQL, 150 jobs/s", "postgres", 150),
    Point("jq-server on Valkey, 200 jobs/s", "jq_server", 200),
)  # fmt: skip


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
        return 1 - BOUND <= self.ratio <= 1 / (1 - BOUND)


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
    model = use(load, fleet, measured)
    cpu = model.server_us if load.server else model.total_us
    sent = model.server_bytes_per_s if load.server else model.store_bytes_per_s
    yield Compared(point.name, "processor time, µs/s", cpu, found.cpu_us)
    yield Compared(point.name, "network, bytes/s", sent, found.bytes)
    if load.server:
        return
    costs = measured.store(load.store)
    ended = costs.ended_bytes + load.payload + load.result + 3 * costs.event_bytes
    yield Compared(point.name, "stored, bytes/job", ended, found.stored)


class Found(NamedTuple):
    """What servers have used, per second, and what is stored per job."""

    cpu_us: float
    bytes: float
    stored: float


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
        for _ in range(point.workers):
            stack.enter_context(started(settings))
        producer.ask("completed", n=1)
        time.sleep(1)
        before, began = target.meter(), time.monotonic()
        producer.ask("pace", rate=point.rate, n=n, payload=point.payload, batch=point.batch)
        passed = time.monotonic() - began
        time.sleep(0.5)
        spent = target.meter().since(before)
        producer.ask("completed", n=n + 1)
    # The rate that was reached may be a little lower: compare per job.
    share = n / passed / point.rate
    return Found(spent.cpu_us / passed / share, spent.bytes / passed / share, spent.stored / n)
