"""Whether a server is ready: its store responds and lets workers claim."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import TimeoutError as NoReply

from jobq.console.probes import Answer, Route, answer
from jobq.core.printable import one_line
from jobq.core.redact import redacted
from jobq.stores.base import Store

_READY_S = 2.0
"""Seconds that the store has to respond."""


async def accepts_writes(store: Store) -> None:
    """Write to the store as a claim does, without touching a queue. Raises if it cannot.

    A read would not do: a full disk or a database that became a replica still allows reads, and
    workers could claim nothing.
    """
    await store.lead(f"readyz/{os.getpid()}", who="jq-server", ttl_ms=1)


class Readiness:
    """The state behind /readyz."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self.stopping = False

    def stop(self) -> None:
        """The server stops: load balancers should send no more calls."""
        self.stopping = True

    def route(self) -> Route:
        """The route of /readyz."""

        def route() -> Answer:
            if self.stopping:
                return answer("the server stops")
            asked = asyncio.run_coroutine_threadsafe(accepts_writes(self._store), self._loop)
            try:
                asked.result(_READY_S)
            except NoReply:
                asked.cancel()
                return answer(f"the store did not respond within {_READY_S:g} s")
            except Exception as error:
                return answer(redacted(one_line(str(error) or type(error).__name__)))
            return answer(None)

        return route
