"""The table: a row per measurement, a column per contender, with ratios to the baseline."""

from __future__ import annotations

from rich.table import Table

from bench.results import Results


def number(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if unit == "ms":
        return f"{value:.2f} ms"
    if unit == "B":
        return f"{value:,.0f} B"
    return f"{value:,.0f}/s"


def table(results: Results) -> Table:
    """Build the table. ×n means n times as good as the baseline, for every unit."""
    runs = max((len(cell.values) for cell in results.cells.values()), default=0)
    made = Table(
        title=f"{results.suite}: medians of {runs} interleaved runs",
        caption=f"×n: n times as good as {results.baseline} (for ms and B, less is better). "
        f"{results.machine['cpu']}, {results.machine['cores']} cores, {results.began}, "
        f"commit {results.commit}.",
        title_justify="left",
        caption_justify="left",
    )
    made.add_column("measurement", no_wrap=True)
    for contender in results.contenders:
        made.add_column(contender, justify="right")
    for row, unit in results.units.items():
        made.add_row(
            row, *(_cell(results, row, unit, contender) for contender in results.contenders)
        )
    return made


def _cell(results: Results, row: str, unit: str, contender: str) -> str:
    cell = results.cells.get((row, contender))
    if cell is None:
        return ""
    if cell.median is None:
        return "[red]failed[/]" if (cell.note or "").startswith("failed") else "[dim]–[/]"
    ratio = results.ratio(row, contender)
    if contender == results.baseline or ratio is None:
        return number(cell.median, unit)
    colour = "green" if ratio >= 1 else "yellow"
    return f"{number(cell.median, unit)} [{colour}]×{ratio:.3g}[/]"
