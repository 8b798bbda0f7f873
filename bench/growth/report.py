"""The tables of a run, and which bounds it exceeds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.growth.compared import Dimension
from bench.growth.figures import Figure, Run, shown
from bench.svg import short


def ratio(figure: Figure) -> str:
    """The ratio of a figure, as tables show it."""
    return "–" if figure.ratio is None else f"×{figure.ratio:.2f}"


def ends(figure: Figure) -> list[tuple[float, float]]:
    """Sizes with their values. Of a long series, three: the first, the middle and the last."""
    pairs = list(zip(figure.sizes, figure.values, strict=True))
    return pairs if len(pairs) <= 3 else [pairs[0], pairs[len(pairs) // 2], pairs[-1]]


def table(dimension: Dimension, figures: Sequence[Figure]) -> Table:
    """The figures of one store and dimension."""
    sizes = [short(size) for size, _ in ends(figures[0])]
    made = Table(title=f"{figures[0].store}: {dimension.title}", title_justify="left")
    for column in ("", *sizes, "ratio", "bound", ""):
        made.add_column(column, justify="right" if column else "left")
    for figure in figures:
        made.add_row(
            figure.what,
            *(shown(value, figure.unit) for _, value in ends(figure)),
            ratio(figure),
            str(figure.bound),
            "" if figure.kept else "[red]exceeded[/]",
        )
    return made


def report(run: Run, console: Console) -> int:
    """Say which bounds are exceeded. Returns the exit code."""
    exceeded = run.exceeded
    for figure in exceeded:
        console.print(
            f"exceeded: {figure.store}, {figure.dimension}, {figure.what}: {ratio(figure)}, "
            f"{shown(figure.values[-1], figure.unit)} at {short(figure.sizes[-1])} "
            f"(bound {figure.bound})"
        )
    checked = sum(figure.bound.kind != "none" for figure in run.figures)
    console.print(f"{checked} bounds, {len(exceeded)} exceeded")
    return 1 if exceeded or not checked else 0
