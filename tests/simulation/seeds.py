"""Runs seeds, twice each, and makes failing ones small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.simulation.app import Shape
from tests.simulation.invariants import check
from tests.simulation.run import Result, simulate
from tests.simulation.scenario import Scenario, draw

T = TypeVar("T")

SHRINK_RUNS = 400
"""Runs that shrinking may take: about a minute."""


@dataclass(frozen=True)
class Seed:
    """How a seed went."""

    seed: int
    result: Result
    problems: tuple[str, ...]


def run_seed(seed: int, *, store: str = "memory", twice: bool = True) -> Seed:
    """Run a seed. Its second run must leave the same trace."""
    scenario = draw(seed)
    first = simulate(scenario, check, store=store)
    problems = first.problems
    if twice and not problems:
        second = simulate(scenario, None, store=store)
        if second.digest != first.digest:
            problems = ("two runs of the seed differ: something depends on more than the seed",)
    return Seed(seed, first, problems)


Counted = tuple[int, int, int, float]
"""Jobs, calls of the store, kills, and virtual seconds."""


def run_part(part: tuple[int, int, str]) -> tuple[int, dict[int, tuple[str, ...]], Counted]:
    """Run the seeds from `part[0]` to before `part[1]` on the store `part[2]`.

    Returns their number, the problems of those that fail, and what was counted. It is not in
    `__main__`, because processes that `spawn` starts do not import the `__main__` of a package.
    """
    start, end, store = part
    failed: dict[int, tuple[str, ...]] = {}
    jobs = calls = kills = 0
    seconds = 0.0
    for seed in range(start, end):
        found = run_seed(seed, store=store)
        if found.problems:
            failed[seed] = found.problems
        jobs += found.result.jobs
        calls += found.result.calls
        kills += found.result.kills
        seconds += found.result.seconds
    return end - start, failed, (jobs, calls, kills, seconds)


def fails(scenario: Scenario, store: str = "memory") -> bool:
    """Whether a scenario breaks an invariant."""
    return bool(simulate(scenario, check, store=store).problems)


def shrink(scenario: Scenario, failing: Callable[[Scenario], bool] = fails) -> Scenario:
    """A smaller scenario that fails too: fewer faults, jobs and processes."""
    return _Shrinking(failing).smallest(scenario)


class _Shrinking:
    def __init__(self, failing: Callable[[Scenario], bool]) -> None:
        self._failing = failing
        self._left = SHRINK_RUNS

    def _fails(self, candidate: Scenario) -> bool:
        self._left -= 1
        return self._left >= 0 and self._failing(candidate)

    def smallest(self, scenario: Scenario) -> Scenario:
        before = None
        while before != scenario and self._left > 0:
            before = scenario
            scenario = self._simpler(scenario)
            scenario = self._fewer(scenario, "faults")
            scenario = self._fewer(scenario, "actions")
        return scenario

    def _simpler(self, scenario: Scenario) -> Scenario:
        simpler: list[dict[str, Any]] = [
            {"lossy": 0.0, "slow": 0.0},
            {"relays": 0},
            {"lanes": None},
            {"shape": Shape()},
            *({"workers": scenario.workers[:n]} for n in range(1, len(scenario.workers))),
        ]
        for changes in simpler:
            candidate = replace(scenario, **changes)
            if candidate != scenario and self._fails(candidate):
                scenario = candidate
        return scenario

    def _fewer(self, scenario: Scenario, what: str) -> Scenario:
        def fails_with(part: tuple[Any, ...]) -> bool:
            return self._fails(_changed(scenario, {what: part}))

        return _changed(scenario, {what: _fewer(getattr(scenario, what), fails_with)})


def _changed(scenario: Scenario, changes: dict[str, Any]) -> Scenario:
    return replace(scenario, **changes)


def _fewer(items: tuple[T, ...], failing: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leave out as many items as possible: halves first, single ones last."""
    size = max(1, len(items) // 2)
    while items:
        start, removed = 0, False
        while start < len(items):
            candidate = items[:start] + items[start + size :]
            if failing(candidate):
                items, removed = candidate, True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    return items


# ── telling ───────────────────────────────────────────────────────────────────────────────────────

_BORING = (" beat", " lead", " sleep", " tick", " list_schedules", " read_events", " queues",
           " ack_events", " count", " declare", " migrate", " readers")  # fmt: skip


def timeline(scenario: Scenario, *, store: str = "memory", all: bool = False) -> str:
    """The story of a scenario, line by line."""
    result = simulate(scenario, check, keep_story=True, store=store)
    lines = [
        f"seed {scenario.seed}: workers with {', '.join(map(str, scenario.workers))} slots, "
        f"{scenario.shape}, lanes {scenario.lanes}, relays {scenario.relays}, "
        f"lossy {scenario.lossy}, slow {scenario.slow}",
        *_titled("what is done", scenario.actions),
        *_titled("faults", scenario.faults),
        "what happened",
    ]
    for at, who, what in result.story:
        if all or not any(f"{part} →" in f" {what}" for part in _BORING) or who == "!":
            lines.append(f"  {at:9.4f} {who:>8}  {what}")
    lines += _titled("problems", result.problems or ("none",))
    return "\n".join(lines)


def _titled(title: str, items: Sequence[object]) -> list[str]:
    return [title, *(f"  {item}" for item in items)]
