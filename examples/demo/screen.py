"""The demo's output: counts from the event log, as bars while it runs, and a table at the end."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobq import Event

console = Console(highlight=False, width=None if sys.stdout.isatty() else 88)
TASKS = ("resize", "checksum", "fetch", "remind", "urgent", "price", "invoice", "film")
ENDS = ("completed", "failed", "cancelled")
STYLES = {
    "completed": "green",
    "retried": "yellow",
    "stalled": "magenta",
    "failed": "red",
    "cancelled": "bright_black",
}


class Tally:
    """Counts the events of the queue's log, task by task."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.began = time.monotonic()
        self._states: dict[str, Counter[str]] = defaultdict(Counter)
        self._changed = asyncio.Event()

    def add(self, event: Event) -> None:
        """Count one more event."""
        self.kinds[event.name][str(event.kind)] += 1
        self._states[event.name][str(event.state)] += 1
        if event.previous is not None:
            self._states[event.name][str(event.previous)] -= 1
        if event.kind == "started" and event.attempt == 1 and event.started_at is not None:
            self.waits[event.name].append(
                (event.started_at - (event.due_at or event.created_at)).total_seconds()
            )
        self._changed.set()

    def row(self, name: str) -> list[Text]:
        """How often a task's jobs were retried and stalled, and in which state they are now."""
        numbers = {**self.kinds[name], **self._states[name]}
        return [_number(numbers.get(what, 0), style) for what, style in STYLES.items()]

    def total(self, *kinds: str) -> int:
        """How many events of these kinds there were, over all tasks."""
        return sum(counter[kind] for counter in self.kinds.values() for kind in kinds)

    def ended(self, *names: str) -> int:
        """How many jobs of these tasks have ended; of all tasks if none is named."""
        return sum(self._states[name][end] for name in names or TASKS for end in ENDS)

    @property
    def complete(self) -> bool:
        """Whether every accepted job has ended."""
        return self.ended() == self.total("accepted")

    async def until(self, reached: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until `reached()` is true. It is asked again after every event."""
        async with asyncio.timeout(timeout):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


def live_table(tally: Tally) -> RenderableType:
    """One bar per task, for the live view."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.add_column("task")
    grid.add_column("", width=20)
    for title in ("jobs", *STYLES):
        grid.add_column(title, justify="right", min_width=5)
    for name in TASKS:
        if accepted := tally.kinds[name]["accepted"]:
            bar = ProgressBar(
                total=accepted, completed=tally.ended(name), width=20, finished_style="green"
            )
            grid.add_row(name, bar, f"{accepted:,}", *tally.row(name))
    seconds = time.monotonic() - tally.began
    return Group(
        grid,
        Text(
            f"{tally.ended():,} of {tally.total('accepted'):,} jobs ended after {seconds:.1f} s",
            style="bright_black",
        ),
    )


def final_table(tally: Tally) -> RenderableType:
    """The counts of every task, for the end."""
    grid = Table(
        title="What became of every job",
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    grid.add_column("task")
    for title in ("jobs", "runs", *STYLES, "waited"):
        grid.add_column(title, justify="right")
    for name in TASKS:
        kinds, waits = tally.kinds[name], tally.waits[name]
        waited = f"{median(waits) * 1000:,.0f} ms" if waits else "·"
        grid.add_row(
            name, f"{kinds['accepted']:,}", f"{kinds['started']:,}", *tally.row(name), waited
        )
    return grid


def _number(n: int, style: str) -> Text:
    return Text(f"{n:,}", style=style) if n else Text("·", style="bright_black")


def say(text: str, style: str = "") -> None:
    """Print one line of the story."""
    console.print(Text("• ", style="cyan") + Text(text, style=style))


@asynccontextmanager
async def shown(tally: Tally) -> AsyncIterator[None]:
    """Show the live view inside this context; without a terminal, a line every two seconds."""

    async def lines() -> None:
        while True:
            await asyncio.sleep(2)
            console.print(
                f"  {time.monotonic() - tally.began:4.0f} s  "
                f"{tally.ended():,} of {tally.total('accepted'):,} jobs ended"
            )

    if console.is_terminal:
        with Live(get_renderable=lambda: live_table(tally), console=console, refresh_per_second=12):
            yield
        return
    printer = asyncio.create_task(lines())
    try:
        yield
    finally:
        printer.cancel()
        console.print(live_table(tally))
