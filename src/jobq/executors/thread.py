"""Plain functions, in threads. A thread cannot be stopped: it can only look at `current_job().cancelled`.

Not concurrent.futures: its threads hold up the end of the process until they return, also those whose jobs were long
handed back, and it wakes the event loop once per call. Here threads are daemons, and what finishes together wakes it once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from jobq.executors.running import Running


class _Work:
    """One call on its way through a thread."""

    __slots__ = (
        "abandoned",
        "args",
        "context",
        "done",
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
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In the thread. A call abandoned before a thread took it up is left out."""
        if self.abandoned:
            return
        try:
            self.of.check()
            self.value = self.context.run(self.fn, *self.args, **self.kwargs)
        except BaseException as error:
            self.error = error


class ThreadExecutor:
    """As many threads as calls were ever under way at once: the worker's slots bound them, so no call queues for a thread."""

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
        """The function's result. Cancelled, the thread goes on and the run lingers."""
        return self._call(run, _Work(run, fn, args, kwargs, self._loop.create_future()))

    async def _call(self, run: Running, work: _Work) -> Any:
        self._under_way += 1
        if self._under_way > self._threads:
            self._add_thread()
        self._todo.put(work)
        try:
            await work.done
        except asyncio.CancelledError:
            if work.done.cancelled():  # else it had finished in the same moment
                work.abandoned = True
                run.unfinished = work.unfinished = self._loop.create_future()
            raise
        if work.error is not None:
            try:
                raise work.error
            finally:
                work.error = None  # or the error's traceback would hold itself
        return work.value

    def ask(self, run: Running) -> None:
        """The function has to look at `current_job().cancelled`."""

    async def aclose(self) -> None:
        """Idle threads end; a busy one ends when its function returns."""
        for _ in range(self._threads):
            self._todo.put(None)
        self._threads = 0

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(
            target=self._work, name=f"jobq thread {self._threads}", daemon=True
        ).start()

    def _work(self) -> None:
        """A thread's life."""
        while (work := self._todo.get()) is not None:
            work.run()
            self._finished.append(work)
            del work  # an idle thread holds nobody's arguments
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop is gone, and with it whoever waited

    def _collect(self) -> None:
        """In the loop: answer what has finished. `_notified` falls first, so that nothing appended later is missed."""
        self._notified = False
        while self._finished:
            work = self._finished.popleft()
            self._under_way -= 1
            if not work.done.done():
                work.done.set_result(None)
            if work.unfinished is not None and not work.unfinished.done():
                work.unfinished.set_result(None)


def open() -> ThreadExecutor:
    """For the running event loop."""
    return ThreadExecutor(asyncio.get_running_loop())
