"""What a command prints: a table for people, or the whole document as JSON or YAML for programs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec
import yaml
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from jobq.cli.text import clean

Format = Literal["table", "json", "yaml"]
FORMATS: tuple[Format, ...] = ("table", "json", "yaml")

# A pipe has no width: lines are as long as they need to be, so that grep and awk see whole values.
_PIPE_WIDTH = 10_000


class Column(NamedTuple):
    """A column's title, and how it behaves when the terminal is narrow."""

    title: str
    right: bool = False
    shrinks: bool = False  # may be cut with an ellipsis; the others are kept whole


Cell = str | Text | int | float | None


class Output:
    """Where a command's answer goes. Answers go to stdout, words about them (`note`) to stderr."""

    def __init__(self, format: Format = "table") -> None:
        self.format = format
        self.console = _console(stderr=False)
        self.errors = _console(stderr=True)

    def show(self, document: Any, render: Callable[[], RenderableType | None]) -> None:
        """Print `document` whole, or what `render` makes of it for people."""
        if self.format == "table":
            if (renderable := render()) is not None:
                self.console.print(renderable)
        elif self.format == "json":
            self._write(msgspec.json.format(msgspec.json.encode(plain(document)), indent=2).decode() + "\n")
        else:
            self._write(_yaml(document))

    def stream(self, document: Any, render: Callable[[], RenderableType]) -> None:
        """Print one of many documents: JSON lines, YAML documents, or a line for people."""
        if self.format == "table":
            self.console.print(render(), soft_wrap=True)
        elif self.format == "json":
            self._write(msgspec.json.encode(plain(document)).decode() + "\n")
        else:
            self._write("---\n" + _yaml(document))

    def note(self, message: str) -> None:
        """A word beside the answer. Only for people: programs read the document."""
        if self.format == "table":
            self.errors.print(Text(message, style="bright_black"), soft_wrap=True)

    def _write(self, text: str) -> None:
        # Not through rich: documents are data, and rich would wrap them.
        sys.stdout.write(text)
        sys.stdout.flush()


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, title: str | None = None) -> Table:
    """A table in the house style: ruled on a terminal, bare columns in a pipe."""
    terminal = sys.stdout.isatty()
    grid = Table(
        box=box.SIMPLE_HEAD if terminal else None, show_edge=False, pad_edge=False, title=title, title_justify="left",
        title_style="bold", header_style="bold", padding=(0, 1 if terminal else 2, 0, 0),
    )  # fmt: skip
    cells = [[cell(value) for value in row] for row in rows]
    for n, column in enumerate(columns):
        widest = max([len(column.title), *(row[n].cell_len for row in cells)])
        grid.add_column(
            column.title, justify="right" if column.right else "left", no_wrap=not column.shrinks,
            min_width=min(widest, 16) if column.shrinks else widest,
        )  # fmt: skip
    for row in cells:
        for text in row:
            text.no_wrap, text.overflow = True, "ellipsis"  # cut, and seen to be cut
        grid.add_row(*row)
    return grid


def details(pairs: Iterable[tuple[str, Cell | RenderableType]]) -> Table:
    """Names and values below each other; values that are None are left out."""
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            grid.add_row(name, cell(value) if isinstance(value, (str, int, float)) else value)
    return grid


def cell(value: Cell) -> Text:
    """A value as a cell. Never markup: what users stored is data."""
    if isinstance(value, Text):
        return value
    if value is None or value == "":
        return Text("-", style="bright_black")
    return Text(f"{value:,}" if isinstance(value, int) else clean(value))


def plain(value: Any) -> Any:
    """The value in the types JSON and YAML have. Bytes that are no text become base64."""
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


def _yaml(document: Any) -> str:
    text: str = yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True, width=120)
    return text


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)
