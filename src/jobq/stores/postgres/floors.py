"""Where claims begin to read while somebody holds a snapshot open.

A claimed job leaves an entry in the indexes of its old state. Usually the next claim that reads
past such an entry marks it as dead. While another transaction holds a snapshot, the entry may still
be needed, so every claim reads past all of them, and becomes slower with every job. Therefore a
handle then remembers a floor for each index, and its claims begin there.

A floor is safe because two looks, LAG_S apart, have found nothing below it. A job can still appear
below a floor: by a transaction that commits late, or one that locks the job for long and is rolled
back. The leader looks for such jobs from the very beginning, and all handles also read the parts
where it has found some (snapshots.py). Jobs that come back to the front of their queue get a place
above the floors (`PostgresTx.front`).

Without such a snapshot there are no floors, and every claim reads from the beginning.

After 100,000 jobs under a snapshot, a claim takes 2.6 ms with floors and 16 ms without them, one of
the general way 3 and 26 ms, and a tick 14 and 47 ms. Without floors, these times grow with every
job (`python -m bench.postgres_paths --only floors`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jobq.core.values.checks import MAX_PRIORITY
from jobq.stores.postgres.queries import FLOORS, HOT_WITH_FLOORS, SQL, UPKEEP_WITH_FLOORS

LAG_S = 0.5
"""Seconds between two looks that make a floor. Calls of jobq take milliseconds, so a job that the
first look could not see yet is seen by the second. A claim reads past the dead entries of this
time: 400 at 800 jobs per second, which takes 0.2 ms."""
MOST = 16
"""Priorities of a queue that have floors of their own. The others share one."""
BLOCK = 20
"""A transaction takes 2^20 places at once (the sequence `places` in 0001.sql)."""
BLOCKS = 16
"""Blocks of places that a look of the leader reports of each priority of a queue."""
FIRST, LAST = -(2**62), 2**62
"""Before and behind all places."""


class Floor:
    """The floor of one index: two looks have found nothing below it."""

    __slots__ = ("_seen", "value")

    def __init__(self, floor: int = FIRST) -> None:
        self.value = floor
        self._seen: deque[tuple[int, float]] = deque()  # what looks saw, and when, in order

    def saw(self, value: int, began: float, ended: float) -> None:
        """A look between these times has found nothing from the floor to `value`."""
        if value < self.value:
            return  # a job that was found below the floor
        seen = self._seen
        while seen and seen[-1][0] > value:
            seen.pop()
        while seen and began - seen[0][1] >= LAG_S:
            self.value = seen.popleft()[0]
        if not seen or ended - seen[-1][1] >= LAG_S / 5:
            seen.append((value, ended))

    def lower(self, floor: int) -> None:
        """Begin at this value, or lower."""
        self.value = min(self.value, floor)
        self._seen.clear()


class Range(NamedTuple):
    """A part of the index of waiting jobs."""

    high: int  # priority
    low: int
    since: int  # seq
    until: int


EVERYTHING = Range(MAX_PRIORITY, 0, FIRST, LAST)


def as_columns(ranges: Sequence[tuple[int, Range]]) -> tuple[Sequence[int], ...]:
    """Ranges as the parameters of a statement."""
    if not ranges:
        return [], [], [], [], []
    return tuple(zip(*((qid, *each) for qid, each in ranges), strict=True))


class Block(NamedTuple):
    """A job waits here: the priority, and the number of the block of its place."""

    priority: int
    block: int


class QueueFloors:
    """The floors of one queue's waiting jobs."""

    def __init__(self) -> None:
        self.known: dict[int, Floor] = {}  # by priority
        self.rest = Floor()  # of all other priorities
        self.lifo = Floor(0)  # lifo jobs have negative places: new ones are below the negated floor

    def ranges(self, blocks: Sequence[Block] = ()) -> list[Range]:
        """What a claim has to read, in the order of the queue. `blocks` are read in any case."""
        if not self.known and self.rest.value == FIRST:
            return [EVERYTHING]
        found: list[Range] = []
        high = MAX_PRIORITY
        for priority in sorted(self.known, reverse=True):
            if priority < high:
                found += self._between(high, priority + 1, self.rest.value, blocks)
            found += self._between(priority, priority, self.known[priority].value, blocks)
            high = priority - 1
        if high >= 0:
            found += self._between(high, 0, self.rest.value, blocks)
        return found

    def _between(self, high: int, low: int, floor: int, blocks: Sequence[Block]) -> list[Range]:
        if floor == FIRST:
            return [Range(high, low, FIRST, LAST)]
        newest = -self.lifo.value
        found = [Range(high, low, FIRST, newest)]
        for priority, block in blocks:
            since = max(block << BLOCK, newest + 1)
            until = min(((block + 1) << BLOCK) - 1, floor - 1)
            if low <= priority <= high and since <= until:
                found.append(Range(priority, priority, since, until))
        return [*found, Range(high, low, max(floor, newest + 1), LAST)]

    def found(self, blocks: Sequence[Block]) -> None:
        """The leader has found jobs in these blocks.

        If it reports no more of a priority, and all of them are below the floor, there may be
        others between: begin at the first one."""
        for priority in {each.priority for each in blocks}:
            seqs = [each.block << BLOCK for each in blocks if each.priority == priority]
            floor = self.known.get(priority, self.rest)
            if len(seqs) >= BLOCKS and max(seqs) < floor.value:
                floor.lower(min(seqs))

    def claimed(
        self,
        jobs: Sequence[tuple[int, int]],
        *,
        full: bool,
        next_seq: int,
        began: float,
        ended: float,
    ) -> None:
        """A claim has read the ranges and got these jobs: priority and seq, in order.

        `full`: it stopped behind the last one. `next_seq`: no transaction that begins after the
        claim gets a lower one."""
        if full:
            last, seq = jobs[-1]
            for priority, floor in self.known.items():
                if priority >= last:
                    floor.saw(next_seq if priority > last else min(seq, next_seq), began, ended)
        else:
            for floor in (*self.known.values(), self.rest, self.lifo):
                floor.saw(next_seq, began, ended)
        for priority, _ in jobs:
            if priority not in self.known:
                self.known[priority] = Floor(self.rest.value)
        while len(self.known) > MOST:
            self.rest.lower(self.known.pop(next(iter(self.known))).value)


class Floors:
    """The floors of a handle. Its connections share them."""

    def __init__(self) -> None:
        self.next_ask = 0.0
        """When the handle asks again whether to use floors (monotonic clock)."""
        self._until = 0.0
        self._lock = threading.Lock()
        self._queues: dict[int, QueueFloors] = {}  # by qid
        self._due: dict[int, Floor] = {}  # by qid: nothing is due by the clock before this time
        self._past: dict[int, Floor] = {}  # by qid: no retention has ended before this time
        # By qid and state: no record of an ended job expires before this time.
        self._oldest: dict[tuple[int, int], Floor] = {}
        self._blocks: Mapping[int, Sequence[Block]] = {}

    @property
    def active(self) -> bool:
        """Whether somebody holds a snapshot open, so that claims use floors."""
        return time.monotonic() < self._until

    def start(self, blocks: Mapping[int, Sequence[Block]], seconds: float) -> bool:
        """Use floors for so long. Jobs wait in these blocks of queues, perhaps below a floor.

        Returns whether these are other blocks than before."""
        with self._lock:
            if not self.active:
                self._forget()
            news = blocks != self._blocks
            if news:
                for qid, queue in self._queues.items():
                    queue.found(blocks.get(qid, ()))
            self._until, self._blocks = time.monotonic() + seconds, blocks
            return news

    def stop(self) -> None:
        """Use no floors."""
        with self._lock:
            self._forget()
            self._until = 0.0

    def _forget(self) -> None:
        """Nobody looks below the floors while they are not used, so they are not kept."""
        self._blocks = {}
        self._queues.clear()
        self._due.clear()
        self._past.clear()
        self._oldest.clear()

    def ranges(self, qids: Iterable[int]) -> list[tuple[int, Range]]:
        """What claims from these queues have to read, in order."""
        with self._lock:
            return [
                (qid, each)
                for qid in qids
                for each in (
                    self._queues[qid].ranges(self._blocks.get(qid, ()))
                    if qid in self._queues
                    else (EVERYTHING,)
                )
            ]

    def floor_of(self, qid: int, priority: int) -> int:
        """The floor of a priority of a queue."""
        with self._lock:
            queue = self._queues.get(qid)
            if queue is None:
                return FIRST
            return queue.known.get(priority, queue.rest).value

    def due(self, qid: int) -> int:
        """No job of the queue is due by the clock before this time, in milliseconds."""
        with self._lock:
            return self._due[qid].value if qid in self._due else 0

    def past(self, qid: int) -> int:
        """The same for the retention of ended jobs."""
        with self._lock:
            return self._past[qid].value if qid in self._past else 0

    def oldest(self, qid: int, state: int) -> int:
        """No record of a job that ended in this way expires before this time, in milliseconds."""
        with self._lock:
            floor = self._oldest.get((qid, state))
            return 0 if floor is None else floor.value

    def times(self) -> tuple[list[int], list[int], list[int]]:
        """Queues, and both times of each."""
        with self._lock:
            qids = list({**self._due, **self._past})
            none = Floor(0)
            due = [self._due.get(qid, none).value for qid in qids]
            return qids, due, [self._past.get(qid, none).value for qid in qids]

    def claimed(
        self,
        qid: int,
        jobs: Sequence[tuple[int, int]],
        *,
        full: bool,
        next_seq: int,
        began: float,
        ended: float,
    ) -> None:
        """See QueueFloors.claimed."""
        with self._lock:
            if self.active:
                queue = self._queues.setdefault(qid, QueueFloors())
                queue.claimed(jobs, full=full, next_seq=next_seq, began=began, ended=ended)

    def nothing_due(self, qid: int, now: int, began: float, ended: float) -> None:
        """A look has found no job of the queue that is due at this time of the store, or before."""
        with self._lock:
            if self.active:
                self._due.setdefault(qid, Floor(0)).saw(now, began, ended)

    def nothing_past(self, qid: int, now: int, began: float, ended: float) -> None:
        """The same for the retention of ended jobs."""
        with self._lock:
            if self.active:
                self._past.setdefault(qid, Floor(0)).saw(now, began, ended)

    def oldest_is(self, qid: int, state: int, at_ms: int, began: float, ended: float) -> None:
        """A look has found no record of such a job that expires before this time."""
        with self._lock:
            if self.active:
                self._oldest.setdefault((qid, state), Floor(0)).saw(at_ms, began, ended)


# Statements of the general path that begin at floors while somebody holds a snapshot.

_FloorsOf = Callable[[Floors, Sequence[Any]], Sequence[Any]]


def _due(floors: Floors, parameters: Sequence[Any]) -> Sequence[Any]:
    return (floors.due(parameters[0]),)


STATEMENTS_WITH_FLOORS: dict[str, tuple[str, _FloorsOf]] = {
    **{
        SQL.hot[name]: (HOT_WITH_FLOORS[name], _due)
        for name in (
            "anything_due", "due", "stalled", "expired", "overdue",
            "next_due", "next_expiry", "next_wait",
        )
    },
    SQL.hot["claim_plain"]: (
        FLOORS["claim_plain"],
        lambda floors, parameters: as_columns(floors.ranges([parameters[4]])),
    ),
    SQL.upkeep["to_tick"]: (UPKEEP_WITH_FLOORS["to_tick"], lambda floors, _: floors.times()),
    SQL.upkeep["past_retention"]: (
        UPKEEP_WITH_FLOORS["past_retention"],
        lambda floors, parameters: (floors.past(parameters[0]),),
    ),
    SQL.upkeep["beyond_count"]: (
        UPKEEP_WITH_FLOORS["beyond_count"],
        lambda floors, parameters: (floors.oldest(parameters[0], parameters[1]),),
    ),
}  # fmt: skip
"""Statements that begin at floors while somebody holds a snapshot, and the floors that each one
takes as further parameters."""
