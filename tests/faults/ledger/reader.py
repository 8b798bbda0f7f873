"""Reads the event log of a run into the ledger: `python -m tests.faults.ledger.reader`.

The reader is a process of its own, so a power cut of the machine that holds a SQLite file ends it
too. The next one continues where it stopped. After a fault that may have undone writes, it goes
back a little (LEDGER_BACK_S), because the store may have used the positions again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from jobq.core.event_records import EventRecord
from jobq.core.records import Filter, QueueName
from jobq.core.states import ENDED
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.faults.ledger import facts
from tests.waiting import takes

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
QUEUE = QueueName("faults", "ledger")
NOBODY = 99_999_999
"""The number under which events without a job are written, such as gaps."""
PAGE = 5_000
KEEP_S = 120
"""Seconds for which the log keeps what was read, so that the reader can go back."""


class Log:
    """The file of events, and beside it the positions at which pages end."""

    def __init__(self) -> None:
        self._events = (FOLDER / "events.facts").open("ab")
        self._positions = FOLDER / "positions.jsonl"
        self.places = 0
        self.pages: list[tuple[int, str, int]] = []  # when, the position, bytes of events until it
        if self._positions.exists():
            for line in self._positions.read_text().splitlines(True):
                if line.endswith("\n"):
                    at_ms, position, size, self.places = json.loads(line)
                    self.pages.append((at_ms, position, size))
        # A kill may have come between a page and its position: the page is read again.
        self._events.truncate(self.pages[-1][2] if self.pages else 0)

    def position(self, back_ms: int) -> str:
        """Where to continue: after the last page, or after one that is `back_ms` older."""
        if not self.pages:
            return "0"
        if not back_ms:
            return self.pages[-1][1]
        limit = facts.now_ms() - back_ms
        return next((where for at, where, _ in reversed(self.pages) if at < limit), "0")

    def add(self, events: tuple[EventRecord, ...], position: str) -> None:
        """Append a page."""
        lines = []
        for event in events:
            self.places += 1
            number = int(event.job[1:]) if event.job else NOBODY
            if event.job or event.kind == "gap":
                lines.append(facts.happened(number, self.places, _short(event)))
        self._events.write("".join(lines).encode())
        self._events.flush()
        page = (facts.now_ms(), position, self._events.tell())
        self.pages.append(page)
        with self._positions.open("a") as file:
            file.write(json.dumps([*page, self.places]) + "\n")


def _short(event: EventRecord) -> facts.Event:
    return facts.Event(
        event.id, str(event.kind), str(event.previous or ""), str(event.state or ""),
        event.attempt, event.life, event.at_ms, event.worker or "",
    )  # fmt: skip


async def follow(back_ms: int) -> None:
    """Read events as they come, and write down how many jobs have ended."""
    log = Log()
    position = log.position(back_ms)
    while True:
        try:
            async with open_store(os.environ["LEDGER_URL"]) as store:
                while True:
                    position = await _read(store, log, position)
                    await takes(0.1)
        except StoreUnavailable:
            await takes(0.2)


async def _read(store: Store, log: Log, position: str) -> str:
    """Read to the end of the log. Returns the position there."""
    while True:
        page = await store.read_events(QUEUE, after=position, limit=PAGE)
        if page.events:
            log.add(page.events, page.position)
            position = page.position
        limit = facts.now_ms() - KEEP_S * 1000
        kept = next((where for at, where, _ in reversed(log.pages) if at < limit), "0")
        await store.ack_events(QUEUE, "ledger", kept)
        counts = await store.count(QUEUE)
        progress = {
            "ended": sum(n for state, n in counts.items() if state in ENDED),
            "pending": sum(n for state, n in counts.items() if state not in ENDED),
            "read": not page.events,
            "at_ms": facts.now_ms(),
        }
        temporary = FOLDER / f"progress.{os.getpid()}"
        temporary.write_text(json.dumps(progress))
        temporary.replace(FOLDER / "progress.json")
        if not page.events:
            return position


async def finish() -> None:
    """Write down the rest of the log, every record and the counters, when all else has stopped."""
    log = Log()
    position = log.position(int(os.environ.get("LEDGER_BACK_S", "0")) * 1000)
    async with open_store(os.environ["LEDGER_URL"]) as store:
        await _read(store, log, position)
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
        asyncio.run(follow(int(os.environ.get("LEDGER_BACK_S", "0")) * 1000))
