"""The plan of a run: which fault comes after which share of the jobs. A seed repeats it."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

KILLS = ("kill worker", "kill producer", "kill server")
OTHERS = (
    "freeze worker", "freeze producer", "freeze server", "terminate worker",
    "network delay", "network lost replies", "network half-open", "network reset",
    "failover", "disk full", "clock forward", "clock back", "power cut",
)  # fmt: skip
"""Each kind that a store can have comes equally often."""
KINDS = KILLS + OTHERS

_WEIGHTS = {"kill worker": 3, "kill producer": 1, "kill server": 1}


class Step(NamedTuple):
    """A fault, and the share of jobs (0 to 1) that have ended when it comes."""

    share: float
    kind: str
    seed: int


def make(kills: int, others: int, kinds: Collection[str], seed: int) -> list[Step]:
    """A plan of `kills` kills with other faults between them, spread over the run."""
    rng = random.Random(seed)
    deadly = [kind for kind in KILLS if kind in kinds]
    weights = [_WEIGHTS[kind] for kind in deadly]
    chosen = rng.choices(deadly, weights, k=kills) if deadly else []
    mild = [kind for kind in OTHERS if kind in kinds]
    rounds = [rng.sample(mild, len(mild)) for _ in range(others // len(mild) + 1)] if mild else []
    chosen += [kind for one in rounds for kind in one][:others]
    rng.shuffle(chosen)
    return [
        Step((n + 1) / (len(chosen) + 2), kind, rng.randrange(2**32))
        for n, kind in enumerate(chosen)
    ]
