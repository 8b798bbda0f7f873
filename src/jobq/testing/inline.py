"""Inline runs of a drain: every handler runs in the test itself, and its error reaches the test.

There are no threads and no processes, so a debugger stops in handlers, and they see what belongs to
the test's thread, such as an open database transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from jobq.api.task_handler import runs_async
from jobq.client.portal import portal
from jobq.core.control import RetryAfter
from jobq.core.records import AnyOutcome, Defer, Fail, RetryLater
from jobq.engine.executors import Executors
from jobq.engine.handler import Handler
from jobq.engine.run import Run
from jobq.engine.runner import Runner
from jobq.executors import ApartExecutor, Executor
from jobq.executors.running import Running

T = TypeVar("T")

CallPlain = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a plain function where it belongs, and returns its result."""


async def call_here(function: Callable[[], Any]) -> Any:
    """Call a plain function in the thread of the event loop."""
    return function()


class InlineExecutors(Executors):
    """Has one executor for all functions. Programs still run as programs."""

    def __init__(self, call_plain: CallPlain) -> None:
        super().__init__()
        self._inline = InlineExecutor(call_plain)

    def __missing__(self, name: str) -> Executor | ApartExecutor:
        if name == "command":
            return super().__missing__(name)
        self[name] = self._inline
        return self._inline


class InlineExecutor:
    """Awaits async functions in the task of the run, and calls plain ones where the test is."""

    apart: Literal[False] = False

    def __init__(self, call_plain: CallPlain) -> None:
        self._call_plain = call_plain

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """See `Executor.call`."""
        if runs_async(fn):
            coroutine: Awaitable[Any] = fn(*args, **kwargs)
            return coroutine
        return self._call_plain(partial(fn, *args, **kwargs))

    def request_stop(self, run: Running) -> None:
        """Raise CancelledError at the next `await` of an async function."""
        if run.task is not None:
            run.task.cancel("the job was cancelled")

    async def aclose(self) -> None:
        """Nothing to release."""


class InlineRunner(Runner):
    """Keeps the first error of a handler, for the test."""

    error: BaseException | None = None

    def raised(self, run: Run, handler: Handler, error: BaseException) -> AnyOutcome | None:
        """See `Runner.raised`."""
        outcome = super().raised(run, handler, error)
        failed = isinstance(outcome, (Fail, Defer)) or (
            isinstance(outcome, RetryLater) and not isinstance(error, RetryAfter)
        )
        if failed and self.error is None and not isinstance(error, asyncio.CancelledError):
            self.error = error
        return outcome


# ── for tests without an event loop ───────────────────────────────────────────────────────────────


def run_calling_here(start: Callable[[CallPlain], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in the portal. The plain functions that it calls run in this thread."""
    calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    future = portal.submit(start(partial(_call_in_thread, calls)))
    future.add_done_callback(lambda _: calls.put(None))
    try:
        while (call := calls.get()) is not None:
            call()
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _call_in_thread(
    calls: SimpleQueue[Callable[[], None] | None], function: Callable[[], Any]
) -> Any:
    """Let the thread that reads `calls` call the function, and wait for its result."""
    loop = asyncio.get_running_loop()
    called = asyncio.Event()
    context = copy_context()
    values: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            values.append(context.run(function))
        except BaseException as error:
            errors.append(error)
        loop.call_soon_threadsafe(called.set)

    calls.put(call)
    await called.wait()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # else the error and its traceback would refer to each other
    return values[0]
