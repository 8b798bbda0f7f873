"""One figure at several sizes, its bound, and the files that keep figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from bench.results import machine
from bench.roster import commit

Kind = Literal["ratio", "most", "plateau", "none"]


class Bound(msgspec.Struct, frozen=True):
    """What a figure may be.

    `ratio`: the value at the largest size is at most `value` times the one at the smallest.
    `most`: no value is above `value`. `plateau`: the highest value of the last quarter is at most
    `value` times the highest of the quarter before it. `none`: nothing is checked, and `why` says
    why. A difference of less than `floor`, in the figure's unit, never exceeds a bound.
    """

    kind: Kind
    value: float = 0.0
    floor: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        if self.kind == "none":
            return "–"
        if self.kind == "most":
            return f"≤ {self.value:,.10g}"
        return f"≤ ×{self.value:g}" + (f" or +{self.floor:g}" if self.floor else "")


def flat(times: float = 2.0, floor: float = 0.0) -> Bound:
    """The figure must not grow with the size by more than this."""
    return Bound("ratio", times, floor)


def most(value: float) -> Bound:
    """No value may be above this one."""
    return Bound("most", value)


def plateau(times: float = 1.1) -> Bound:
    """The figure stops growing."""
    return Bound("plateau", times)


def unbounded(why: str) -> Bound:
    """The figure grows, or need not be checked."""
    return Bound("none", why=why)


SAME = flat(2.0, floor=1.0)
"""A call that does the same work at every size.

An index of a thousand times as many entries has one or two levels more (a page holds more than a
hundred entries), and its pages are less often in a cache: at most twice the work. A difference of
less than 1 ms does not count: the shortest calls take 0.1 ms, and one interrupt takes as long. A
call that reads the backlog would show as ×1000."""

EACH = flat(2.0, floor=0.01)
"""A call that has to read all of something, divided by how many there are: each costs the same, up
to twice for caches that are too small. 0.01 ms: the fixed part of such a call, up to 5 ms, is
divided by the 500 items of the smallest size."""

TICK = flat(2.0, floor=10.0)
"""A tick looks at the same number of rows at every size, but only a store that has too much of
something deletes it: up to 500 rows, at 20 µs each."""


class Measure(NamedTuple):
    """What a figure counts, and what it may be."""

    unit: str
    bound: Bound


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of one store, with a value per size."""

    store: str
    dimension: str
    what: str
    unit: str  # "ms", "s", "B", "MB" or "times"; for a number of things, their name in the plural
    sizes: tuple[float, ...]
    values: tuple[float, ...]
    bound: Bound

    @property
    def ratio(self) -> float | None:
        """How many times the first value the last one is. For a plateau: the last quarter against
        the one before. None if there is nothing to divide by."""
        if self.bound.kind == "plateau":
            before, last = self._quarters()
        else:
            before, last = self.values[0], self.values[-1]
        return last / before if before else None

    def _quarters(self) -> tuple[float, float]:
        quarter = max(1, len(self.values) // 4)
        return max(self.values[-2 * quarter : -quarter] or self.values), max(self.values[-quarter:])

    @property
    def kept(self) -> bool:
        """Whether the figure keeps its bound."""
        bound = self.bound
        if bound.kind == "none":
            return True
        if bound.kind == "most":
            return max(self.values) <= bound.value
        if len(self.values) < 2:
            return False  # one size is compared with nothing
        if bound.kind == "plateau":
            before, last = self._quarters()
        else:
            before, last = self.values[0], self.values[-1]
        return last - before <= bound.floor or last <= before * bound.value


def shown(value: float, unit: str) -> str:
    """A value with its unit."""
    if unit == "ms":
        return f"{value:.3f} ms" if value < 1 else f"{value:,.1f} ms"
    if unit == "MB":
        return f"{value:,.1f} MB"
    if unit == "times":
        return f"{value:.2f} times"
    return f"{value:,.0f} {unit}" if value == int(value) else f"{value:,.1f} {unit}"


@dataclass
class Run:
    """The figures of a run, or of several that measured different things."""

    figures: list[Figure]
    began: str
    commit: str
    machine: dict[str, Any]
    quick: bool

    @staticmethod
    def new(*, quick: bool, began: str) -> Run:
        """A run without figures."""
        return Run(figures=[], began=began, commit=commit(), machine=machine(), quick=quick)

    def add(self, figures: list[Figure]) -> None:
        """Add figures. They replace those of the same store and dimension."""
        new = {(each.store, each.dimension) for each in figures}
        kept = [each for each in self.figures if (each.store, each.dimension) not in new]
        self.figures = kept + figures

    @property
    def exceeded(self) -> list[Figure]:
        """The figures that exceed their bound."""
        return [each for each in self.figures if not each.kept]

    def save(self, path: Path) -> None:
        """Save the run."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @staticmethod
    def load(path: Path) -> Run:
        """Load a saved run."""
        return msgspec.json.decode(path.read_bytes(), type=Run)
