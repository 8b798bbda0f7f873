"""Feeds: one reader of the store per queue or job, for all tabs that watch it by server-sent
events.

A feed listens to the store's signals, reads what has changed, and tells its tabs. It begins with
its first tab and ends with its last. Signals can be lost, so it also reads every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jobq.client.following import RENEW_S, Gathered, new_lines
from jobq.core.records.jobs import JobKey, QueueName, Topic
from jobq.core.records.workers import WorkerRecord
from jobq.errors import AccessDenied, JobqError, QuotaExceeded
from jobq.operations import listing
from jobq.web.data.job import JobLive, record_of, shown_lines
from jobq.web.data.queues import MAX_ROWS, QueueLive, all_counts
from jobq.web.data.shown import percent, shown_or_none
from jobq.web.data.view import View
from jobq.web.render import view_of

log = logging.getLogger("jobq.web")

PACE_S = 1.0
"""Seconds between two reads for one feed. A person cannot read faster."""
CHECK_AGAIN_S = 10.0
"""Seconds after which a feed reads without a signal."""
_WORKERS_S = 2.0
"""Seconds between two looks at the workers, which send heartbeats every few seconds."""
_RETRY_S = 5.0
"""Seconds until a feed tries again after the store was unavailable."""
_MAX_MESSAGES = 32
"""Messages that wait for one tab. The oldest are dropped: the newest say how things are."""

encode = msgspec.json.Encoder().encode


class Message(msgspec.Struct, frozen=True):
    """One server-sent event."""

    event: str
    data: bytes


class Tab:
    """One open stream, and what it has yet to send."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        self._bell = asyncio.Event()
        self.closed = False

    def tell(self, message: Message) -> None:
        """Add a message. Never waits for a slow browser."""
        self._messages.append(message)
        self._bell.set()

    def close(self) -> None:
        """End the stream after what is waiting."""
        self.closed = True
        self._bell.set()

    async def next(self, timeout_s: float) -> list[Message]:
        """The messages that have come. None after the timeout, or if the stream is closed."""
        if not self._messages and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._bell.wait()
        self._bell.clear()
        found = list(self._messages)
        self._messages.clear()
        return found


class Feed:
    """Reads one thing and tells all tabs that watch it."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        self._topics = topics
        self.tabs: set[Tab] = set()
        self.last: Message | None = None
        self.over = False

    async def read(self, view: View, heard: set[str]) -> Message | None:
        """What there is to tell. `heard` are the kinds of signals since the last look."""
        raise NotImplementedError

    def tell(self, message: Message) -> None:
        """Tell all tabs."""
        self.last = message
        for tab in self.tabs:
            tab.tell(message)

    async def run(self, view: View) -> None:
        """Listen and look until there is no more to tell."""
        while not self.over:
            try:
                async with (
                    view.store.listen(self._topics) as signals,
                    Gathered(signals, attrgetter("kind")) as gathered,
                ):
                    await self._follow(view, gathered)
            except JobqError as e:
                log.warning("a live feed reads again in %g s: %s", _RETRY_S, e)
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, view: View, gathered: Gathered[str]) -> None:
        renew = time.monotonic() + RENEW_S
        heard: set[str] = set()
        while not self.over and time.monotonic() < renew:
            message = await self.read(view, heard)
            if message is not None:
                self.tell(message)
            if self.over:
                self.tell(Message("end", b"{}"))
                return
            await asyncio.sleep(PACE_S)  # what arrives meanwhile is told together
            heard = await gathered.next(CHECK_AGAIN_S) or set()


class QueueFeed(Feed):
    """The counts of a queue."""

    def __init__(self, queue: QueueName) -> None:
        super().__init__([Topic("log", queue, None)])
        self._queue = queue
        self._before: QueueLive | None = None

    async def read(self, view: View, heard: set[str]) -> Message | None:
        """The queue, if it has changed."""
        stats = await view.store.stats(self._queue)
        now = QueueLive(
            tenant=self._queue.tenant,
            queue=self._queue.queue,
            counts=all_counts(stats.counts),
            paused=stats.paused,
            held_until_ms=stats.held_until_ms,
            workers=stats.workers,
        )
        if now == self._before and "log" not in heard:
            return None
        self._before = now
        return Message("queue", encode(now))


class JobFeed(Feed):
    """The state, progress and log lines of a job, until it has ended."""

    def __init__(self, job: JobKey) -> None:
        super().__init__(
            [Topic("ended", *job), Topic("noted", *job), Topic("log", job.queue, None)]
        )
        self._job = job
        self._lines: Sequence[str] = ()
        self._before: JobLive | None = None

    async def read(self, view: View, heard: set[str]) -> Message | None:
        """The job, if it has changed."""
        (record,) = await view.store.get([self._job])
        if record is None:
            self.over = True
            return None
        lines: Sequence[str] = ()
        if not view.hide_payloads and record.attempt:
            seen, self._lines = self._lines, await view.store.logs(self._job)
            lines = new_lines(seen, self._lines)
        now = JobLive(
            state=record.state.value,
            attempt=record.attempt,
            worker=record.worker,
            cancel_asked=record.cancel_asked,
            started_ms=record.started_ms,
            finished_ms=record.finished_ms,
            progress=shown_or_none(view, record.progress, record.codec),
            percent=None if view.hide_payloads else percent(record.progress, record.codec),
            lines=shown_lines(list(lines)[-200:]),
            ended=record.state.ended,
        )
        self.over = record.state.ended
        before, self._before = self._before, msgspec.structs.replace(now, lines=())
        if self._before == before and not lines:
            return None
        return Message("job", encode(now))


class WorkersFeed(Feed):
    """That workers have changed. Heartbeats send no signal, so this feed looks by itself.

    It tells nothing about them: who may see which worker is decided when a page is read.
    """

    def __init__(self) -> None:
        super().__init__([])
        self._before: list[WorkerRecord] | None = None
        self._sent_at = 0.0

    async def read(self, view: View, heard: set[str]) -> Message | None:
        """Whether a worker has come, gone or changed, or all heartbeats have become old."""
        found = await view.store.workers()
        now = [msgspec.structs.replace(each, seen_ms=0) for each in found]
        old = time.monotonic() - self._sent_at >= CHECK_AGAIN_S
        if now == self._before and not (old and found):
            return None
        self._before, self._sent_at = now, time.monotonic()
        return Message("workers", b"{}")

    async def run(self, view: View) -> None:
        """Look every few seconds."""
        while True:
            try:
                if (message := await self.read(view, set())) is not None:
                    self.tell(message)
                await asyncio.sleep(_WORKERS_S)
            except JobqError as e:
                log.warning("the live feed of workers reads again in %g s: %s", _RETRY_S, e)
                await asyncio.sleep(_RETRY_S)


WORKERS: Literal["workers"] = "workers"
Watched = QueueName | JobKey | Literal["workers"]
"""What a tab watches: a queue, a job, or the workers."""


def _feed(watched: Watched) -> Feed:
    if isinstance(watched, JobKey):
        return JobFeed(watched)
    return QueueFeed(watched) if isinstance(watched, QueueName) else WorkersFeed()


class Hub:
    """The feeds of one application, by what they read."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        """The whole store: who may watch what is decided before a tab subscribes."""
        self._feeds: dict[Watched, Feed] = {}
        self._tasks: dict[Feed, asyncio.Task[None]] = {}
        self._tabs: set[Tab] = set()

    @property
    def readers(self) -> int:
        """How many feeds read the store."""
        return len(self._tasks)

    @property
    def tabs(self) -> int:
        """How many streams are open."""
        return len(self._tabs)

    @contextlib.asynccontextmanager
    async def watching(self, names: Sequence[Watched]) -> AsyncIterator[Tab]:
        """A tab that is told of these queues and jobs."""
        tab = Tab()
        self._tabs.add(tab)
        joined = [(name, self._join(name, tab)) for name in names]
        try:
            yield tab
        finally:
            self._tabs.discard(tab)
            for name, feed in joined:
                feed.tabs.discard(tab)
                if not feed.tabs:
                    await self._end(name, feed)

    def _join(self, name: Watched, tab: Tab) -> Feed:
        feed = self._feeds.get(name)
        if feed is None or feed.over:
            feed = self._feeds[name] = _feed(name)
            self._tasks[feed] = asyncio.get_running_loop().create_task(
                self._run(feed), name=f"jobq.web feed of {name}"
            )
        elif feed.last is not None:
            tab.tell(feed.last)
        feed.tabs.add(tab)
        return feed

    async def _run(self, feed: Feed) -> None:
        try:
            await feed.run(self._view())
        except Exception:
            log.exception("a live feed has failed: its tabs are closed")
        for tab in list(feed.tabs):
            if feed.over is False:
                tab.close()

    async def _end(self, name: Watched, feed: Feed) -> None:
        if self._feeds.get(name) is feed:
            del self._feeds[name]
        if (task := self._tasks.pop(feed, None)) is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    def close(self) -> None:
        """End all streams: the application stops."""
        for tab in self._tabs:
            tab.close()


# Live updates as server-sent events.
#
# `GET /live` sends, until the tab is closed:
#
# - `/live?tenant=&queue=`: `event: queue` with a QueueLive as JSON whenever the queue changes, at
#   most once per second.
# - `/live?tenant=` or `/live`: the same for each of the first 50 queues of the overview.
# - `/live?tenant=&queue=&id=`: `event: job` with a JobLive as JSON whenever the job changes, and
#   `event: end` after the last one.
# - `/live?workers=true`: `event: workers` whenever a worker has come, gone or changed. The page
#   then reads what its reader may see.
#
# All tabs that watch the same queue or job share one reader of the store (`Hub`). A comment is sent
# every 15 seconds, so that proxies keep the connection open.

HEARTBEAT_S = 15.0
"""Seconds between two comments. Proxies close connections that are silent for 30 to 60 seconds."""
MAX_TABS = 1_000
"""Streams that one process keeps open."""


async def live(request: Request) -> Response:
    """A stream of what changes. Refused like the page that it belongs to."""
    hub: Hub = request.state.hub
    if hub.tabs >= MAX_TABS:
        raise QuotaExceeded(f"{MAX_TABS:,} live pages are open: close some of them")
    names = await _names(request, view_of(request))
    return StreamingResponse(
        _stream(request, hub, names),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # nginx would collect events otherwise
    )


async def _names(request: Request, view: View) -> Sequence[Watched]:
    """What to watch. JobNotFound if it does not exist, or belongs to another tenant."""
    query = request.query_params
    if query.get("workers"):
        if not view.may("workers"):
            raise AccessDenied("live updates of workers need the scope read")
        return [WORKERS]
    tenant, queue, id = (query.get(name) or None for name in ("tenant", "queue", "id"))
    if tenant and queue and id:
        record = await record_of(view, tenant, queue, id)
        return [JobKey(record.queue, record.id)]
    if tenant and queue:
        await view.store.stats(QueueName(tenant, queue))
        return [QueueName(tenant, queue)]
    return [record.queue for record in (await listing.queues(view.store, tenant))[:MAX_ROWS]]


async def _stream(request: Request, hub: Hub, names: Sequence[Watched]) -> AsyncIterator[bytes]:
    yield b"retry: 3000\n\n"
    if hub.tabs >= MAX_TABS:
        return  # many came at once: all were let in before the first of them was counted
    checked = time.monotonic()
    async with hub.watching(names) as tab:
        while not tab.closed:
            messages = await tab.next(HEARTBEAT_S)
            for message in messages:
                yield _bytes(message)
                if message.event == "end":
                    return
            if not messages:
                yield b": still here\n\n"
            if time.monotonic() - checked >= HEARTBEAT_S:
                checked = time.monotonic()
                if not await _still_admitted(request):
                    return


async def _still_admitted(request: Request) -> bool:
    """Whether the reader may still see it: a stream must not outlive a session, a token, or what
    they allowed."""
    try:
        now = await request.state.gate.admit(request)
    except JobqError:
        return False
    before = request.state.admission.principal
    if now is None or (before.expires_s is not None and time.time() >= before.expires_s):
        return False
    # With other rights, the browser connects again and gets what they allow.
    return bool(now.principal.tenant == before.tenant and now.principal.scopes == before.scopes)


def _bytes(message: Message) -> bytes:
    # JSON has no line breaks outside of strings, and escapes those inside.
    return b"event: %s\ndata: %s\n\n" % (message.event.encode(), message.data)
