"""Where does a large installation grow faster than linearly? A simulation with measured costs.

    python -m bench.scale                       1 to 100 primaries, up to 10,000 workers
    python -m bench.scale --primaries 30 --svg docs/scale-growth.svg

It counts calls as the code makes them: how a worker claims and falls asleep (engine/fetcher.py,
stores/valkey/settling.py), who is woken (lua/signals.lua), and how many connections a worker opens.
Each call takes a place in the queue of its primary for as long as was measured. Two layouts grow
side by side: one queue whose partitions are on all primaries, and one queue per tenant, each with
workers of its own. Then a primary is lost for some seconds.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import sys
from binascii import crc_hqx
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from jobq.capacity import Measured, default_measured, read_measured
from jobq.capacity.use import SLOTS
from jobq.core.pace import stretch

SIZES = (1, 3, 10, 30, 100)
WORKERS, TENANTS, JOBS_PER_S = 100, 10, 200.0
"""For each primary."""
CONCURRENCY, RUN_S = 10, 0.05
PARTITIONS = 2
"""For each primary, if there is one queue."""
ROUND_TRIP_S = 0.0003
"""Between two machines of a data centre, with the client's own work."""
FIRST_LOOK, RETRY_S = 8, 0.5
"""As in stores/valkey/settling.py."""
POLL_S, BEAT_S, LEAD_S = 5.0, 5.0, 7.5
"""Of an idle worker in a small fleet (engine/settings.py)."""
LOST_S = 15.0
"""Seconds until a replica has taken over (Valkey's default cluster-node-timeout)."""
SUPERLINEAR = 0.1
"""An exponent by which a cost per job grows with the size, above which it is called superlinear."""

Steps = Generator[float, None, None]
"""A process: it yields the time at which it goes on."""


class Clock:
    """The time of the simulation, and what happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._next: list[tuple[float, int, Steps | Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time: float, what: Steps | Callable[[], None]) -> None:
        """Continue a process, or call a function, at a time."""
        heapq.heappush(self._next, (time, next(self._order), what))

    def run(self, until: float) -> None:
        """Run everything up to a time."""
        while self._next and self._next[0][0] <= until:
            self.now, _, what = heapq.heappop(self._next)
            if callable(what):
                what()
            elif (time := next(what, None)) is not None and time != math.inf:
                self.at(time, what)
        self.now = until


class Primary:
    """A server that does one call at a time."""

    def __init__(self) -> None:
        self.free_at = self.used_us = 0.0
        self.lost_until = 0.0
        self.calls = 0

    def lost(self, now: float) -> bool:
        """Whether connections are refused."""
        return now < self.lost_until

    def serve(self, now: float, us: float) -> float:
        """Take a call of this length. Returns when its caller has the reply."""
        start = max(now + ROUND_TRIP_S / 2, self.free_at, self.lost_until)
        self.free_at = start + us / 1e6
        self.used_us += us
        self.calls += 1
        return self.free_at + ROUND_TRIP_S / 2


class Queue:
    """A queue with its partitions, and the workers that sleep."""

    def __init__(self, name: str, partitions: int, primaries: list[Primary]) -> None:
        tags = [name] if partitions == 1 else [f"{name}:{p}" for p in range(partitions)]
        self.at = [_primary(tag, primaries) for tag in tags]
        self.home = _primary(name, primaries)
        self.waiting: list[deque[float]] = [deque() for _ in tags]
        self.sleepers: dict[int, Worker] = {}  # the last one fell asleep last

    @property
    def partitioned(self) -> bool:
        return len(self.at) > 1


def _primary(tag: str, primaries: list[Primary]) -> Primary:
    return primaries[crc_hqx(tag.encode(), 0) % SLOTS * len(primaries) // SLOTS]


@dataclass
class World:
    """Everything that exists, and what has been counted."""

    clock: Clock
    primaries: list[Primary]
    costs: Measured
    random: random.Random
    waits: list[float] = field(default_factory=list)  # from put to start
    done: int = 0
    looks: int = 0  # counters that were read
    woken: int = 0


class Worker:
    """A worker's fetcher, as engine/fetcher.py and stores/valkey/settling.py make its calls."""

    def __init__(self, world: World, queue: Queue, number: int, poll_s: float) -> None:
        self.world, self.queue, self.number, self.poll_s = world, queue, number, poll_s
        self.free, self.ended = CONCURRENCY, [0] * len(queue.at)
        self.claimed: list[tuple[int, float]] = []
        self.registered = self.resting = False
        self.naps = 0
        costs = world.costs
        self.call_us = costs.valkey.sparse_us / 3
        self.job_us = costs.valkey.dense_us
        self.note_us = costs.partitions.job_us / 4  # wake, be awake, fall asleep, have another slot
        self.steps = self._run()
        world.clock.at(world.random.random() * 0.01, self.steps)

    # ── waking ──

    def ring(self) -> None:
        """Go on if the worker rests."""
        if self.resting:
            self.resting = False
            self.world.clock.at(self.world.clock.now, self.steps)

    def _poll(self, nap: int) -> None:
        if nap == self.naps:
            self.ring()

    def _job_ended(self, place: int) -> None:
        self.free += 1
        self.ended[place] += 1
        self.ring()

    # ── the loop ──

    def _run(self) -> Steps:
        clock = self.world.clock
        while True:
            claimed, asleep = 0, False
            for answer in self._exchange():
                if isinstance(answer, float):
                    yield answer
                else:
                    claimed, asleep = answer
            self._start()
            if claimed or any(self.ended) or (self.free and not asleep):
                continue
            self.naps += 1
            self.resting = True
            if asleep:
                lost = any(primary.lost(clock.now) for primary in self.queue.at)
                poll_s = RETRY_S if lost and self.queue.partitioned else self.poll_s
                clock.at(clock.now + poll_s, lambda nap=self.naps: self._poll(nap))  # type: ignore[misc]
            yield math.inf

    def _exchange(self) -> Generator[float | tuple[int, bool], None, None]:
        """Settle what has ended, and claim for all free slots."""
        queue, world = self.queue, self.world
        ended, self.ended = self.ended, [0] * len(queue.at)
        asleep = self.registered
        if not queue.partitioned:
            us = self.call_us + self.job_us * ended[0]
            yield queue.home.serve(world.clock.now, us)
            claimed = self._claim(0)
            self._register(claimed < self.free + claimed)
            yield claimed, claimed == 0 and self.free > 0
            return
        claimed = 0
        if asleep and any(ended):  # it stays asleep, and claims only where it settles
            for place in [place for place, n in enumerate(ended) if n]:
                us = self.call_us + self.job_us * ended[place]
                yield queue.at[place].serve(world.clock.now, us)
                claimed += self._claim(place)
            if not claimed and self.registered:
                yield queue.home.serve(world.clock.now, self.note_us)
            yield claimed, not claimed and self.registered
            return
        first = world.random.randrange(len(queue.at))
        order = [(first + n) % len(queue.at) for n in range(len(queue.at))]
        for some in (order[:FIRST_LOOK], order[FIRST_LOOK:]):
            ready: list[int] = []
            if some and self.free:
                yield self._look(some)
                ready = [place for place in some if self._has_work(place)]
            for place in some:
                if ended[place] or (place in ready and self.free):
                    us = self.call_us + self.job_us * ended[place]
                    yield queue.at[place].serve(world.clock.now, us)
                    claimed += self._claim(place)
        if not claimed and not any(ended) and self.free:
            yield queue.home.serve(world.clock.now, self.note_us)
            self._register(True)
            yield self._look(order)
            for place in [place for place in order if self._has_work(place)]:
                yield queue.at[place].serve(world.clock.now, self.call_us)
                claimed += self._claim(place)
            yield claimed, claimed == 0
            return
        if asleep:
            yield queue.home.serve(world.clock.now, self.note_us)
            self._register(False)
        yield claimed, False

    def _has_work(self, place: int) -> bool:
        lost = self.queue.at[place].lost(self.world.clock.now)
        return bool(self.queue.waiting[place]) and not lost

    def _look(self, places: list[int]) -> float:
        """Read the counters of partitions, all at once. Each primary gets its part.

        A primary that is lost is left out."""
        by_primary: dict[int, int] = {}
        for place in places:
            at = id(self.queue.at[place])
            by_primary[at] = by_primary.get(at, 0) + 1
        self.world.looks += len(places)
        costs, now = self.world.costs.partitions, self.world.clock.now
        last = now + ROUND_TRIP_S
        places = [place for place in places if not self.queue.at[place].lost(now)]
        for primary in {
            id(self.queue.at[place]): self.queue.at[place] for place in places
        }.values():
            us = costs.look_call_us + costs.look_us * by_primary[id(primary)]
            last = max(last, primary.serve(now, us))
        return last

    def _claim(self, place: int) -> int:
        """Take what waits in a partition. It starts when the whole exchange has ended."""
        waiting = self.queue.waiting[place]
        n = min(self.free, len(waiting))
        self.claimed += [(place, waiting.popleft()) for _ in range(n)]
        self.free -= n
        return n

    def _start(self) -> None:
        world, now = self.world, self.world.clock.now
        claimed, self.claimed = self.claimed, []
        for place, put_at in claimed:
            world.waits.append(now - put_at)
            world.clock.at(now + RUN_S, lambda place=place: self._job_ended(place))  # type: ignore[misc]
        world.done += len(claimed)

    def _register(self, asleep: bool) -> None:
        self.queue.sleepers.pop(self.number, None)
        self.registered = asleep
        if asleep:
            self.queue.sleepers[self.number] = self


def produce(world: World, queues: list[Queue], rate: float) -> Steps:
    """Put jobs one by one, at random times, and wake a worker for each."""
    costs = world.costs.valkey
    put_us = costs.put_call_us + costs.put_job_us
    while True:
        yield world.clock.now + world.random.expovariate(rate)
        queue = world.random.choice(queues)
        place = world.random.randrange(len(queue.at))
        world.clock.at(world.clock.now, _put(world, queue, place, put_us))


def _put(world: World, queue: Queue, place: int, us: float) -> Steps:
    began = world.clock.now
    yield queue.at[place].serve(began, us)
    queue.waiting[place].append(began)
    if queue.partitioned:  # the sleepers are at the queue's home
        yield queue.home.serve(world.clock.now, world.costs.partitions.job_us / 4)
    if queue.sleepers:
        _, worker = queue.sleepers.popitem()
        worker.registered = False
        world.woken += 1
        world.clock.at(world.clock.now + ROUND_TRIP_S / 2, worker.ring)


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


def report(title: str, found: list[Found]) -> list[str]:
    """Print a table. Returns the figures per job that grow."""
    table = Table(title=title)
    columns = {
        "primaries": "primaries", "workers": "workers", "server_us": "µs/job",
        "calls": "calls/job", "looks": "reads/job", "busiest": "busiest", "home": "presence",
        "wait_p50": "wait p50", "wait_p99": "p99", "connections": "connections",
    }  # fmt: skip
    for column in columns.values():
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            f"{row.primaries:,}", f"{row.workers:,}", f"{row.server_us:,.0f}", f"{row.calls:,.1f}",
            f"{row.looks:,.1f}", f"{row.busiest:.1%}", f"{row.home:.1%}", f"{row.wait_p50:.2f} ms",
            f"{row.wait_p99:.2f} ms", f"{row.connections:,}",
        )  # fmt: skip
    Console(width=120).print(table)
    return [
        name
        for name in ("server_us", "calls", "looks")
        if len(found) > 1 and exponents(found, name) > SUPERLINEAR
    ]


def svg(layouts: dict[str, list[Found]]) -> str:
    """Processor time per job by size, for both layouts. A straight level line is linear growth."""
    width, height, left, bottom = 720, 300, 60, 40
    high = max(row.server_us for rows in layouts.values() for row in rows) * 1.15
    most = max(row.primaries for rows in layouts.values() for row in rows)

    def x(primaries: int) -> float:
        return left + math.log(max(1, primaries)) / math.log(max(2, most)) * (width - left - 130)

    def y(us: float) -> float:
        return 20 + (1 - math.log10(max(us, 10)) / math.log10(high)) * (height - 20 - bottom)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="processor time of all primaries per job, by number of primaries">',
        "<style>text { font: 13px system-ui, sans-serif; fill: #24292f } .axis { stroke: #9aa7b4 }"
        " .a { stroke: #cf222e; fill: none; stroke-width: 2 } .b { stroke: #1f6feb; fill: none;"
        " stroke-width: 2 } @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }</style>",
        f'<line class="axis" x1="{left}" y1="{height - bottom}" x2="{width - 130}" '
        f'y2="{height - bottom}"/>',
        f'<text x="{left}" y="14">µs of processor time per job, all primaries together</text>',
        f'<text x="{(width - 130) / 2:.0f}" y="{height - 6}">primaries</text>',
    ]
    for kind, (name, rows) in zip("ab", layouts.items(), strict=True):
        points = " ".join(f"{x(row.primaries):.1f},{y(row.server_us):.1f}" for row in rows)
        lines.append(f'<polyline class="{kind}" points="{points}"/>')
        lines.append(
            f'<text x="{x(rows[-1].primaries) + 6:.1f}" y="{y(rows[-1].server_us) + 4:.1f}">'
            f"{name}: {rows[-1].server_us:,.0f}</text>"
        )
    lines += [
        f'<text x="{x(row.primaries):.1f}" y="{height - bottom + 16}" text-anchor="middle">'
        f"{row.primaries}</text>"
        for row in next(iter(layouts.values()))
    ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """Simulate all sizes, print tables, and say what grows faster than linearly."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--primaries", type=int, default=SIZES[-1], help="the largest size")
    options.add_argument("--measured", type=Path, metavar="FILE", help="costs of another machine")
    options.add_argument("--seconds", type=float, default=2.0, help="of simulated time")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--svg", type=Path, metavar="FILE", help="draw the growth")
    given = options.parse_args()
    measured = default_measured() if given.measured is None else read_measured(given.measured)
    sizes = [size for size in SIZES if size <= given.primaries]
    layouts = {}
    for name, shared in (("one queue", True), ("a queue per tenant", False)):
        found = [
            simulate(size, measured, shared=shared, seconds=given.seconds, seed=given.seed)
            for size in sizes
        ]
        grows = report(f"{name}: {JOBS_PER_S:g} jobs/s and {WORKERS} workers per primary", found)
        print(f"{name}: grows faster than linearly: {', '.join(grows) or 'nothing'}")
        layouts[name] = found
    if given.svg is not None:
        given.svg.write_text(svg(layouts))
    size = min(10, sizes[-1])
    for name, shared in (("one queue", True), ("a queue per tenant", False)):
        after = simulate(size, measured, shared=shared, seed=given.seed, lost=True, rate=50)
        print(
            f"{name}, {size} primaries, one of them lost for {LOST_S:g} s: "
            f"{after.done:.0%} of the jobs of that time started"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
