"""`jq-ctl top`: a live view of queues, workers and failures.

The screen is drawn again when a queue's log grows, at most once per --every, and every few seconds
in any case, because heartbeats of workers send no signal. Each look makes a bounded number of
calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.queue import summaries_of
from jobq.cli.ctl.queue_view import QueueSummary, queue_status
from jobq.cli.options import DURATION, Command, Ctl, on_store
from jobq.cli.output import Cell, Column, table
from jobq.core.records.jobs import Filter, JobRecord, QueueName, Topic
from jobq.core.records.queues import MinuteRecord, QueueRecord
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.errors import StoreUnavailable

# The screen of `jq-ctl top`: queues with their rates, workers, and the latest failures.

_RATES = ("accepted", "started", "completed", "failed")
_LINES_OF_FRAME = 12
"""Lines of the screen that are no rows: the summary, the headings, rules and gaps of three tables,
and a note below a table that does not fit."""
_LEAST_ROWS = 3
"""Rows that each table gets on the smallest screen."""


class Flow(NamedTuple):
    """What has happened in a queue: sums of its last minutes, by the beginning of each minute."""

    minutes: dict[int, MinuteRecord]
    at: float
    """When this was read, in seconds of the monotonic clock."""

    @staticmethod
    def of(minutes: Sequence[MinuteRecord], at: float) -> Flow:
        """From the store's figures."""
        return Flow({minute.minute_ms: minute for minute in minutes}, at)

    def since(self, before: Flow | None) -> dict[str, float]:
        """Jobs per second since an earlier look, or else in the minutes that are known."""
        if before is None:
            seconds = 60.0 * max(1, len(self.minutes))
            return {name: self._sum(name) / seconds for name in _RATES}
        seconds = max(0.001, self.at - before.at)
        return {
            name: sum(
                max(0, getattr(minute, name) - getattr(before.minutes.get(key), name, 0))
                for key, minute in self.minutes.items()
            )
            / seconds
            for name in _RATES
        }

    def _sum(self, name: str) -> int:
        return sum(getattr(minute, name) for minute in self.minutes.values())


class Snapshot(NamedTuple):
    """Everything on the screen, at one moment."""

    store: str
    tenant: str
    now_ms: int
    queues: Sequence[QueueSummary]
    rates: dict[QueueName, dict[str, float]]
    workers: Sequence[WorkerRecord]
    failures: Sequence[JobRecord]
    more_queues: int = 0
    """Queues that are not shown."""
    problem: str | None = None
    """Why the figures are not new: the store does not respond."""

    @property
    def document(self) -> documents.Document:
        """The document for -o json and yaml."""
        return {
            "at": text.iso(self.now_ms),
            "queues": [
                {**each.document, "rates": self.rates.get(each.record.queue)}
                for each in self.queues
            ],
            "workers": [documents.worker(each) for each in self.workers],
            "failures": [documents.job(each) for each in self.failures],
            "more_queues": self.more_queues,
        }


def top_view(seen: Snapshot, height: int | None = None) -> RenderableType:
    """The screen, with at most `height` lines. None: as many as there are."""
    rows = _rows(seen, height)
    parts: list[RenderableType] = [_summary(seen), Text()]
    parts.append(_queues(seen, rows[0]))
    if seen.workers:
        parts += [Text(), _workers(seen, rows[1])]
    if seen.failures:
        parts += [Text(), _failures(seen, rows[2])]
    return Group(*parts)


def _rows(seen: Snapshot, height: int | None) -> tuple[int, int, int]:
    """How many rows each table may have. Queues get the most, and what others leave."""
    wanted = (len(seen.queues), len(seen.workers), len(seen.failures))
    if height is None:
        return wanted
    room = max(3 * _LEAST_ROWS, height - _LINES_OF_FRAME)
    failures = min(wanted[2], max(_LEAST_ROWS, room // 4))
    workers = min(wanted[1], max(_LEAST_ROWS, room // 4))
    queues = min(wanted[0], room - failures - workers)
    workers = min(wanted[1], room - failures - queues)
    return queues, workers, min(wanted[2], room - queues - workers)


def _summary(seen: Snapshot) -> RenderableType:
    busy = sum(worker.active for worker in seen.workers)
    slots = sum(worker.concurrency for worker in seen.workers)
    totals = {s: sum(each.stats.counts.get(s, 0) for each in seen.queues) for s in State}
    parts = [
        Text(f"{text.clock(seen.now_ms)[:8]}  {seen.store}", style="bold"),
        Text(f"{text.plural(len(seen.workers), 'worker')}, {busy:,} of {slots:,} slots busy"),
        *(Text(f"{n:,} {s.value}", style=text.STATE_STYLES[s]) for s, n in totals.items() if n),
    ]
    line = Text("  ").join(parts)
    if seen.more_queues:
        line += Text(f"  {text.plural(seen.more_queues, 'queue')} not shown", style="yellow")
    if seen.problem is not None:
        line += Text(f"\n! {text.clean(seen.problem)}", style="red")
    return line


def _queues(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("QUEUE", shrinks=True),
        Column("STATUS"),
        Column("WAITING", right=True),
        Column("ACTIVE", right=True),
        Column("DELAYED", right=True, spare=2),
        Column("FAILED", right=True),
        Column("IN/S", right=True),
        Column("DONE/S", right=True),
        Column("FAIL/S", right=True, spare=1),
        Column("OLDEST", right=True),
        Column("WORKERS", right=True, spare=3),
    )
    # The queues where most is going on come first.
    busiest = sorted(
        seen.queues,
        key=lambda each: (-_weight(each, seen.rates.get(each.record.queue, {})), each.record.queue),
    )

    def row(each: QueueSummary) -> list[Cell]:
        rates, counts = seen.rates.get(each.record.queue, {}), each.stats.counts
        return [
            each.record.queue.queue,
            queue_status(each),
            *(
                text.count(counts.get(s, 0), text.STATE_STYLES[s])
                for s in (State.WAITING, State.ACTIVE, State.DELAYED, State.FAILED)
            ),
            _rate(rates.get("accepted")),
            _rate(rates.get("completed")),
            _rate(rates.get("failed")),
            text.duration(each.stats.oldest_waiting_ms),
            text.count(each.stats.workers),
        ]

    return table(columns, [row(each) for each in busiest[:rows]])


def _weight(each: QueueSummary, rates: dict[str, float]) -> float:
    counts = each.stats.counts
    return counts.get(State.WAITING, 0) + counts.get(State.ACTIVE, 0) + sum(rates.values())


def _rate(value: float | None) -> Text:
    if not value:
        return Text("-" if value is None else "0", style="bright_black")
    return Text(f"{value:,.0f}" if value >= 10 else f"{value:.1f}")


def _workers(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("WORKER", shrinks=True),
        Column("STATUS"),
        Column("ACTIVE", right=True),
        Column("QUEUES", shrinks=True),
        Column("UP", right=True, spare=2),
        Column("SEEN", spare=1),
    )

    def row(each: WorkerRecord) -> list[Cell]:
        status = "draining" if each.draining else "paused" if each.paused else "running"
        return [
            each.name,
            Text(status, style="green" if status == "running" else "yellow"),
            f"{each.active}/{each.concurrency}",
            ", ".join(q.queue for q in each.queues if q.tenant == seen.tenant),
            text.duration(seen.now_ms - each.started_ms),
            text.relative(min(each.seen_ms, seen.now_ms), seen.now_ms),
        ]

    busiest = sorted(seen.workers, key=lambda each: (-each.active, each.name))
    return table(columns, [row(each) for each in busiest[:rows]])


def _failures(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("FAILED"),
        Column("QUEUE", shrinks=True),
        Column("JOB", shrinks=True),
        Column("TASK", shrinks=True, spare=1),
        Column("ERROR", shrinks=True),
    )

    def row(each: JobRecord) -> list[Cell]:
        failure = each.failure
        return [
            text.relative(min(each.finished_ms or seen.now_ms, seen.now_ms), seen.now_ms),
            each.queue.queue,
            each.id,
            each.name,
            "" if failure is None else f"{failure.type}: {failure.message}",
        ]

    return table(columns, [row(each) for each in seen.failures[:rows]])


def now_ms() -> int:
    """The time on the screen: this machine's."""
    return int(time.time() * 1000)


_MAX_QUEUES = 50
"""Queues on the screen. Each costs two calls per look."""
_FAILURES = 10
"""Failures on the screen."""
_FAILED_QUEUES = 10
"""Queues that are asked for their latest failures, those with the most failed jobs first."""
_IDLE_S = 5.0
"""Seconds after which the screen is drawn again although no log has grown. Workers send heartbeats
this often."""
_MINUTES = 2
"""Minutes of figures that rates are made of: the current one, and the one before."""


@click.command(
    cls=Command,
    examples="""
    jq-ctl top
    jq-ctl top billing emails --every 500ms
    jq-ctl top --times 1 -o json | jq '.queues[].rates'
    """,
)
@click.argument("names", metavar="[QUEUE...]", nargs=-1)
@click.option(
    "--every",
    type=DURATION,
    default=1.0,
    metavar="TIME",
    help="Minimum time between two updates, e.g. 500ms. Default: 1s.",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N updates. Default: run until q or Ctrl-C.",
)
@on_store
async def top(ctl: Ctl, names: tuple[str, ...], every: float, times: int | None) -> None:
    """Show queues, rates, workers and failures live. q quits.

    Without a terminal, prints one document or table per update."""
    reader = TopReader(ctl, names)
    on_screen = ctl.out.format == "table" and ctl.out.console.is_terminal
    with Keys() if on_screen else contextlib.nullcontext() as keys:
        screen = (
            Live(console=ctl.out.console, screen=True, auto_refresh=False) if on_screen else None
        )
        looks = 0
        with screen or contextlib.nullcontext():
            while True:
                began = time.monotonic()
                async with reader.signals() as signals:
                    seen = await reader.read()
                    if screen is not None:
                        height = ctl.out.console.size.height
                        screen.update(top_view(seen, height), refresh=True)
                    else:
                        ctl.out.stream(seen.document, lambda s=seen: top_view(s))  # type: ignore[misc]
                    looks += 1
                    if looks == times or await _until_next(signals, keys, began + max(0.1, every)):
                        return


async def _until_next(signals: AsyncIterator[object], keys: Keys | None, earliest: float) -> bool:
    """Wait until there may be something new to show, at least until `earliest`. True: quit."""
    pressed = asyncio.ensure_future(keys.pressed() if keys else asyncio.Event().wait())
    heard = asyncio.ensure_future(_anything(signals))
    pause = asyncio.ensure_future(asyncio.sleep(max(0.0, earliest - time.monotonic())))
    try:
        async with asyncio.timeout(_IDLE_S + max(0.0, earliest - time.monotonic())):
            await asyncio.wait({pressed, heard}, return_when=asyncio.FIRST_COMPLETED)
            if not pressed.done():  # something has happened: not sooner than --every
                await asyncio.wait({pressed, pause}, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        pass
    finally:
        for task in (pressed, heard, pause):
            task.cancel()
        await asyncio.gather(pressed, heard, pause, return_exceptions=True)
    return pressed.done() and not pressed.cancelled() and pressed.result() == "q"


async def _anything(signals: AsyncIterator[object]) -> None:
    try:
        await anext(signals, None)
    except StoreUnavailable:
        await asyncio.Event().wait()  # the next look says so


class TopReader:
    """Reads the store for one screen after the other."""

    def __init__(self, ctl: Ctl, names: tuple[str, ...]) -> None:
        self._ctl = ctl
        self._names = names
        self._shown: list[QueueName] = []
        self._flows: dict[QueueName, Flow] = {}
        self._last: Snapshot | None = None

    @contextlib.asynccontextmanager
    async def signals(self) -> AsyncIterator[AsyncIterator[object]]:
        """Signals of the logs of the queues on the screen."""
        backend = self._ctl.backend
        if self._last is None:
            found = await backend.known(self._names)
            self._shown = [record.queue for record in found[:_MAX_QUEUES]]
        topics = [Topic("log", queue, None) for queue in self._shown]
        signals: AsyncIterator[object] = _silence()
        async with contextlib.AsyncExitStack() as stack:
            try:
                signals = await stack.enter_async_context(backend.store.listen(topics))
            except StoreUnavailable:
                if self._last is None:
                    raise
            yield signals

    async def read(self) -> Snapshot:
        """What is on the screen now. If the store is unavailable, the last figures and a note."""
        try:
            self._last = await self._read()
        except StoreUnavailable as error:
            if self._last is None:
                raise
            self._last = self._last._replace(problem=str(error), now_ms=now_ms())
        return self._last

    async def _read(self) -> Snapshot:
        backend = self._ctl.backend
        records = await backend.known(self._names)
        queues = await summaries_of(self._ctl, records[:_MAX_QUEUES])
        rates = {record.queue: await self._rates(record) for record in records[:_MAX_QUEUES]}
        self._shown = list(rates)
        workers = [
            each
            for each in await backend.store.workers()
            if any(q.tenant == backend.tenant for q in each.queues)
        ]
        failing = sorted(
            (each for each in queues if each.stats.counts.get(State.FAILED)),
            key=lambda each: -each.stats.counts[State.FAILED],
        )
        failures: list[JobRecord] = []
        for each in failing[:_FAILED_QUEUES]:
            filter = Filter(queue=each.record.queue, state=State.FAILED)
            page = await backend.store.find(filter, limit=_FAILURES)
            failures += page.records
        failures.sort(key=lambda record: -(record.finished_ms or 0))
        return Snapshot(
            store=backend.shown,
            tenant=backend.tenant,
            now_ms=now_ms(),
            queues=queues,
            rates=rates,
            workers=workers,
            failures=failures[:_FAILURES],
            more_queues=max(0, len(records) - _MAX_QUEUES),
        )

    async def _rates(self, record: QueueRecord) -> dict[str, float]:
        backend = self._ctl.backend
        minutes = await backend.store.metrics(record.queue, minutes=_MINUTES)
        flow = Flow.of(minutes, time.monotonic())
        before = self._flows.get(record.queue)
        self._flows[record.queue] = flow
        return flow.since(before)


async def _silence() -> AsyncIterator[object]:
    await asyncio.Event().wait()
    yield None


class Keys:
    """Keys that are pressed while the context is open, and changes of the window's size.

    The terminal does not echo them, and is as before afterwards."""

    def __enter__(self) -> Keys:
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
        if self._stdin is not None:
            import termios  # not on every platform: only where there is a terminal like this
            import tty

            self._before = termios.tcgetattr(self._stdin)
            tty.setcbreak(self._stdin)
            self._loop.add_reader(self._stdin, self._read)
        self._loop.add_signal_handler(signal.SIGWINCH, self._pressed.put_nowait, "resize")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGWINCH)
        if self._stdin is not None:
            import termios

            self._loop.remove_reader(self._stdin)
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        assert self._stdin is not None
        data = os.read(self._stdin, 1024)
        for key in _keys(data):
            self._pressed.put_nowait(key)
        if not data:  # the terminal is gone
            self._loop.remove_reader(self._stdin)
            self._pressed.put_nowait("q")

    async def pressed(self) -> str:
        """The next key, or `resize`."""
        return await self._pressed.get()


def _keys(data: bytes) -> Iterator[str]:
    """The keys in what a terminal sends. Those that mean nothing draw the screen again."""
    for byte in data:
        yield "q" if byte in b"qQ\x04" else "other"  # \x04 is Ctrl-D
