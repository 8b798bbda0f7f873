"""Functions that a worker calls about itself: `Worker(on_stall=…, on_idle=…)` and so on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from jobq.api.current import CurrentJob
from jobq.core.checks import shown
from jobq.core.moments import moment
from jobq.core.queues import Fire
from jobq.engine.run import Run
from jobq.engine.service import on_outage
from jobq.errors import ConfigError

log = logging.getLogger("jobq")

_CLOSE_TIMEOUT = 5.0
"""Seconds that a stopping worker waits for async functions that still run."""


class MissedTime(msgspec.Struct, frozen=True, kw_only=True):
    """A time at which a schedule made no job, although it was due. `at` is the first of several."""

    tenant: str
    queue: str
    schedule: str
    at: datetime


class Callbacks:
    """Calls the functions in the worker's event loop. Their errors are logged."""

    def __init__(
        self,
        *,
        on_stall: Callable[[CurrentJob], object] | None,
        on_idle: Callable[[], object] | None,
        on_error: Callable[[BaseException], object] | None,
        on_missed: Callable[[MissedTime], object] | None,
    ) -> None:
        given = {
            "on_stall": on_stall,
            "on_idle": on_idle,
            "on_error": on_error,
            "on_missed": on_missed,
        }
        for name, function in given.items():
            if function is not None and not callable(function):
                raise ConfigError(f"{name}={shown(function)} is not a function")
        self._on_stall = on_stall
        self._on_error = on_error
        self._on_missed = on_missed
        self.on_idle = on_idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Loops that are made in this block report their outages to `on_error`."""
        self._loop = asyncio.get_running_loop()
        if self._on_error is None:
            yield
            return
        token = on_outage.set(self._failed)
        try:
            yield
        finally:
            on_outage.reset(token)

    def stalled(self, run: Run) -> None:
        """Call `on_stall`: the lease of this run is lost."""
        if self._on_stall is not None:
            self._call("on_stall", self._on_stall, CurrentJob(run))

    def idle(self) -> None:
        """Call `on_idle`: the worker has nothing to do."""
        if self.on_idle is not None:
            self._call("on_idle", self.on_idle)

    def missed(self, fire: Fire) -> None:
        """Call `on_missed`: a schedule skipped this time."""
        if self._on_missed is not None:
            time = MissedTime(
                tenant=fire.queue.tenant,
                queue=fire.queue.queue,
                schedule=fire.schedule,
                at=moment(fire.at_ms),
            )
            self._call("on_missed", self._on_missed, time)

    def _failed(self, error: BaseException) -> None:
        """Call `on_error`. Some loops run in another thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call, "on_error", self._on_error, error)

    def _call(self, name: str, function: Any, *args: Any) -> None:
        try:
            value = function(*args)
        except Exception:
            log.exception("%s of the worker raised an error", name)
            return
        if asyncio.iscoroutine(value):
            task = asyncio.get_running_loop().create_task(value, name=f"jobq {name}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s of the worker raised an error", task.get_name()[5:], exc_info=error)

    async def aclose(self) -> None:
        """Wait for async functions that still run, then cancel them."""
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_TIMEOUT)
            for task in late:
                task.cancel()
