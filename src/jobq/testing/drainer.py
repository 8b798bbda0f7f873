"""The drainer: runs due jobs in a test, without the loops of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from jobq.api.middleware import WorkerMiddleware
from jobq.api.task_handler import runs_async
from jobq.client.ids import new_id
from jobq.client.portal import portal
from jobq.core.control import RetryAfter
from jobq.core.records.jobs import AnyOutcome, Claim, Defer, Fail, QueueName, RetryLater
from jobq.engine.exchange import Exchange
from jobq.engine.executors import Executors
from jobq.engine.handler import (
    Handler,
)
from jobq.engine.identity import WorkerSettings
from jobq.engine.notes import Notes
from jobq.engine.run import Run
from jobq.engine.runner import Runner
from jobq.engine.slots import Bell, Slots
from jobq.executors import ApartExecutor, Executor
from jobq.executors.running import Running
from jobq.stores.base import Store

# Inline runs of a drain: every handler runs in the test itself, and its error reaches the test.
#
# There are no threads and no processes, so a debugger stops in handlers, and they see what belongs
# to the test's thread, such as an open database transaction.

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


_CHECK_AGAIN_S = 0.02
"""Seconds after which `drain` looks for jobs that a running handler may have enqueued."""


class Drainer:
    """Runs jobs with the worker's runner, but without its loops. Stops when there is nothing to
    do."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[QueueName, Mapping[str, Handler]],
        concurrency: int,
        most: int,
        state: Any = None,
        call_plain: CallPlain | None = None,
    ) -> None:
        """`state` is the value of the lifespan. With `call_plain`, runs are inline."""
        settings = WorkerSettings(concurrency=concurrency)
        self.runs = 0
        self._most = most
        self._queues = tuple(tasks)
        self._settings = settings
        self._bell = Bell()
        self._slots = Slots(concurrency)
        inline = call_plain is not None
        self._executors = InlineExecutors(call_plain) if call_plain else Executors()
        self._notes = Notes(store)
        self._runner = (InlineRunner if inline else Runner)(
            tasks,
            executors=self._executors,
            slots=self._slots,
            bell=self._bell,
            notes=self._notes,
            settings=settings,
            around_of=WorkerMiddleware(),
            state=state,
        )
        self._exchange = Exchange(
            store, worker=f"drain-{new_id()}", exchange_timeout_ms=settings.exchange_timeout_ms
        )

    async def run(self) -> int | None:
        """Run jobs until none is due. Returns in how many milliseconds the next one will be."""
        runner = self._runner
        while True:
            ended, runner.ended = runner.ended, []
            error = runner.error if isinstance(runner, InlineRunner) else None
            taken = 0 if error else self._slots.take(self._bell, self._slots.total)
            claim = (
                Claim(queues=self._queues, limit=taken, lease_ms=self._settings.lease_ms)
                if taken
                else None
            )
            since = time.monotonic()
            settled = await self._exchange.ask(ended, claim)
            runner.settled(ended)
            if error is not None:
                raise error
            self._slots.give(taken - len(settled.leases))
            self._count(len(settled.leases))
            runner.start(settled.leases, since)
            if not settled.leases:
                runner.batches.flush()  # there are no more jobs to wait for
            if runner.ended:
                continue
            if runner.open or claim is None:
                # With free slots, look again soon: a running job may wait for one it enqueued.
                await self._bell.wait(_CHECK_AGAIN_S if self._slots.free else None)
            elif not settled.leases:
                return settled.next_due_ms

    def _count(self, more: int) -> None:
        self.runs += more
        if self.runs > self._most:
            raise AssertionError(
                f"drain() has run {self.runs} jobs and there are more: do they snooze or enqueue "
                "each other for ever? If so many runs are right, give a higher most="
            )

    async def aclose(self) -> None:
        """Stop the threads, and interrupt runs that an error has left behind."""
        self._runner.interrupts.release_running()
        await asyncio.sleep(0)
        await self._notes.aclose()
        await self._executors.aclose()
