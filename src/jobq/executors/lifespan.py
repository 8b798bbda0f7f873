"""The lifespan of a worker: resources that are opened before its first job and closed after its
last.

@asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    async with create_pool() as pool:
        yield Resources(pool)

Worker(queue, lifespan=lifespan)
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from jobq.core.values.checks import shown
from jobq.errors import ConfigError
from jobq.executors.handlers import location

log = logging.getLogger("jobq")

CLEAN_UP_TIMEOUT = 30.0
"""Seconds that the clean-up of a lifespan may take. Service managers kill a process that takes
longer than a minute or so to stop, and running jobs have had their time before."""

Manager = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]
LifespanFunction = Callable[[], Manager] | Callable[[Any], Manager]
"""A function that returns a context manager, async or plain. It may take the worker, which is None
in a child process."""


def check_lifespan(given: object) -> LifespanFunction | None:
    """The function. ConfigError if it is something else."""
    if given is not None and not callable(given):
        raise ConfigError(
            f"lifespan={shown(given)} is not a function: give the function that "
            "@asynccontextmanager decorates, without calling it"
        )
    return given


def lifespan_address(function: LifespanFunction) -> tuple[str, str]:
    """The module and the name of the function. ConfigError if no other process can import it."""
    module, name = location(function)
    if module in ("?", "__main__") or not hasattr(function, "__qualname__") or "<" in name:
        raise ConfigError(
            f"lifespan: child processes import {name} of {module} by its name, because tasks have "
            "executor='process': define it at the top level of a module"
        )
    return module, name


def find_lifespan(address: tuple[str, str]) -> LifespanFunction:
    """Import the function. Raises what the import raises."""
    found: Any = importlib.import_module(address[0])
    for part in address[1].split("."):
        found = getattr(found, part)
    function: LifespanFunction = found
    return function


class Lifespan:
    """Enters and leaves the context manager, both in a task of its own.

    Task groups and cancel scopes must be left in the task that entered them. A worker is started in
    one task and stopped in another.
    """

    def __init__(
        self, function: LifespanFunction | None, worker: Any, broken: Callable[[], None]
    ) -> None:
        """`broken` is called if the lifespan ends before it is asked to."""
        self._function = function
        self._worker = worker
        self._broken = broken
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Any:
        """Enter, and return the value. Raises what the context manager raises."""
        if self._function is None:
            return None
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[Any] = loop.create_future()
        self._task = task = loop.create_task(
            self._run(self._function, entered), name="jobq lifespan"
        )
        try:
            await asyncio.wait([entered, task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        if not entered.done():
            self._task = None
            if task.cancelled() and self._stop.is_set():  # the worker was stopped meanwhile
                return None
            task.result()  # raises the error
            raise ConfigError("lifespan: the context manager was left before it was entered")
        task.add_done_callback(self._ended)
        return entered.result()

    async def stop(self, timeout_s: float = CLEAN_UP_TIMEOUT) -> None:
        """Leave the context manager. An error is logged, because the jobs have ended well.

        After `timeout_s` the clean-up is cancelled."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stop.set()
        _, late = await asyncio.wait([task], timeout=timeout_s)
        if late:
            log.error("the clean-up of the worker's lifespan takes over %g s: cancelled", timeout_s)
            task.cancel()
            await asyncio.wait([task], timeout=1.0)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("the clean-up of the worker's lifespan failed", exc_info=error)

    async def _run(self, function: LifespanFunction, entered: asyncio.Future[Any]) -> None:
        manager = opened(function, self._worker)
        if isinstance(manager, AbstractAsyncContextManager):
            async with manager as value:
                entered.set_result(value)
                await self._stop.wait()
        else:
            with manager as value:
                entered.set_result(value)
                await self._stop.wait()

    def _ended(self, _: asyncio.Task[None]) -> None:
        if not self._stop.is_set():
            self._broken()


def opened(function: LifespanFunction, worker: Any) -> Manager:
    """The context manager that the function returns. ConfigError if it returns something else."""
    takes_worker = bool(inspect.signature(function).parameters)
    manager = function(worker) if takes_worker else function()  # type: ignore[call-arg]
    if not isinstance(manager, AbstractAsyncContextManager | AbstractContextManager):
        raise ConfigError(
            f"lifespan: {shown(function)} returned {shown(manager)}, which is not a context "
            "manager: decorate the function with @asynccontextmanager or @contextmanager"
        )
    return manager
