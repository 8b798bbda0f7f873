"""Progress bars on stderr, shown only when stderr is a terminal."""

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
    """Show a progress bar up to `total`, or a counter if it is None.

    Yields a function: call it with the size of each step."""
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
    """Call `step` until it returns 0, with a progress bar. Returns the sum of what it returned."""
    done = 0
    with bar(label, total) as advance:
        while n := await step():
            done += n
            advance(n)
    return done
