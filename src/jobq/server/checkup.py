"""Whether a server can serve: `jq-server --dry-run`, and readiness while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from jobq.console.probes import Answer, Route, answer
from jobq.console.safe_errors import safe_message
from jobq.core.values.printable import redacted_url
from jobq.engine.service import Outage
from jobq.server.plan import Plan
from jobq.server.tls import describe
from jobq.stores import open_store
from jobq.stores.base import Store

# Whether a server is ready: its store responds and lets workers claim.

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


_PATIENCE_S = 15.0
"""Seconds that each check may take. A store has 10 s to connect."""


class Finding(NamedTuple):
    """One line of the report."""

    good: bool
    what: str


async def checkup(plan: Plan) -> list[Finding]:
    """Look at everything that the server would use. Changes nothing but the store's schema."""
    checks: list[tuple[str, Callable[[Plan], Awaitable[str]]]] = [
        (f"store {redacted_url(plan.store_url)} (from {plan.store_from})", _store),
        ("certificate", _certificate),
        ("tokens", _tokens),
        ("kafka", _kafka),
        ("redis", _redis),
        ("gRPC", _address),
    ]
    return [await _checked(name, check, plan) for name, check in checks]


async def _checked(name: str, check: Callable[[Plan], Awaitable[str]], plan: Plan) -> Finding:
    try:
        found = await asyncio.wait_for(check(plan), _PATIENCE_S)
    except TimeoutError:
        return Finding(False, f"{name}: no reply within {_PATIENCE_S:g} s")
    except Exception as e:  # a driver may raise anything, and the other checks should still run
        return Finding(False, f"{name}: {safe_message(e) or type(e).__name__}")
    return Finding(True, f"{name}: {found}")


async def _store(plan: Plan) -> str:
    async with open_store(plan.store_url) as store:
        await accepts_writes(store)
        queues = await store.queues()
    return f"responds and accepts writes; {len(queues)} queues"


async def _certificate(plan: Plan) -> str:
    if plan.tls is None:
        return "none: plaintext"
    found = describe(plan.tls)
    if plan.tls.client_ca is not None:
        found += f"; clients need a certificate of {plan.tls.client_ca}"
        if plan.clients is not None:
            found += f", and grpc.tls.clients lists {len(plan.clients)}"
    return found


async def _tokens(plan: Plan) -> str:
    auth = plan.auth
    if auth is None:
        return "not checked"
    if auth.source is not None:
        await auth.source.load()
    algorithms = sorted(frozenset().union(*(key.algorithms for key in auth.keys.keys)))
    return f"{len(auth.keys.keys)} keys, {', '.join(algorithms)}"


async def _kafka(plan: Plan) -> str:
    if plan.kafka_url is None:
        return "not configured"
    from jobq.relay.kafka import KafkaTarget  # needs a driver that is not always installed

    target = KafkaTarget(plan.kafka_url)
    try:
        return await target.check()
    finally:
        await target.aclose()


async def _redis(plan: Plan) -> str:
    if plan.hints is None:
        return "not configured"
    from jobq.server.hints import Hints  # needs a driver that is not always installed

    return await Hints(plan.hints.url, plan.hints.channel).check()


async def _address(plan: Plan) -> str:
    return f"would listen on {plan.host}:{plan.port}"
