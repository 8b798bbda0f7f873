"""Whether a server is ready: its store responds and lets workers claim."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from jobq.console.probes import Answer, Route, answer
from jobq.engine.service import Outage
from jobq.stores.base import Store

_READY_S = 2.0
"""Seconds that the store has to respond."""
_EVERY_S = 2.0
"""Seconds between two looks, so that the health service of gRPC knows without being asked."""


async def accepts_writes(store: Store) -> None:
    """Write to the store as a claim does, without touching a queue. Raises if it cannot.

    A read would not do: a full disk or a database that became a replica still allows reads, and
    workers could claim nothing.
    """
    await store.lead(f"readyz/{os.getpid()}", who="jq-server", ttl_ms=1)


class Readiness:
    """The state behind /readyz and the health service of gRPC.

    Everybody who reaches a port can read both, so they say nothing about the store itself: that is
    in the log, once for each outage.
    """

    def __init__(self, store: Store, changed: Callable[[bool], Awaitable[None]]) -> None:
        """`changed` is told whether the server is ready, whenever that changes."""
        self._store = store
        self._changed = changed
        self._ready = True
        self._outage = Outage("the server is not ready, because its store does not accept a write")
        self.stopping = False

    def stop(self) -> None:
        """The server stops: load balancers should send no more calls."""
        self.stopping = True

    async def check(self) -> str | None:
        """Ask the store. Returns why the server is not ready; None if it is."""
        problem: str | None = None
        try:
            async with asyncio.timeout(_READY_S):
                await accepts_writes(self._store)
        except Exception as error:
            silent = isinstance(error, TimeoutError)
            self._outage.failed(
                TimeoutError(f"no reply within {_READY_S:g} s") if silent else error
            )
            problem = (
                f"the store did not respond within {_READY_S:g} s"
                if silent
                else "the store does not accept a write: the log of the server says why"
            )
        else:
            self._outage.over()
        if self.stopping:
            return "the server stops"
        if self._ready is not (problem is None):
            self._ready = problem is None
            await self._changed(self._ready)
        return problem

    async def run(self) -> None:
        """Look every few seconds, until this is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.check()

    def route(self, loop: asyncio.AbstractEventLoop) -> Route:
        """The route of /readyz. It looks again whenever it is asked."""

        def route() -> Answer:
            if self.stopping:
                return answer("the server stops")
            try:
                looking = asyncio.run_coroutine_threadsafe(self.check(), loop)
                return answer(looking.result(2 * _READY_S))
            except TimeoutError:
                return answer("the server is busy")

        return route
