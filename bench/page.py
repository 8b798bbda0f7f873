"""Write docs/benchmarks.md and its plots from saved runs.

python -m bench.page out/bench/sqlite.json out/bench/valkey.json out/bench/postgres.json
"""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial
from pathlib import Path

from bench import svg
from bench.report import number
from bench.results import Results, load

DOCS = Path("docs")
PLOTTED = (
    "drain, concurrency 100",
    "drain, concurrency 10",
    "drain, concurrency 1",
    "enqueue concurrently",
    "enqueue in bulk",
)
ABOUT = {
    "sqlite": "`make bench` runs this suite.",
    "valkey": "`make bench-peers` runs this suite.",
    "postgres": (
        "`make bench-postgres` runs this suite. All libraries use one PostgreSQL server with\n"
        "durable commits. All store results, except pgqueuer, which keeps none. Two more\n"
        "benchmarks are about PostgreSQL alone, have bounds and print tables of their own:\n"
        "`python -m bench.backlog_postgres` (claims at ten million waiting jobs, and the space of\n"
        "drained jobs) and `python -m bench.pinned` (a transaction that somebody holds open)."
    ),
}
"""What the page says about each suite besides its figures."""


def page(runs: list[Results]) -> str:
    """The whole page. Every number comes from a saved run."""
    parts = [
        "# Benchmarks",
        "<!-- Written by `python -m bench.page` from saved runs. Run those again, then this. -->",
        _measured(runs),
        "These tables compare jobq with other job queues on one machine.\n"
        "[bench/README.md](../bench/README.md) says how we measure, "
        "which libraries take part, and\n"
        "with which settings. ×n means n times as good as the baseline; for ms and B, less is\n"
        "better. A dash means that the library has no such feature. [What grows](growth.md) has\n"
        "figures at several sizes.",
    ]
    for run in runs:
        parts += [
            _head(run),
            *([ABOUT[run.suite]] if run.suite in ABOUT else []),
            f"![{run.suite}](benchmarks-{run.suite}.svg)",
            _table(run),
            _versions(run),
        ]
    for suite in sorted(ABOUT.keys() - {run.suite for run in runs}):
        parts += [f"## {suite}", ABOUT[suite], "No run of it is stored here yet."]
    return "\n\n".join(parts) + "\n"


def _measured(runs: list[Results]) -> str:
    """The commit of each run, and the versions of jobq, because the code may be newer."""
    named = []
    for run in runs:
        packages = (found.get("jobq") for found in run.versions.values())
        version = next((found for found in packages if found), "unknown")
        named.append(f"`{run.commit}` ({run.suite}, jobq {version})")
    return f"Measured on commit {', '.join(named)}; not measured again since."


def _head(run: Results) -> str:
    machine, day = run.machine, datetime.fromisoformat(run.began).strftime("%d %B %Y")
    counted = max((len(cell.values) for cell in run.cells.values()), default=0)
    return (
        f"## {run.suite}\n\n{day}, commit `{run.commit}`: {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, event loop {run.loop}, "
        f"load at start {machine['load_at_start']}. "
        f"Medians of {counted} interleaved runs. Baseline: {run.baseline}."
    )


def _table(run: Results) -> str:
    lines = ["| | " + " | ".join(run.contenders) + " |", "|---|" + "---:|" * len(run.contenders)]
    for row, unit in run.units.items():
        lines.append(
            f"| {row} | "
            + " | ".join(_cell(run, row, unit, contender) for contender in run.contenders)
            + " |"
        )
    return "\n".join(lines)


def _cell(run: Results, row: str, unit: str, contender: str) -> str:
    value, ratio = run.median(row, contender), run.ratio(row, contender)
    if value is None:
        note = (run.cells[row, contender].note or "") if (row, contender) in run.cells else ""
        return "failed" if note.startswith("failed") else "–"
    return (
        number(value, unit)
        if ratio is None or contender == run.baseline
        else f"{number(value, unit)} ×{ratio:.3g}"
    )


def _versions(run: Results) -> str:
    known = [
        f"{name} ({', '.join(f'{p} {v}' for p, v in packages.items())})"
        for name, packages in run.versions.items()
        if packages
    ]
    return "Versions: " + "; ".join(known) + "."


def plot(run: Results) -> str:
    """A bar chart per row, with the best value on top. Adapts to light and dark mode."""
    panels, y = [], 0
    for row in PLOTTED:
        values = {
            name: value for name in run.contenders if (value := run.median(row, name)) is not None
        }
        if values:
            panels.append(svg.bars(row, values, partial(number, unit=run.units[row]), y))
            y += svg.bars_height(len(values))
    return svg.document(run.suite, y, panels)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    runs = [load(Path(path)) for path in sys.argv[1:]]
    (DOCS / "benchmarks.md").write_text(page(runs))
    for run in runs:
        (DOCS / f"benchmarks-{run.suite}.svg").write_text(plot(run))
    print(f"wrote {DOCS / 'benchmarks.md'} and {len(runs)} plots")


if __name__ == "__main__":
    main()
