"""Progress bars on stderr, shown only when stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

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
