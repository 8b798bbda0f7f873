"""Tables that fit the terminal without losing anything unseen.

Where the columns do not fit side by side, columns that can be spared are left out and named below the table. If that is not
enough, every row is shown as names and values below each other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jobq.cli.text import clean

Cell = str | Text | int | float | None

_SHORTEST = 16
"""The fewest characters that a column which shrinks is cut to."""


class Column(NamedTuple):
    """A column's title, and how it behaves when the terminal is narrow."""

    title: str
    right: bool = False
    shrinks: bool = False  # may be cut with an ellipsis; the others are kept whole
    spare: int = 0  # above 0: may be left out, the highest first


class Fitted:
    """Rows of cells, laid out when the width is known."""

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Sequence[Text]], title: str | None
    ) -> None:
        self._columns = columns
        self._rows = rows
        self._title = title
        self._gap = 1 if sys.stdout.isatty() else 2
        self._least = [self._narrowest(n) for n in range(len(columns))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As a table, a table with a note, or below each other."""
        kept = self._fitting(options.max_width)
        if kept is None:
            yield from self._below_each_other()
            return
        yield self._grid(kept)
        if left_out := [column.title for n, column in enumerate(self._columns) if n not in kept]:
            yield Text(
                f"not shown for want of width: {', '.join(left_out)} (-o json has everything)",
                style="bright_black",
            )

    def _narrowest(self, n: int) -> int:
        widest = max([len(self._columns[n].title), *(row[n].cell_len for row in self._rows)])
        return min(widest, _SHORTEST) if self._columns[n].shrinks else widest

    def _fitting(self, width: int) -> list[int] | None:
        """The columns to show; None if not even those that cannot be spared fit."""
        kept = list(range(len(self._columns)))
        while (
            sum(self._least[n] + 2 * self._gap for n in kept) > width
        ):  # a terminal's rules cost as much as its gaps
            spare = max(kept, key=lambda n: (self._columns[n].spare, n))
            if not self._columns[spare].spare:
                return None
            kept.remove(spare)
        return kept

    def _grid(self, kept: Sequence[int]) -> Table:
        """The house style: ruled on a terminal, bare columns in a pipe."""
        terminal = sys.stdout.isatty()
        grid = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            show_edge=False,
            pad_edge=False,
            title=self._title,
            title_justify="left",
            title_style="bold",
            header_style="bold",
            padding=(0, self._gap, 0, 0),
        )
        for n in kept:
            column = self._columns[n]
            grid.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=not column.shrinks,
                min_width=self._least[n],
            )
        for row in self._rows:
            for text in row:
                text.no_wrap, text.overflow = True, "ellipsis"  # cut, and seen to be cut
            grid.add_row(*(row[n] for n in kept))
        return grid

    def _below_each_other(self) -> RenderResult:
        if self._title:
            yield Text(self._title, style="bold")
        for row in self._rows:
            grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            grid.add_column(style="bold", no_wrap=True)
            grid.add_column(overflow="fold")
            for column, text in zip(self._columns, row, strict=True):
                grid.add_row(column.title, text)
            yield grid
            yield Text()


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, title: str | None = None
) -> Fitted:
    """A table in the house style."""
    return Fitted(columns, [[cell(value) for value in row] for row in rows], title)


def cell(value: Cell) -> Text:
    """A value as a cell. Never markup: what users stored is data."""
    if isinstance(value, Text):
        return value
    if value is None or value == "":
        return Text("-", style="bright_black")
    return Text(f"{value:,}" if isinstance(value, int) else clean(value))
