"""An event loop in a thread of its own, for code that has none: what `.sync` runs everything in.

There is one per process, started at the first use and again after a fork; any number of threads may use it at once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from jobq.client.session import close_sessions_here

T = TypeVar("T")

_GOODBYE = 5.0
"""Seconds the end of the process waits for the portal to close its stores."""


class Portal:
    """An event loop in a thread, for code that has none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it to its end in the portal and answer with its result. An interrupt here cancels it there."""
        if asyncio._get_running_loop() is not None:
            coroutine.close()
            raise RuntimeError(
                "`.sync` blocks, and an event loop is running in this thread: use the async method, with `await`"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        if (loop := self._loop) is not None:
            return loop
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="jobq portal", daemon=True
                )
                self._thread.start()
                self._loop = loop
            return self._loop

    def stop(self) -> None:
        """Close the portal's stores and end its thread; the next use starts another."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(close_sessions_here(), loop)
        try:
            closing.result(_GOODBYE)
        except Exception:  # at the end of the process threads cannot be started any more; all that was answered is stored
            pass
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_GOODBYE)
        if not thread.is_alive():
            loop.close()

    def forget(self) -> None:
        """In a forked child: the thread did not come along, and what it held belongs to the parent."""
        self.__init__()  # type: ignore[misc]


portal = Portal()
os.register_at_fork(after_in_child=portal.forget)
atexit.register(portal.stop)

run = portal.run
"""Run a coroutine in the portal and wait for it: for async code of jobq that has no blocking twin."""


def pages(source: Callable[[], AsyncIterator[T]], size: int) -> Iterator[T]:
    """The items of an async iterator, fetched `size` at a time: one trip to the portal per page."""
    iterator = source()
    while page := run(_take(iterator, size)):
        yield from page


async def _take(iterator: AsyncIterator[T], size: int) -> list[T]:
    items: list[T] = []
    async for item in iterator:
        items.append(item)
        if len(items) == size:
            break
    return items
