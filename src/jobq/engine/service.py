"""The base class of background loops: `tick()` is one pass, `run()` repeats it through outages."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from jobq.errors import AccessDenied, StoreUnavailable

# This machine's clock.
#
# The store's clock decides what is due. This one is used for timestamps of workers, and to tell how
# late a schedule is.


def wall_clock() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


log = logging.getLogger("jobq")

NOT_NOW = (StoreUnavailable, TimeoutError, AccessDenied)
"""Errors of calls that say nothing about what was sent: the same call may work later. A jq-server
denies access while a token is expired and not replaced yet.
"""

on_outage: ContextVar[Callable[[BaseException], None]] = ContextVar("jobq_on_outage")
"""Called with the first error of each outage. It may be called in another thread."""


class Outage:
    """Computes the delay before the next try, and logs an outage once instead of once per try."""

    def __init__(self, what: str, *, base: float = 0.05, cap: float = 5.0) -> None:
        self._what = what
        self._base = base
        self._cap = cap
        self._tries = 0
        self._since = 0.0
        self._listener = on_outage.get(None)

    def failed(self, error: BaseException) -> float:
        """Record a failed try. Returns the seconds until the next one.

        Up to half of the delay is random, so that a fleet does not retry in step. It never raises,
        because loops that must not end call it when something has raised.
        """
        if self._tries == 0:
            self._since = time.monotonic()
            with suppress(Exception):  # the log, or what listens
                self._tell(error)
        delay = min(self._cap, self._base * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return delay * random.uniform(0.5, 1.0)

    def _tell(self, error: BaseException) -> None:
        expected = isinstance(error, NOT_NOW)
        try:
            log.warning(
                "%s: %s; trying again until it works",
                self._what,
                _describe(error),
                exc_info=None if expected else error,
            )
        finally:
            if self._listener is not None:
                self._listener(error)

    @property
    def lasts(self) -> bool:
        """Whether the last try has failed."""
        return self._tries > 0

    def over(self) -> None:
        """Record that a try worked. It never raises."""
        if self._tries:
            tries, self._tries = self._tries, 0
            with suppress(Exception):
                log.info(
                    "%s: works again after %.1f s and %d tries",
                    self._what,
                    time.monotonic() - self._since,
                    tries,
                )


class Farewell:
    """What is left of the time that a stopping worker has for its stores, all in all."""

    def __init__(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        """Seconds, not less than 0."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    async def wait(self, *tasks: asyncio.Future[Any], most: float = math.inf) -> bool:
        """Wait for these, for `most` seconds at most. Returns whether all are done."""
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=min(most, self.left))
        return not late


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Service:
    """A loop that runs until it is stopped. Subclasses define `name` and `tick`."""

    name = "service"

    def __init__(self) -> None:
        self._stopping = False
        self._bell: asyncio.Future[None] | None = None
        self._outage = Outage(self.name)

    async def tick(self) -> float:
        """Run one pass. Returns the seconds until the next one."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run passes until `stop()`. A pass that raises only delays the next one."""
        while not self._stopping:
            try:
                rest = await self.tick()
                self._outage.over()
            except Exception as error:
                rest = self._outage.failed(error)
            await self._rest(rest)

    def stop(self) -> None:
        """End the loop after the current pass."""
        self._stopping = True
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def _rest(self, seconds: float) -> None:
        if self._stopping:
            return
        self._bell = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._bell], timeout=max(seconds, 0.0))
        self._bell = None
