"""Printing results: tables for people, complete JSON or YAML documents for programs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from jobq.cli.text import clean
from jobq.console.safe_errors import safe_message
from jobq.core.values.printable import is_harmless, json_text, lines

if TYPE_CHECKING:
    import yaml

    from jobq.cli.options import Format

# Tables that fit the terminal, and say so when they leave something out.
#
# A table that is too wide loses its least important columns, and lists them below. If that is not
# enough, each row is printed as a list of names and values.

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


# Progress bars on stderr, shown only when stderr is a terminal.

Advance = Callable[[int], None]
Remark = Callable[[str], None]


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Advance]:
    """Show a progress bar up to `total`, or a counter if it is None.

    Yields a function: call it with the size of each step."""
    with bar_with_remarks(label, total) as (advance, _):
        yield advance


@contextmanager
def bar_with_remarks(label: str, total: int | None) -> Iterator[tuple[Advance, Remark]]:
    """The same with a second function, which prints a line on stderr above the bar."""
    if not sys.stderr.isatty():
        yield (lambda n: None), (lambda line: print(line, file=sys.stderr, flush=True))
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield (
            (lambda n: progress.advance(task, n)),
            (lambda line: progress.console.print(Text(line), soft_wrap=True)),
        )


# Characters per line when stdout is not a terminal: wide enough that grep and awk see whole values.
_PIPE_WIDTH = 10_000


class Output:
    """Prints a command's result to stdout, and remarks about it (`note`) to stderr."""

    def __init__(self, format: Format = "table") -> None:
        self.format = format
        self.console = _console(stderr=False)
        self.errors = _console(stderr=True)

    def show(self, document: Any, render: Callable[[], RenderableType | None]) -> None:
        """Print `document` as JSON or YAML, or what `render` returns as a table."""
        if self.format == "table":
            if (renderable := render()) is not None:
                self.console.print(renderable)
        elif self.format == "json":
            self._write(
                json_text(
                    msgspec.json.format(msgspec.json.encode(plain(document)), indent=2).decode()
                )
                + "\n"
            )
        else:
            self._write(_yaml(document))

    def stream(self, document: Any, render: Callable[[], RenderableType]) -> None:
        """Print one of a series: a line of JSON, a YAML document, or a line of text."""
        if self.format == "table":
            self.console.print(render(), soft_wrap=True)
        elif self.format == "json":
            self._write(json_text(msgspec.json.encode(plain(document)).decode()) + "\n")
        else:
            self._write("---\n" + _yaml(document))

    def note(self, message: str) -> None:
        """Print a remark for people. With -o json or yaml, print nothing."""
        if self.format == "table":
            self.errors.print(Text(safe_message(message), style="bright_black"), soft_wrap=True)

    def _write(self, text: str) -> None:
        # Not through rich, which would wrap long lines.
        sys.stdout.write(text)
        sys.stdout.flush()


def details(pairs: Iterable[tuple[str, Cell | RenderableType]]) -> Table:
    """One line per name and value. Values that are None are left out."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            grid.add_row(name, cell(value) if isinstance(value, (str, int, float)) else value)
    return grid


def plain(value: Any) -> Any:
    """Convert a value to types that JSON and YAML have. Bytes that are not UTF-8 become base64."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat().replace("+00:00", "Z")
    return plain(msgspec.to_builtins(value, str_keys=True, enc_hook=str))


def _bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """Writes strings with control characters in double quotes, so that YAML escapes them."""
    import yaml  # 12 ms, and only -o yaml needs it

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(str, _quoted)
    return Dumper


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if is_harmless(text) else '"'
    )


def _yaml(document: Any) -> str:
    import yaml

    text: str = yaml.dump(
        plain(document), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120
    )
    # The dumper leaves marks that reorder text unescaped, inside quotes. Escape them as JSON does.
    return json_text(text)


class SafeConsole(Console):
    """A console that escapes control characters in printed text, but not rich's own styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render to segments, with control characters escaped."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or is_harmless(text) else Segment(lines(text), style)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)
