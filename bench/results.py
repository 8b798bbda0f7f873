"""The results of a run: values by row and contender, their medians, and the file format."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.roster import commit


@dataclass(kw_only=True)
class Cell:
    """A contender's values in one row, or the reason why there are none."""

    values: list[float] = field(default_factory=list)
    note: str | None = None  # "unsupported: …", "failed: …"

    @property
    def median(self) -> float | None:
        return median(self.values) if self.values else None


@dataclass(kw_only=True)
class Results:
    """One run. Rows are in the order of their first measurement."""

    suite: str
    loop: str
    seconds: float
    contenders: list[str]
    baseline: str
    units: dict[str, str] = field(default_factory=dict)  # row → unit
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)  # (row, contender)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    commit: str = field(default_factory=commit)

    def cell(self, row: str, unit: str, contender: str) -> Cell:
        self.units.setdefault(row, unit)
        return self.cells.setdefault((row, contender), Cell())

    def median(self, row: str, contender: str) -> float | None:
        cell = self.cells.get((row, contender))
        return cell.median if cell else None

    def ratio(self, row: str, contender: str) -> float | None:
        """How many times as good as the baseline: above 1 is better, for every unit."""
        mine, theirs = self.median(row, contender), self.median(row, self.baseline)
        if not mine or not theirs:
            return None
        return mine / theirs if self.units[row] == "/s" else theirs / mine

    def save(self, path: Path) -> None:
        """Save the results, with every single value."""
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {
                "row": row,
                "unit": unit,
                "contender": contender,
                "median": cell.median,
                "values": cell.values,
                "note": cell.note,
            }
            for row, unit in self.units.items()
            for contender in self.contenders
            if (cell := self.cells.get((row, contender)))
        ]
        head = {name: getattr(self, name) for name in HEAD}
        path.write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n")


HEAD = (
    "suite",
    "began",
    "commit",
    "machine",
    "loop",
    "seconds",
    "contenders",
    "baseline",
    "versions",
)


def load(path: Path) -> Results:
    """Load a saved run."""
    data = json.loads(path.read_text())
    results = Results(**{name: data[name] for name in HEAD})
    for row in data["rows"]:
        cell = results.cell(row["row"], row["unit"], row["contender"])
        cell.values, cell.note = row["values"], row["note"]
    return results


def machine() -> dict[str, Any]:
    """Facts about the machine, to tell whether two runs can be compared."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
