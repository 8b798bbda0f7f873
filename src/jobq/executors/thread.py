"""Runs plain functions in threads.

A thread cannot be stopped from outside. Its function can check `current_job().cancelled`.

concurrent.futures is not used, for two reasons. Its threads delay the exit of the process until
they return, even if their jobs were released long ago: the threads here are daemons. And it wakes
the event loop once per call: here, calls that finish together wake it once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, Literal

from jobq.executors.running import Running
from jobq.executors.settings import ExecutorSettings


class _Work:
    """One call of a function."""

    __slots__ = (
        "abandoned",
        "args",
        "context",
        "done",
        "ended",
        "error",
        "fn",
        "kwargs",
        "unfinished",
        "of",
        "value",
    )

    def __init__(
        self,
        of: Running,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        done: asyncio.Future[None],
    ) -> None:
        self.of = of
        self.context: Context = copy_context()
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.done = done
        self.unfinished: asyncio.Future[None] | None = None
        self.abandoned = False
        self.ended = False
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the function, in the thread. Does nothing if the call was cancelled before."""
        if self.abandoned:
            return
        try:
            self.of.check()
            self.value = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as error:
            self.error = error


class ThreadExecutor:
    """Has a thread for each call, so no call waits. The worker's slots limit their number."""

    apart: Literal[False] = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._todo: SimpleQueue[_Work | None] = SimpleQueue()
        self._finished: deque[_Work] = deque()
        self._notified = False
        self._under_way = 0
        self._threads = 0

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Return the function's result. If cancelled, the thread goes on (`run.unfinished`)."""
        return self._call(run, _Work(run, fn, args, kwargs, self._loop.create_future()))

    async def _call(self, run: Running, work: _Work) -> Any:
        self._under_way += 1
        if self._under_way > self._threads:
            self._add_thread()
        self._todo.put(work)
        try:
            await work.done
        except asyncio.CancelledError:
            if not work.ended:  # it may have ended between the cancellation and this line
                work.abandoned = True
                run.unfinished = work.unfinished = self._loop.create_future()
            raise
        if work.error is not None:
            try:
                raise work.error
            finally:
                work.error = None  # else the error and its traceback would refer to each other
        return work.value

    def request_stop(self, run: Running) -> None:
        """Do nothing: the function has to check `current_job().cancelled`."""

    async def aclose(self) -> None:
        """End idle threads. A busy one ends when its function returns."""
        for _ in range(self._threads):
            self._todo.put(None)
        self._threads = 0

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(
            target=self._work, name=f"jobq thread {self._threads}", daemon=True
        ).start()

    def _work(self) -> None:
        """Run calls until there is None: the body of a thread."""
        while (work := self._todo.get()) is not None:
            work.run()
            self._finished.append(work)
            del work  # an idle thread must not keep the arguments alive
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop is closed: nothing waits for the result

    def _collect(self) -> None:
        """Complete the calls that have finished, in the event loop.

        `_notified` is reset first, so that a call that finishes meanwhile is not missed.
        """
        self._notified = False
        while self._finished:
            work = self._finished.popleft()
            self._under_way -= 1
            work.ended = True
            if not work.done.done():
                work.done.set_result(None)
            if work.unfinished is not None and not work.unfinished.done():
                work.unfinished.set_result(None)


def open(settings: ExecutorSettings) -> ThreadExecutor:
    """Return an executor for the running event loop."""
    return ThreadExecutor(asyncio.get_running_loop())
