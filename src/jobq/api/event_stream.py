"""EventStream, returned by `queue.events()`: past events of a queue, then new ones as they
happen."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from jobq.api import info
from jobq.api.context import QueueContext
from jobq.client.deadlines import CHECK_AGAIN_S
from jobq.core.records.events import EventRecord
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.errors import InvalidJob
from jobq.operations.log import LogFollower


class StreamPosition(NamedTuple):
    """A position in the log that may lie inside an entry.

    Stores read the log in whole entries, and an entry holds the events of a whole batch. A reader
    that stops inside `entry` continues from the entry before it (`position`) and skips the `seen`
    events that it has had already.
    """

    position: str
    entry: str = ""
    seen: int = 0

    def __str__(self) -> str:
        return f"{self.position}~{self.entry}~{self.seen}" if self.entry else self.position

    @classmethod
    def parse(cls, text: str) -> StreamPosition:
        """The position in a text. InvalidJob if the text is not a position."""
        parts = text.split("~") if isinstance(text, str) else []
        if len(parts) == 1 and parts[0]:
            return cls(parts[0])
        if len(parts) == 3 and parts[2].isdecimal():
            return cls(parts[0], parts[1], int(parts[2]))
        raise InvalidJob(
            f"after={shown(text)} is not a position: give the `position` of an event, or "
            '"0" for all events that are kept'
        )


class EventStream(AsyncIterator[info.Event]):
    """An async iterator over the events of a queue. The events of a job are in order.

    Reading begins with `async with`, or else with the first event that is asked for. Without
    `after`, the stream has the events from that moment on. With `follow` it never ends. Without
    `follow` it ends with the last event written before that moment.
    """

    def __init__(
        self, context: QueueContext, after: str | None = None, follow: bool = True
    ) -> None:
        self._context = context
        self._position = None if after is None else StreamPosition.parse(after)
        self._follow = checks.check_bool(follow, "follow")
        if after is None and not follow:
            raise InvalidJob(
                'events(follow=False) reads up to now: give after="0" for all events that are '
                "kept, or a position"
            )
        self._log: LogFollower | None = None
        self._ready: deque[info.Event] = deque()

    async def __aenter__(self) -> Self:
        """Begin reading here."""
        await self._begin()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """There is nothing to close: a stream holds no connection between two events."""

    async def __anext__(self) -> info.Event:
        """Wait for the next event and return it."""
        while not self._ready:
            if not await self._read():
                if not self._follow:
                    raise StopAsyncIteration
                await self._wait()
        return self._ready.popleft()

    async def _begin(self) -> LogFollower:
        """The log, at the position where reading continues. The first call begins reading."""
        if self._log is None:
            log = LogFollower(await self._context.store())
            after = None if self._position is None else self._position.position
            await log.begin(self._context.qname, after, until_now=not self._follow)
            self._position = self._position or StreamPosition(log.positions[self._context.qname])
            self._log = log
        self._log.store = await self._context.store()  # the queue may have been closed meanwhile
        return self._log

    async def _read(self) -> bool:
        """Read the next page. False if there are no new events."""
        page = await (await self._begin()).read(self._context.qname)
        if page.events:
            assert self._position is not None  # reading has begun
            self._ready.extend(_with_positions(page.events, self._position))
            self._position = StreamPosition(page.position)
        return bool(page.events)

    async def _wait(self) -> None:
        """Wait until there may be new events: for a signal, or some seconds, as signals may be
        lost."""
        async with (await self._begin()).listening() as grown:
            if not await self._read():
                await grown.next(CHECK_AGAIN_S)


def _with_positions(records: Sequence[EventRecord], start: StreamPosition) -> list[info.Event]:
    """The events after `start`, each with the position where reading continues after it."""
    events: list[info.Event] = []
    before, entry, seen = start.position, "", 0
    for n, record in enumerate(records):
        if record.position != entry:
            before, entry, seen = entry or before, record.position, 0
        seen += 1
        if entry == start.entry and seen <= start.seen:
            continue
        last = n + 1 == len(records) or records[n + 1].position != entry
        position = StreamPosition(entry) if last else StreamPosition(before, entry, seen)
        events.append(info.event(record, str(position)))
    return events
