"""A queue's connection: sessions with its store, one per event loop, over shared store handles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from jobq.client.deadlines import Deadlines
from jobq.client.reader import Reader
from jobq.client.sender import Sender
from jobq.client.tenants import check_own, learn_tenant
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import QueueConfig
from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Clock, Store, pipeline_of

# Shared store handles: one per URL, event loop and process. Its last user closes it.
#
# A handle belongs to the event loop that opened it and does not survive a fork, so both are part of
# its key.

_Key = tuple[str, int, int, Clock | None]


@dataclass(eq=False)
class _Entry:
    """A handle and how many use it. `ready` is done when `migrate` has returned or failed."""

    key: _Key
    loop: asyncio.AbstractEventLoop
    store: Store
    ready: asyncio.Future[None]
    users: int = field(default=0)


_entries: dict[_Key, _Entry] = {}


async def shared_handle(url: str, clock: Clock | None = None) -> Store:
    """A connected handle on the store at `url` for the running event loop. Call `release_handle`
    once for each call."""
    loop = asyncio.get_running_loop()
    key = (url, id(loop), os.getpid(), clock)
    entry = _entries.get(key)
    if entry is None or entry.loop is not loop:
        _forget_handles()
        entry = _entries[key] = _Entry(
            key, loop, open_store(url, clock=clock), loop.create_future()
        )
        entry.users = 1
        return await _open(entry)
    entry.users += 1
    try:
        await asyncio.shield(entry.ready)
    except BaseException:
        await _leave(entry)
        raise
    return entry.store


async def release_handle(store: Store) -> None:
    """Stop using a handle. The last user closes it. Stores that `shared_handle` did not open
    are ignored."""
    loop = asyncio.get_running_loop()
    for entry in list(_entries.values()):  # a copy: other threads open and close handles too
        if entry.store is store and entry.loop is loop:
            await _leave(entry)
            return


async def _open(entry: _Entry) -> Store:
    try:
        await entry.store.migrate()
    except BaseException as error:
        _drop(entry)
        entry.ready.set_exception(
            error
            if isinstance(error, Exception)
            else StoreUnavailable(f"opening {entry.store.url} was cancelled")
        )
        entry.ready.exception()  # mark it as retrieved: there may be no waiter to raise it
        await entry.store.aclose()
        raise
    entry.ready.set_result(None)
    return entry.store


async def _leave(entry: _Entry) -> None:
    entry.users -= 1
    if entry.users <= 0 and _entries.get(entry.key) is entry:
        _drop(entry)
        await entry.store.aclose()


def _drop(entry: _Entry) -> None:
    if _entries.get(entry.key) is entry:
        del _entries[entry.key]


def _forget_handles() -> None:
    """Drop the handles of event loops that ended without releasing them: their id() may be
    reused."""
    for entry in [
        e for e in list(_entries.values()) if e.loop.is_closed() or e.key[2] != os.getpid()
    ]:
        _drop(entry)


# A session: a store handle in one event loop, with its sender and its reader.
#
# Queues with the same URL share one session per event loop, so their puts and reads share batches.

T = TypeVar("T")

CHUNK = 1000
"""Jobs per store call when many are stored or changed: enough that the cost of a call does not
matter, few enough that other writers do not wait long."""


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`. An iterator is read only as far as needed."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class Session:
    """A store handle of the running event loop. `users` counts the queues that have it open."""

    __slots__ = ("loop", "pipeline", "reader", "sender", "store", "users")

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.pipeline = pipeline_of(store)
        self.sender = Sender(store)
        self.reader = Reader(store)
        self.users = 0


_sessions: dict[int, Session] = {}  # by id() of the store, which the session keeps alive


async def open_session(url: str, clock: Clock | None = None) -> Session:
    """The session with the store at `url` in the running event loop. Call `close_session` once for
    each call."""
    store = await shared_handle(url, clock)
    session = _sessions.get(id(store))
    if session is None:
        _forget_closed_loops()
        session = _sessions[id(store)] = Session(store)
    session.users += 1
    return session


async def close_session(session: Session) -> None:
    """Stop using a session. The last user closes its store."""
    session.users -= 1
    if session.users == 0:
        _sessions.pop(id(session.store), None)
    await release_handle(session.store)


async def close_sessions_here() -> None:
    """Close all sessions of the running event loop, which is about to end."""
    loop = asyncio.get_running_loop()
    for session in list(_sessions.values()):
        while session.loop is loop and session.users:
            await close_session(session)


def _forget_closed_loops() -> None:
    for key, session in list(_sessions.items()):  # a copy: other threads change it too
        if session.loop.is_closed():
            _sessions.pop(key, None)


class Connection:
    """Opens a session in each event loop that uses the queue, and closes it there.

    The first use in an event loop opens the session and declares the queue's configuration.
    Any number of event loops and threads may use one Connection. If `url` is a function, it is
    called when the first session opens.
    """

    def __init__(
        self,
        queue: Callable[[], QueueName],
        url: str | Callable[[], str],
        config: QueueConfig | None,
    ) -> None:
        self._url = url
        self.clock: Clock | None = None  # a test's clock; None: the store's own
        self.deadlines = Deadlines()  # of calls that wait for a job; closing the queue ends them
        self._queue = queue
        self._home = url
        self._config = config
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._entered: dict[asyncio.AbstractEventLoop, int] = {}  # open `async with` blocks
        # Event loops that used the queue before the first `async with`: only aclose() closes those.
        self._opened_by_use: set[asyncio.AbstractEventLoop] = set()
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    @property
    def url(self) -> str:
        """The URL of the store, or what it would be if the queue were opened now."""
        return self._url if isinstance(self._url, str) else self._url()

    # ── opening and closing ───────────────────────────────────────────────────────────────────────

    async def enter(self) -> None:
        """Open the session of the running event loop for an `async with` block."""
        loop = asyncio.get_running_loop()
        if not self._entered.get(loop) and loop in self._sessions:
            self._opened_by_use.add(loop)
        self._entered[loop] = self._entered.get(loop, 0) + 1
        try:
            await self.session()
        except BaseException:
            self._entered[loop] -= 1
            raise

    async def leave(self) -> None:
        """End an `async with` block. The outermost one closes the session it opened."""
        loop = asyncio.get_running_loop()
        self._entered[loop] = max(0, self._entered.get(loop, 0) - 1)
        if not self._entered[loop] and loop not in self._opened_by_use:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the session of the running event loop. Calls that wait there raise QueueClosed."""
        loop = asyncio.get_running_loop()
        self._opened_by_use.discard(loop)
        self.deadlines.close(loop)
        session = self._sessions.pop(loop, None)
        if session is not None:
            await close_session(session)

    def session_here(self) -> Session | None:
        """The session of the running event loop, if it is open."""
        return self._sessions.get(asyncio.get_running_loop())

    async def session(self) -> Session:
        """The session of the running event loop, opened if necessary."""
        return self.session_here() or await self._open()

    async def _open(self) -> Session:
        loop = asyncio.get_running_loop()
        async with self._opening.setdefault(loop, asyncio.Lock()):
            if (session := self._sessions.get(loop)) is not None:
                return session
            self._forget_closed_loops()
            self._url = self.url  # the same store for every event loop
            session = await open_session(self._url, self.clock)
            try:
                learn_tenant(self._url, session.store)
                check_own(session.store, self._queue().tenant)
                if self._config is not None:
                    await session.store.declare(self._queue(), self._config)
            except BaseException:
                await close_session(session)
                raise
            self._sessions[loop] = session
            return session

    # ── for workers ───────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """A store handle that stays open for the length of the context, even if the queue is
        closed meanwhile."""
        await self.enter()
        try:
            session = await open_session(self.url, self.clock)
            try:
                yield session.store
            finally:
                await close_session(session)
        finally:
            await self.leave()

    def another_handle(self) -> Store:
        """Another store handle, not connected yet, for an event loop in another thread."""
        return open_store(self.url, clock=self.clock)

    # ── for tests and jq-worker ───────────────────────────────────────────────────────────────────

    def move(self, url: str, clock: Clock | None = None) -> None:
        """Use the store at `url` from now on. ConfigError if the queue is open."""
        self._forget_closed_loops()
        if self._sessions:
            raise ConfigError(
                f"queue {self._queue().queue!r} is open and cannot be moved: close it first"
            )
        self._url, self.clock = url, clock

    async def move_back(self) -> None:
        """Close the sessions of all event loops and use the original store again."""
        sessions = dict(self._sessions)
        self._sessions.clear()
        self._entered.clear()
        self._opened_by_use.clear()
        self._url, self.clock = self._home, None
        here = asyncio.get_running_loop()
        for loop, session in sessions.items():
            if loop is here:
                await close_session(session)
            elif not loop.is_closed():
                await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(close_session(session), loop)
                )

    def close_in_idle_loops(self) -> None:
        """Close the sessions of event loops that neither run nor are closed, such as that of an
        async test whose fixtures are torn down. Call this in the thread of those loops."""
        for loop, session in list(self._sessions.items()):
            if not loop.is_running() and not loop.is_closed():
                del self._sessions[loop]
                loop.run_until_complete(close_session(session))

    def _forget_closed_loops(self) -> None:
        for by_loop in (self._sessions, self._entered, self._opening):
            for loop in list(by_loop):  # a copy: other threads open and close sessions too
                if loop.is_closed():
                    by_loop.pop(loop, None)
                    self._opened_by_use.discard(loop)
