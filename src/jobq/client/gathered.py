"""What the signals of a subscription say, gathered so that many signals cause one look."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from jobq.client.waiting import closing
from jobq.core.records import Signal

RENEW_S = 1800.0
"""Seconds after which a listener subscribes again. Stores forget a subscription after an hour."""

T = TypeVar("T")


class Gathered(Generic[T]):
    """Listens in the background while its context is open. `about` says what to keep of a signal.

    It hears nothing more if the subscription breaks, so its owner also looks without a signal.
    """

    def __init__(self, signals: AsyncIterator[Signal], about: Callable[[Signal], T]) -> None:
        self._signals, self._about = signals, about
        self._heard: set[T] = set()
        self.bell = asyncio.Event()
        """Set as soon as there is something to take. Others may set it too, to end a wait."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._listen(), name="jobq signals")
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task

    async def _listen(self) -> None:
        async with closing(self._signals):
            async for signal in self._signals:
                self._heard.add(self._about(signal))
                self.bell.set()

    async def next(self, seconds: float) -> set[T] | None:
        """Wait until the bell is set, then take. None if that takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self.bell.wait()
        except TimeoutError:
            return None
        return self.take()

    def take(self) -> set[T]:
        """What was gathered since the last call."""
        self.bell.clear()
        heard, self._heard = self._heard, set()
        return heard
