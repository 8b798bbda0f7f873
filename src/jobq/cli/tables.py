"""Tables that fit the terminal, and say so when they leave something out.

A table that is too wide loses its least important columns, and lists them below. If that is not
enough, each row is printed as a list of names and values.
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

_MIN_SHRUNK_WIDTH = 16
"""Characters. A column that shrinks is not cut below this: shorter texts say too little."""


class Column(NamedTuple):
    """A column's title, and how it behaves when the terminal is narrow."""

    title: str
    right: bool = False
    shrinks: bool = False  # may be cut with an ellipsis; other columns are never cut
    spare: int = 0  # above 0: the column may be left out, the highest number first


class FittedTable:
    """A table whose layout is chosen when the width is known."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        self._columns = columns
        self._rows = rows
        self._gap = 1 if sys.stdout.isatty() else 2
        self._least = [self._narrowest(n) for n in range(len(columns))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print a table, a table with fewer columns and a note, or lists."""
        kept = self._fitting(options.max_width)
        if kept is None:
            yield from self._as_lists()
            return
        yield self._grid(kept)
        if left_out := [column.title for n, column in enumerate(self._columns) if n not in kept]:
            yield Text(
                f"columns that did not fit: {', '.join(left_out)} (-o json shows everything)",
                style="bright_black",
            )

    def _narrowest(self, n: int) -> int:
        widest = max([len(self._columns[n].title), *(row[n].cell_len for row in self._rows)])
        return min(widest, _MIN_SHRUNK_WIDTH) if self._columns[n].shrinks else widest

    def _fitting(self, width: int) -> list[int] | None:
        """The columns to show, or None if the mandatory ones do not fit."""
        kept = list(range(len(self._columns)))
        # Twice the gap: on a terminal, the rules between columns are as wide as the gaps.
        while sum(self._least[n] + 2 * self._gap for n in kept) > width:
            spare = max(kept, key=lambda n: (self._columns[n].spare, n))
            if not self._columns[spare].spare:
                return None
            kept.remove(spare)
        return kept

    def _grid(self, kept: Sequence[int]) -> Table:
        """Lines between the columns on a terminal, only spaces in a pipe."""
        terminal = sys.stdout.isatty()
        grid = Table(
            box=box.SIMPLE_HEAD if terminal else None,
            show_edge=False,
            pad_edge=False,
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
                text.no_wrap, text.overflow = True, "ellipsis"  # a cut text ends with an ellipsis
            grid.add_row(*(row[n] for n in kept))
        return grid

    def _as_lists(self) -> RenderResult:
        for row in self._rows:
            grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            grid.add_column(style="bold", no_wrap=True)
            grid.add_column(overflow="fold")
            for column, text in zip(self._columns, row, strict=True):
                grid.add_row(column.title, text)
            yield grid
            yield Text()


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> FittedTable:
    """Build a table in jq-ctl's style."""
    return FittedTable(columns, [[cell(value) for value in row] for row in rows])


def cell(value: Cell) -> Text:
    """Format a value as a cell. Users' texts are never interpreted as markup."""
    if isinstance(value, Text):
        return value
    if value is None or value == "":
        return Text("-", style="bright_black")
    return Text(f"{value:,}" if isinstance(value, int) else clean(value))
