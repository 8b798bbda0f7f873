"""The portal: an event loop in a background thread, in which `.sync` runs its coroutines.

There is one portal per process. Its first use starts it, also in a forked child. Any number of
threads may use it at once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from jobq.client.connection import close_sessions_here

T = TypeVar("T")

_CLOSE_TIMEOUT = 5.0
"""Seconds that the exiting process waits for the portal to close its stores. Closing takes
milliseconds, unless a store does not reply."""


class Portal:
    """An event loop in a background thread, for code that has no event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the portal and return its result. KeyboardInterrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the portal. The caller may block until the future is done."""
        if asyncio._get_running_loop() is not None:
            coroutine.close()
            raise RuntimeError(
                "`.sync` blocks, and an event loop is running in this thread: use the async "
                "method, with `await`"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, self._started())

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
        """Close the portal's stores and stop its thread. The next use starts another one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(close_sessions_here(), loop)
        try:
            closing.result(_CLOSE_TIMEOUT)
        except Exception:
            pass  # an exiting process cannot start threads; every acknowledged call is stored
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE_TIMEOUT)
        if not thread.is_alive():
            loop.close()

    def forget(self) -> None:
        """Start over in a forked child: the thread and its connections belong to the parent."""
        self.__init__()  # type: ignore[misc]


portal = Portal()
os.register_at_fork(after_in_child=portal.forget)
atexit.register(portal.stop)

run = portal.run
"""Run a coroutine in the portal and wait for its result."""


def pages(source: Callable[[], AsyncIterator[T]], size: int) -> Iterator[T]:
    """The items of an async iterator, fetched `size` at a time: one call to the portal per page."""
    iterator = source()
    while page := run(_take(iterator, size)):
        yield from page


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an async generator, each as soon as it comes. Closing this one closes it too."""
    try:
        while page := run(_take(items, 1)):
            yield from page
    finally:
        run(_close(items))


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


async def _take(iterator: AsyncIterator[T], size: int) -> list[T]:
    items: list[T] = []
    async for item in iterator:
        items.append(item)
        if len(items) == size:
            break
    return items
