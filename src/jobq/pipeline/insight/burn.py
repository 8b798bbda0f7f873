"""Burn rates: how fast a queue uses up the error budget of a target.

A target with the objective 0.99 allows 1 % to miss it: its budget. At a burn rate of 1, the budget
of any period lasts for exactly that period. At 6, a budget for 30 days is gone after 5 days.

A rate over a long window says that it matters, and one over a short window that it still goes on.
So a target counts as burning only if both windows say so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

SHORT_HOURS, LONG_HOURS = 1, 6
"""The windows, in hours. The table `slo` has one row per hour, so one hour is the shortest."""
BURNING = 6.0
"""The rate from which on a target is burning: 5 % of a budget for 30 days in 6 hours."""
MOST = 1000.0
"""The highest rate that is reported. A target of 100 % has no budget, so its rate is infinite."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of one target in one queue: a row of `slo`. `hour` counts from the epoch."""

    tenant: str
    queue: str
    target: str
    objective: float
    hour: int
    good: int
    total: int


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """The burn rates of a target in a queue at the end of an hour. None: nothing to measure."""

    tenant: str
    queue: str
    target: str
    objective: float
    hour: int
    short: float | None
    long: float | None

    @property
    def burning(self) -> bool:
        """Whether both windows reach the rate that needs attention."""
        return min(self.short or 0.0, self.long or 0.0) >= BURNING


def rate(good: int, total: int, objective: float) -> float | None:
    """The burn rate of these counts. None if there are none."""
    if total == 0:
        return None
    missed, budget = (total - good) / total, 1 - objective
    if budget <= 0:
        return MOST if missed else 0.0
    return min(missed / budget, MOST)


def burn_rates(slices: Iterable[Slice], hours: Sequence[int]) -> list[Burn]:
    """The rates of every target at the end of each of these hours, in the order of `slices`.

    `slices` must reach back LONG_HOURS - 1 before the first hour."""
    targets: dict[tuple[str, str, str, float], dict[int, Slice]] = defaultdict(dict)
    for one in slices:
        targets[one.tenant, one.queue, one.target, one.objective][one.hour] = one
    return [
        Burn(
            tenant=tenant,
            queue=queue,
            target=target,
            objective=objective,
            hour=hour,
            short=_over(known, hour, SHORT_HOURS, objective),
            long=_over(known, hour, LONG_HOURS, objective),
        )
        for (tenant, queue, target, objective), known in targets.items()
        for hour in hours
    ]


def _over(known: Mapping[int, Slice], hour: int, window: int, objective: float) -> float | None:
    within = [known[n] for n in range(hour - window + 1, hour + 1) if n in known]
    return rate(sum(s.good for s in within), sum(s.total for s in within), objective)
