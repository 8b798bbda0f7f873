"""Runs the model at one size, and counts what it needs."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import NamedTuple

from bench.scale.model import Clock, Primary, Queue, Worker, World, produce
from jobq.core.rules.fleet import stretch
from jobq.operations.capacity import Measured

WORKERS, TENANTS, JOBS_PER_S = 100, 10, 200.0
"""For each primary."""
PARTITIONS = 2
"""For each primary, if there is one queue."""
POLL_S = 5.0
"""Seconds between two polls of an idle worker in a small fleet (engine/identity.py)."""
LOST_S = 15.0
"""Seconds until a replica has taken over (Valkey's default cluster-node-timeout)."""
SUPERLINEAR = 0.1
"""An exponent by which a cost per job grows with the size, above which it is called superlinear."""


class Found(NamedTuple):
    """What a size needs, per job or in total."""

    primaries: int
    workers: int
    server_us: float  # per job
    calls: float  # per job
    looks: float  # counters read per job
    busiest: float  # part of the busiest primary's time
    home: float  # part of the time of the primary where workers are registered
    wait_p50: float
    wait_p99: float
    connections: int  # to each primary
    done: float  # part of the jobs


def simulate(
    size: int,
    measured: Measured,
    *,
    shared: bool,
    seconds: float = 2.0,
    seed: int = 1,
    lost: bool = False,
    rate: float = JOBS_PER_S,
) -> Found:
    """Run one size. `shared`: one partitioned queue. `lost`: without its largest primary."""
    chance, clock = random.Random(seed), Clock()
    world = World(clock, [Primary() for _ in range(size)], measured, chance)
    if shared:
        queues = [Queue("tenant-0:jobs", max(1, PARTITIONS * size), world.primaries)]
    else:
        queues = [Queue(f"tenant-{n}:jobs", 1, world.primaries) for n in range(TENANTS * size)]
    workers = WORKERS * size
    poll_s = POLL_S * stretch(workers)
    for number in range(workers):
        Worker(world, queues[number % len(queues)], number, poll_s)
    clock.run(1.0)  # all have fallen asleep
    before = [(primary.used_us, primary.calls) for primary in world.primaries]
    world.looks = 0
    clock.at(clock.now, produce(world, queues, rate * size))
    if lost:
        places = Counter(id(primary) for queue in queues for primary in queue.at)
        chosen = max(world.primaries, key=lambda primary: places[id(primary)])
        chosen.lost_until = clock.now + 0.2 + LOST_S
        seconds = 0.2 + LOST_S
    clock.run(1.0 + seconds)
    used = [p.used_us - b[0] for p, b in zip(world.primaries, before, strict=True)]
    calls = sum(p.calls - b[1] for p, b in zip(world.primaries, before, strict=True))
    beats = workers / stretch(workers) * measured.valkey.idle_us
    waits = sorted(world.waits) or [math.nan]
    jobs = max(1, world.done)
    return Found(
        primaries=size,
        workers=workers,
        server_us=sum(used) / jobs,
        calls=calls / jobs,
        looks=world.looks / jobs,
        busiest=max(used) / seconds / 1e6,
        home=beats / 1e6,
        wait_p50=waits[len(waits) // 2] * 1000,
        wait_p99=waits[len(waits) * 99 // 100] * 1000,
        connections=round(
            workers * measured.valkey.connections
            if shared or size == 1
            else workers * (measured.valkey.connections / size + 2)
        ),
        done=world.done / (rate * size * seconds),
    )


def exponents(found: list[Found], name: str) -> float:
    """By which power of the size a figure grows, between the last two sizes."""
    a, b = found[-2], found[-1]
    low, high = getattr(a, name), getattr(b, name)
    if not low or not high:
        return 0.0
    return math.log(high / low) / math.log(b.primaries / a.primaries)
