"""Primaries, queues, workers and producers, which make the calls that the real ones make."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from binascii import crc_hqx
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from jobq.operations.capacity import Measured
from jobq.operations.capacity.use import SLOTS

CONCURRENCY, RUN_S = 10, 0.05
"""Slots of a worker, and seconds that a job takes."""
ROUND_TRIP_S = 0.0003
"""Seconds between two machines of a data centre, with the client's own work."""
FIRST_LOOK, RETRY_S = 8, 0.5
"""As in stores/valkey/settling.py."""

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
