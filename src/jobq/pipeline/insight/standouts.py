"""What stands out in a period, compared with an earlier one of the same length.

Chance must not stand out: a change counts only if it is large and there were enough runs to tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

LARGE = 1.5
"""A number or a duration stands out if it grew or shrank by at least this factor."""
LARGE_SHARE = 0.01
"""A share of failing runs stands out if it changed by at least this much: one percentage point."""
SURE = 4.0
"""Standard deviations that a change of counts must have. At 4, one count in 16,000 gets there by
chance."""
ENOUGH = 30
"""Runs that both periods must have before their mean durations are compared."""

NOTICEABLE_MS = 10.0
"""Milliseconds that a mean duration must change by. Two milliseconds instead of one are no news."""

What = Literal["new", "gone", "runs", "failing", "run time", "wait"]


class TaskSums(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one task in one period, of rows of `task_hour`."""

    tenant: str
    queue: str
    name: str
    runs: int
    failing: int  # runs that were retried, failed or stalled
    run_ms: int
    wait_ms: int


class Standout(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `then` and `now` are runs, a share, or milliseconds per run."""

    tenant: str
    queue: str
    name: str
    what: What
    then: float
    now: float
    factor: float  # now / then; 0 if there is no such number
    worse: bool


def standouts(then: Iterable[TaskSums], now: Iterable[TaskSums]) -> list[Standout]:
    """What changed between two periods, the most important first."""
    before = {(sums.tenant, sums.queue, sums.name): sums for sums in then}
    after = {(sums.tenant, sums.queue, sums.name): sums for sums in now}
    found = [
        change
        for task in before.keys() | after.keys()
        for change in _changes(before.get(task), after.get(task))
    ]
    return sorted(found, key=_rank)


def _changes(then: TaskSums | None, now: TaskSums | None) -> Iterator[Standout]:
    if then is None or now is None:
        known = now or then
        if known is not None and math.sqrt(known.runs) >= SURE:
            yield _change(known, "gone" if now is None else "new", _runs(then), _runs(now))
        return
    if _grew(then.runs, now.runs) and abs(now.runs - then.runs) >= SURE * math.sqrt(
        now.runs + then.runs
    ):
        yield _change(now, "runs", then.runs, now.runs)
    if _failing_changed(then, now):
        yield _change(now, "failing", then.failing / then.runs, now.failing / now.runs)
    if min(then.runs, now.runs) >= ENOUGH:
        yield from _slower(now, "run time", then.run_ms / then.runs, now.run_ms / now.runs)
        yield from _slower(now, "wait", then.wait_ms / then.runs, now.wait_ms / now.runs)


def _slower(task: TaskSums, what: What, then_ms: float, now_ms: float) -> Iterator[Standout]:
    if _grew(then_ms, now_ms) and abs(now_ms - then_ms) >= NOTICEABLE_MS:
        yield _change(task, what, then_ms, now_ms)


def _runs(sums: TaskSums | None) -> int:
    return 0 if sums is None else sums.runs


def _grew(then: float, now: float) -> bool:
    """Whether the larger of the two is at least LARGE times the smaller one."""
    return max(then, now) >= LARGE * max(min(then, now), 1e-9)


def _failing_changed(then: TaskSums, now: TaskSums) -> bool:
    """Whether the share of failing runs changed by much, by the test of two proportions."""
    change = abs(now.failing / now.runs - then.failing / then.runs)
    both = (then.failing + now.failing) / (then.runs + now.runs)
    deviation = math.sqrt(both * (1 - both) * (1 / then.runs + 1 / now.runs))
    return change >= LARGE_SHARE and change >= SURE * deviation


def _change(task: TaskSums, what: What, then: float, now: float) -> Standout:
    return Standout(
        tenant=task.tenant,
        queue=task.queue,
        name=task.name,
        what=what,
        then=then,
        now=now,
        factor=now / then if then else 0.0,
        worse=what == "gone" or (what in ("failing", "run time", "wait") and now > then),
    )


def _rank(change: Standout) -> tuple[object, ...]:
    """Changes for the worse first, failures before durations, then by how much changed."""
    order = ("failing", "gone", "run time", "wait", "runs", "new")
    size = abs(math.log(change.factor)) if change.factor else math.inf
    place = (change.tenant, change.queue, change.name)
    return (not change.worse, order.index(change.what), -size, *place)
