"""Where claims begin to read, and when the leader looks from the beginning."""

from __future__ import annotations

import random

import pytest

from jobq.core.values.checks import MAX_PRIORITY
from jobq.stores.postgres import snapshots
from jobq.stores.postgres.floors import (
    EVERYTHING,
    FIRST,
    LAG_S,
    Block,
    Floor,
    Floors,
    QueueFloors,
    Range,
)
from jobq.stores.postgres.snapshots import Held

LATER = 2 * LAG_S


def test_a_floor_needs_two_looks_with_time_between_them() -> None:
    floor = Floor()
    floor.saw(10, 0.0, 0.1)
    floor.saw(20, 0.1 + LAG_S / 2, 0.2 + LAG_S / 2)
    assert floor.value == FIRST
    floor.saw(30, 0.1 + LAG_S, 0.1 + LAG_S)
    assert floor.value == 10


def test_a_job_that_the_second_look_finds_keeps_the_floor_low() -> None:
    floor = Floor()
    floor.saw(10, 0.0, 0.1)
    floor.saw(5, LATER, LATER)  # the job was not visible before
    assert floor.value == FIRST
    floor.saw(20, 2 * LATER, 2 * LATER)
    assert floor.value == 5


def test_a_job_below_the_floor_does_not_change_it() -> None:
    floor = Floor(100)
    floor.saw(5, 0.0, 0.0)
    floor.saw(5, LATER, LATER)
    assert floor.value == 100


def test_a_queue_that_nobody_has_looked_at_is_read_as_a_whole() -> None:
    assert QueueFloors().ranges() == [EVERYTHING]
    assert Floors().ranges([1]) == [(1, EVERYTHING)]


def test_blocks_below_a_floor_are_read_before_it() -> None:
    queue = QueueFloors()
    for at in (0.0, LATER):
        queue.claimed([(0, 5 << 20)], full=False, next_seq=9 << 20, began=at, ended=at)
    for at in (2 * LATER, 3 * LATER):
        queue.claimed([], full=False, next_seq=9 << 20, began=at, ended=at)
    late = Range(0, 0, 3 << 20, (4 << 20) - 1)
    assert late in queue.ranges([Block(0, 3)])
    assert late not in queue.ranges([Block(7, 3)])
    assert queue.ranges([Block(0, 50)]) == queue.ranges()  # is read anyway


class Simulation:
    """A queue of jobs, claims that read only ranges, and floors that follow them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue = QueueFloors()
        self.jobs: list[tuple[int, int]] = []  # priority and place
        self.next_seq = 0
        self.at = 0.0

    def put(self) -> None:
        self.next_seq += 1 << 20
        priority = self.random.choice([0, 0, 0, 1, 5, 9, self.random.randrange(40), MAX_PRIORITY])
        lifo = self.random.random() < 0.1
        for n in range(self.random.randrange(1, 5)):
            self.jobs.append((priority, -(self.next_seq + n) if lifo else self.next_seq + n))

    def claim(self, limit: int) -> None:
        found: list[tuple[int, int]] = []
        for high, low, since, until in self.queue.ranges():
            inside = [
                (priority, next_seq)
                for priority, next_seq in self.jobs
                if low <= priority <= high and since <= next_seq <= until
            ]
            found += sorted(inside, key=_in_order)
        assert len(found) == len(set(found)), "a job was read twice"
        assert sorted(found) == sorted(self.jobs), "a job was not found"
        claimed = sorted(found[:limit], key=_in_order)
        self.jobs = [job for job in self.jobs if job not in claimed]
        self.at += LATER
        self.queue.claimed(
            claimed,
            full=len(claimed) == limit,
            next_seq=self.next_seq,
            began=self.at,
            ended=self.at,
        )


def _in_order(job: tuple[int, int]) -> tuple[int, int]:
    return -job[0], job[1]


@pytest.mark.parametrize("seed", range(50))
def test_claims_find_every_job_that_is_put_behind_the_floors(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(100):
        if simulation.random.random() < 0.6:
            simulation.put()
        else:
            simulation.claim(simulation.random.randrange(1, 9))


def test_a_snapshot_that_gets_older_is_held() -> None:
    leader = Held()
    leader.saw(100, 5, 0.0)
    assert not leader.held
    leader.saw(200, 105, snapshots.HELD_S)
    assert leader.held
    assert leader.floors
    leader.saw(300, 3, 2 * snapshots.HELD_S)
    assert not leader.floors


def test_short_snapshots_are_not_held() -> None:
    leader = Held()
    for n in range(10):
        leader.saw(100 * n, 20, n * snapshots.HELD_S)
        assert not leader.held
    leader.saw(1000, None, 10 * snapshots.HELD_S)
    assert not leader.held


def test_looks_from_the_beginning_take_a_bounded_share_of_the_time() -> None:
    leader = Held()
    leader.saw(100, 5, 0.0)
    leader.saw(200, 105, snapshots.HELD_S)
    assert leader.full(10.0)
    leader.scanned(10.0, 12.0)
    assert not leader.full(12.0 + 2 * snapshots.SHARE - 1)
    assert leader.full(12.0 + 2 * snapshots.SHARE)


def test_floors_stay_until_a_look_from_the_beginning_is_fast_again() -> None:
    leader = Held()
    leader.saw(100, 5, 0.0)
    leader.saw(200, 105, snapshots.HELD_S)
    leader.scanned(10.0, 12.0)
    leader.saw(300, 3, 20.0)
    assert not leader.held
    assert leader.floors
    leader.scanned(40.0, 40.001)
    assert not leader.floors
