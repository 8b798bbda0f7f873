"""What `jq-server --dry-run` checks: everything that a server needs, without serving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from jobq.console.discreet import safe_message
from jobq.core.redact import redacted_url
from jobq.server.plan import Plan
from jobq.server.readiness import accepts_writes
from jobq.server.tls import describe
from jobq.stores import open_store

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
