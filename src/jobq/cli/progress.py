"""Progress of long work, on stderr, and only when a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
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

Advance = Callable[[int], None]


@contextmanager
def bar(label: str, total: int | None) -> Iterator[Advance]:
    """A bar from 0 to `total` (None: it only counts). Call what it gives with each step's size."""
    if not sys.stderr.isatty():
        yield lambda n: None
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
        yield lambda n: progress.advance(task, n)


async def sweep(label: str, total: int | None, step: Callable[[], Awaitable[int]]) -> int:
    """Take bounded steps until one does nothing, showing how far it is; how much was done."""
    done = 0
    with bar(label, total) as advance:
        while n := await step():
            done += n
            advance(n)
    return done
