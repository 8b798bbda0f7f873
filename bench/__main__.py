"""Compare jobq with other job queues, print one table, and save all values."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from bench.drive import Failed, Unsupported
from bench.measures import MEASURES, Measure, values
from bench.report import number, table
from bench.results import Results
from bench.roster import CONTENDERS, SUITES, Contender, NotInstalled, jobq

LARGE = "backlog1m"


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


@click.command(help=__doc__)
@click.option(
    "--suite",
    type=click.Choice(sorted(SUITES)),
    default="sqlite",
    show_default=True,
    help="Set of libraries to compare.",
)
@click.option(
    "--only",
    metavar="NAMES",
    help="Compare these instead of a suite, separated by commas: " + ", ".join(CONTENDERS),
)
@click.option("--without", metavar="NAMES", help="Libraries to leave out, separated by commas.")
@click.option(
    "--url",
    multiple=True,
    metavar="URL",
    help="Also measure jobq on the store at this URL, which is not emptied.",
)
@click.option(
    "--measure",
    "measures",
    metavar="NAMES",
    help="Take only these measurements, separated by commas: " + ", ".join(MEASURES),
)
@click.option(
    "--runs",
    default=3,
    show_default=True,
    metavar="N",
    help="Number of runs. The table shows the medians.",
)
@click.option(
    "--seconds",
    default=1.5,
    show_default=True,
    metavar="SECONDS",
    help="Approximate duration of one measurement.",
)
@click.option(
    "--baseline",
    metavar="NAME",
    help="Library that ratios refer to. Default: the first one that is not jobq.",
)
@click.option(
    "--loop",
    type=click.Choice(["asyncio", "uvloop"]),
    help="Event loop of all asyncio libraries. Default: asyncio for SQLite, else uvloop.",
)
@click.option(
    "--million/--no-million",
    default=None,
    help="Measure the backlog of a million jobs with all libraries, or with none. "
    "Default: with jobq only.",
)
@click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File for all values. Default: out/bench/SUITE.json.",
)
def main(
    suite: str,
    only: str | None,
    without: str | None,
    url: tuple[str, ...],
    measures: str | None,
    runs: int,
    seconds: float,
    baseline: str | None,
    loop: str | None,
    million: bool | None,
    path: Path | None,
) -> None:
    console = Console()
    contenders = _contenders(console, suite, only, without, url)
    chosen = _measures(measures)
    results = Results(
        suite="chosen" if only else suite,
        seconds=seconds,
        contenders=[contender.name for contender in contenders],
        loop=loop
        or (
            "uvloop"
            if any(contender.place in ("valkey", "postgres") for contender in contenders)
            else "asyncio"
        ),
        baseline=_baseline(baseline, contenders),
    )
    _run(console, results, contenders, chosen, runs, million)
    path = path or Path("out/bench") / f"{results.suite}.json"
    results.save(path)
    if not console.is_terminal:  # in a file, lines may be as long as the table needs
        console = Console(width=max(console.width, 40 + 18 * len(contenders)))
    console.print(table(results))
    console.print(f"saved to {path}")
    sys.exit(
        1 if any((cell.note or "").startswith("failed") for cell in results.cells.values()) else 0
    )


def _contenders(
    console: Console, suite: str, only: str | None, without: str | None, urls: tuple[str, ...]
) -> list[Contender]:
    names = _names(only) or list(SUITES[suite])
    unknown = [name for name in names + _names(without) if name not in CONTENDERS]
    if unknown:
        raise click.ClickException(
            f"unknown library {', '.join(unknown)}: choose from {', '.join(CONTENDERS)}"
        )
    contenders = [CONTENDERS[name] for name in names if name not in _names(without)]
    contenders += [
        jobq(url, url, "memory" if url.startswith("memory:") else "theirs") for url in urls
    ]
    found = []
    for contender in contenders:
        try:
            contender.program()
        except NotInstalled as e:
            if only or not contender.optional:
                raise click.ClickException(str(e)) from None
            console.print(f"left out: {e}")
        else:
            found.append(contender)
    return found


def _measures(text: str | None) -> list[Measure]:
    unknown = [name for name in _names(text) if name not in MEASURES]
    if unknown:
        raise click.ClickException(
            f"unknown measurement {', '.join(unknown)}: choose from {', '.join(MEASURES)}"
        )
    return [MEASURES[name] for name in _names(text) or MEASURES]


def _baseline(name: str | None, contenders: list[Contender]) -> str:
    names = [contender.name for contender in contenders]
    if name is None:
        return next((name for name in names if not name.startswith("jobq")), names[0])
    if name not in names:
        raise click.ClickException(
            f"the baseline {name} is not measured: choose from {', '.join(names)}"
        )
    return name


def _run(
    console: Console,
    results: Results,
    contenders: list[Contender],
    measures: list[Measure],
    runs: int,
    million: bool | None,
) -> None:
    """Take every measurement with every contender in each round.

    So a disturbance of the machine affects all contenders. Round 0 does not count: it shows that
    everything works, and how many operations fill the time.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    sizes: dict[tuple[str, str], int] = {}
    pairs = [
        (measure, contender)
        for measure in measures
        for contender in contenders
        if _wanted(measure, contender, million)
    ]
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(
            "", total=(runs + 1) * len(pairs) - sum(measure.fixed for measure, _ in pairs)
        )
        for round in range(runs + 1):
            for measure, contender in pairs:
                if round == 0 and measure.fixed:
                    continue
                stage = "warm-up" if round == 0 else f"run {round}/{runs}"
                progress.update(bar, description=f"{stage}: {measure.key} {contender.name}")
                _measure(progress, results, measure, contender, sizes, counted=round > 0)
                progress.advance(bar)


def _wanted(measure: Measure, contender: Contender, million: bool | None) -> bool:
    if measure.key != LARGE:
        return True
    return contender.module == "jobq" if million is None else million


def _measure(
    progress: Progress,
    results: Results,
    measure: Measure,
    contender: Contender,
    sizes: dict[tuple[str, str], int],
    *,
    counted: bool,
) -> None:
    cells = [results.cell(row, unit, contender.name) for row, unit in measure.rows]
    if cells[0].note:
        return  # the library has no such feature, or failed before
    n = sizes.get((measure.key, contender.name), measure.probe)
    versions = results.versions.setdefault(contender.name, {})
    try:
        taken = list(values(measure, contender, n=n, loop=results.loop, versions=versions))
    except Unsupported as e:
        for cell in cells:
            cell.note = f"unsupported: {e}"
        return
    except Failed as e:
        for cell in cells:
            cell.note = f"failed: {e}"
        progress.console.print(
            f"[red]{measure.key} {contender.name} failed[/]: {e}", highlight=False
        )
        return
    if not measure.fixed:
        sizes[measure.key, contender.name] = int(
            min(max(taken[0][2] * results.seconds, measure.probe), measure.max_n)
        )
    if counted:
        for cell, (_, _, value) in zip(cells, taken, strict=True):
            cell.values.append(value)
        said = ", ".join(number(value, unit) for _, unit, value in taken)
        progress.console.print(
            f"[dim]{measure.key:>10} {contender.name:<14} {said}[/]", highlight=False
        )


if __name__ == "__main__":
    main()
