"""Reads the event log of a run into the ledger: `python -m tests.faults.ledger.reader`.

The reader is a process of its own, so a power cut of the machine that holds a SQLite file ends it
too. The next one continues where it stopped. After a fault that may have undone writes, it goes
back (LEDGER_BACK_MS) and begins another pass, because the store may have used numbers of the log
again. Within a pass, numbers have no gaps: if one is missing, the reader has followed a server to
another history, and begins another pass too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import Filter, QueueName
from jobq.core.records.states import ENDED
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.faults.ledger import facts
from tests.waiting import takes

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
BACK_MS = int(os.environ.get("LEDGER_BACK_MS", "0"))
QUEUE = QueueName("faults", "ledger")
NOBODY = 99_999_999
"""The number under which events without a job are written, such as gaps."""
PAGE = 5_000
KEEP_MS = 60_000
"""Milliseconds for which the log keeps what was read, so that the reader can go back."""
TORN_MS = 20_000
"""Milliseconds to go back if a number is missing: longer than a primary and a replica differ."""
ACK_MS = 5_000
"""Milliseconds between two calls that let the log drop what was read."""
LOOK_S = 0.2
"""Seconds between two looks at the end of the log."""


class Torn(Exception):
    """The next event does not have the next number."""


class Page(NamedTuple):
    """When a page was read, the position after it, and the number of its last event."""

    at_ms: int
    position: str
    number: int


START = Page(0, "0", 0)


class Log:
    """The file of events, and beside it the positions at which pages end."""

    def __init__(self, back_ms: int) -> None:
        self._events = FOLDER / "events.facts"
        self._positions = FOLDER / "positions.jsonl"
        self._reading, self._after = -1, 0
        self._pages = [START]
        self._acked_ms = 0
        size = 0
        if self._positions.exists():
            for line in self._positions.read_text().splitlines(True):
                if line.endswith("\n"):
                    at_ms, position, number, size, reading, self._after = json.loads(line)
                    if reading != self._reading:
                        self._cut(self._after)
                    self._reading = reading
                    self._pages.append(Page(at_ms, position, number))
        # A kill may have come between a page and its position: the page is read again.
        self._events.touch()
        os.truncate(self._events, size)
        self.begin(back_ms)

    def begin(self, back_ms: int) -> None:
        """Begin another pass: after the last page, or after one that is `back_ms` older."""
        if back_ms:
            limit = facts.now_ms() - back_ms
            self._cut(
                next((page.number for page in reversed(self._pages) if page.at_ms < limit), 0)
            )
        self._reading, self._after = self._reading + 1, self._pages[-1].number
        self._write()

    def _write(self) -> None:
        """Write down the last page, and to which pass it belongs."""
        size = self._events.stat().st_size
        line = [*self._pages[-1], size, self._reading, self._after]
        with self._positions.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _cut(self, number: int) -> None:
        """Forget the pages after a number."""
        while self._pages[-1].number > number:
            self._pages.pop()

    @property
    def position(self) -> str:
        """Where to continue."""
        return self._pages[-1].position

    def acknowledges(self) -> str | None:
        """The position before which the log may drop its events, if it is time to say so."""
        now = facts.now_ms()
        if now < self._acked_ms + ACK_MS:
            return None
        self._acked_ms = now
        old = (page.position for page in reversed(self._pages) if page.at_ms < now - KEEP_MS)
        return next(old, "0")

    def add(self, events: tuple[EventRecord, ...], position: str, *, torn: bool = False) -> None:
        """Append a page. Raises Torn if a number is missing, unless that is known."""
        number = self._pages[-1].number
        lines = []
        for event in events:
            if event.kind == "gap" or (torn and event.number != number + 1):
                lines.append(facts.happened(NOBODY, self._reading, event.number, _gap(event)))
            elif event.number != number + 1:
                raise Torn
            number = event.number
            if event.job:
                job = int(event.job[1:])
                lines.append(facts.happened(job, self._reading, number, _short(event)))
        with self._events.open("a") as file:
            file.write("".join(lines))
        self._pages.append(Page(facts.now_ms(), position, number))
        self._write()


def passes(folder: Path) -> list[tuple[int, int]]:
    """Each pass of a run, and the number after which it began."""
    lines = (folder / "positions.jsonl").read_text().splitlines()
    return sorted({(reading, after) for *_, reading, after in map(json.loads, lines)})


def _short(event: EventRecord) -> facts.Event:
    return facts.Event(
        event.id, str(event.kind), str(event.previous or ""), str(event.state or ""),
        event.attempt, event.life, event.at_ms, event.worker or "",
    )  # fmt: skip


def _gap(event: EventRecord) -> facts.Event:
    return facts.Event(f"gap-{event.id}", "gap", "", "", 0, 0, event.at_ms, "")


async def follow(back_ms: int) -> None:
    """Read events as they come, and write down how many jobs have ended."""
    log = Log(back_ms)
    while True:
        try:
            async with open_store(os.environ["LEDGER_URL"]) as store:
                while True:
                    await _read(store, log)
                    await takes(LOOK_S)
        except StoreUnavailable:
            await takes(LOOK_S)


async def _read(store: Store, log: Log) -> None:
    """Read to the end of the log."""
    while await _read_page(store, log):
        await _show(store, read=False)
    if (position := log.acknowledges()) is not None:
        await store.ack_events(QUEUE, "ledger", position)
    await _show(store, read=True)


async def _read_page(store: Store, log: Log) -> bool:
    """Read a page. Returns whether there was any."""
    page = await store.read_events(QUEUE, after=log.position, limit=PAGE)
    if not page.events:
        return False
    try:
        log.add(page.events, page.position)
    except Torn:
        log.begin(TORN_MS)
        page = await store.read_events(QUEUE, after=log.position, limit=PAGE)
        log.add(page.events, page.position, torn=True)
    return True


async def _show(store: Store, *, read: bool) -> None:
    """Write down how far the run is."""
    now = facts.now_ms()
    counts = await store.count(QUEUE)
    progress = {
        "ended": sum(n for state, n in counts.items() if state in ENDED),
        "pending": sum(n for state, n in counts.items() if state not in ENDED),
        "read": read,
        "at_ms": now,
    }
    temporary = FOLDER / f"progress.{os.getpid()}"
    temporary.write_text(json.dumps(progress))
    temporary.replace(FOLDER / "progress.json")


async def finish() -> None:
    """Write down the rest of the log, every record and the counters, when all else has stopped."""
    log = Log(BACK_MS)
    async with open_store(os.environ["LEDGER_URL"]) as store:
        await _read(store, log)
        with (FOLDER / "records.facts").open("w") as file:
            cursor: str | None = None
            while True:
                page = await store.find(Filter(queue=QUEUE), cursor=cursor, limit=1000)
                for record in page.records:
                    number = int(record.id[1:])
                    file.write(facts.recorded(number, record.state, record.attempt, record.life))
                cursor = page.cursor
                if cursor is None:
                    break
        counts = {str(state): n for state, n in (await store.count(QUEUE)).items()}
        (FOLDER / "counts.json").write_text(json.dumps(counts))


if __name__ == "__main__":
    if sys.argv[1:] == ["finish"]:
        asyncio.run(finish())
    else:
        asyncio.run(follow(BACK_MS))
