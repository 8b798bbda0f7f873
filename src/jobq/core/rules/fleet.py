"""How a fleet shares work: how often each worker polls, and which queue is next. Pure.

In a fleet of more than 100 workers, each worker polls, sends heartbeats and asks to lead less
often: a thousand workers that poll twice a minute already poll 30 times a second together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

_SMALL_FLEET = 100
_MAX_STRETCH = 6.0


def stretch(workers: int) -> float:
    """The factor by which intervals grow: 1 for up to 100 workers, 6 from 600 workers on."""
    return min(_MAX_STRETCH, max(1.0, workers / _SMALL_FLEET))


class Pace:
    """What a worker knows about its fleet. Every beat sets it, and the worker's loops read it."""

    stretch = 1.0

    def heard(self, workers: int) -> None:
        """Set the approximate number of workers."""
        self.stretch = stretch(workers)


# In which order a worker looks into its queues. Pure.
#
# A claim names queues in an order, and the store takes jobs from the first that has some. So a
# worker that changes the order from claim to claim decides how the queues share its slots.

T = TypeVar("T")

MAX_WEIGHT = 100
"""A worker goes through as many orders as the sum of the weights."""


def in_turns(queues: Sequence[T]) -> list[tuple[T, ...]]:
    """Each queue is first in turn, so that none is always last."""
    return [tuple(queues[n:]) + tuple(queues[:n]) for n in range(len(queues))]


def in_strict_order(queues: Sequence[T]) -> list[tuple[T, ...]]:
    """A queue gets a slot only if those before it have no job that could start."""
    return [tuple(queues)]


def by_weight(queues: Sequence[T], weights: Mapping[T, int]) -> list[tuple[T, ...]]:
    """A queue of weight 3 is first three times as often as a queue of weight 1.

    The turns are spread evenly: in each step every queue gains its weight, the highest is first and
    pays the sum. The rest of each order follows by what the queues have gained.
    """
    gained = dict.fromkeys(queues, 0)
    total = sum(weights[queue] for queue in queues)
    orders: list[tuple[T, ...]] = []
    for _ in range(total):
        for queue in queues:
            gained[queue] += weights[queue]
        order = sorted(queues, key=lambda queue: -gained[queue])
        gained[order[0]] -= total
        orders.append(tuple(order))
    return orders
