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
from collections.abc import AsyncIterator, Iterator

import click
from rich.live import Live

from jobq.cli.options import DURATION, Command, Ctl, on_store
from jobq.cli.queue import summaries_of
from jobq.cli.top_view import Flow, Snapshot, now_ms, top_view
from jobq.core.queues import QueueRecord
from jobq.core.records import Filter, JobRecord, QueueName, Topic
from jobq.core.states import State
from jobq.errors import StoreUnavailable

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
