"""A queue's connection: the sessions through which it uses its store, one per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from jobq.client.deadline import Deadlines
from jobq.client.session import Session, close_session, open_session
from jobq.client.tenants import check_own, learn_tenant
from jobq.core.queues import QueueConfig
from jobq.core.records import QueueName
from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.base import Clock, Store


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
