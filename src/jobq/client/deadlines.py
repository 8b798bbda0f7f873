"""Time limits: when a wait for a job ends, and a store whose calls have a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, TypeVar, cast
from weakref import WeakSet

from jobq.errors import StoreUnavailable
from jobq.stores.base import Store

CHECK_AGAIN_S = 5.0
"""Seconds after which a waiting call reads the job even without a signal, as signals may be lost.
Seldom enough that thousands of waits cost little."""


class Deadline:
    """When one wait ends. `ms` None: it has no timeout. Made by `Deadlines`, closing the queue ends
    it."""

    __slots__ = ("__weakref__", "_at", "closed", "seconds", "timeout")

    def __init__(self, ms: int | None) -> None:
        self.seconds = None if ms is None else ms / 1000
        self.closed = False
        self._at = (
            None if self.seconds is None else asyncio.get_running_loop().time() + self.seconds
        )
        self.timeout: asyncio.Timeout | None = None  # of the current wait; `close` ends it early

    @property
    def left(self) -> float:
        """Seconds to wait before reading the job again; 0 or less: the wait is over."""
        if self.closed:
            return 0.0
        if self._at is None:
            return CHECK_AGAIN_S
        return min(CHECK_AGAIN_S, self._at - asyncio.get_running_loop().time())

    def close(self) -> None:
        """End the wait now, because the queue is closed."""
        self.closed = True
        if self.timeout is not None:
            self.timeout.reschedule(0.0)


class Deadlines:
    """The deadlines of all waits of one queue, by event loop."""

    def __init__(self) -> None:
        self._open: dict[asyncio.AbstractEventLoop, WeakSet[Deadline]] = {}

    def new(self, ms: int | None) -> Deadline:
        """A deadline for a wait in the running event loop."""
        deadline = Deadline(ms)
        self._open.setdefault(asyncio.get_running_loop(), WeakSet()).add(deadline)
        return deadline

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """End all waits in an event loop. Call this in that event loop."""
        for deadline in self._open.pop(loop, ()):
            deadline.close()


T = TypeVar("T")


async def within(reply: Awaitable[T], seconds: float, late: str) -> T:
    """Wait for a reply. StoreUnavailable with the text `late` if it takes too long."""
    try:
        async with asyncio.timeout(seconds):
            return await reply
    except TimeoutError as error:
        raise StoreUnavailable(late) from error


def patient(store: Store, seconds: float, late: str) -> Store:
    """The same store, each of whose calls may take some seconds."""
    return cast("Store", _Patient(store, seconds, late))


class _Patient:
    def __init__(self, store: Store, seconds: float, late: str) -> None:
        self._store, self._seconds, self._late = store, seconds, late

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            reply = found(*args, **kwargs)
            # `listen` is no call that is awaited: what it returns is open for long.
            return within(reply, self._seconds, self._late) if isawaitable(reply) else reply

        return call
