"""Printing results: tables for people, complete JSON or YAML documents for programs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from jobq.cli.tables import Cell, Column, cell, table
from jobq.console.discreet import safe_message
from jobq.core.printable import is_harmless, json_text, lines

if TYPE_CHECKING:
    import yaml

    from jobq.cli.options import Format

__all__ = ["Cell", "Column", "Output", "cell", "details", "plain", "table"]

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
