"""Runs a planned server until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jobq.console.probes import Probes, Pulse, Route, healthz
from jobq.core.records import wire
from jobq.core.records.jobs import Failure, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.values.printable import redacted_url
from jobq.engine.interrupts import signals_caught
from jobq.relay.relay import Relay
from jobq.relay.targets import Rejected, open_target
from jobq.server.config import ServerSettings
from jobq.server.context import Authenticator, ServerContext
from jobq.server.host import SERVICES, Host
from jobq.server.metrics import ServerMetrics
from jobq.server.plan import AuthPlan, Plan, WebPlan
from jobq.server.tls import Certificates
from jobq.server.tokens import Tokens
from jobq.stores import open_store
from jobq.stores.base import Store

if TYPE_CHECKING:
    from jobq.server.hints import Hints

# Events that Kafka rejects for good are kept in the store, as failed jobs that operators see.

REJECTED_QUEUE = "jobq-relay-rejected"
"""The queue of rejected events, in the tenant of each event."""


class StoredRejects:
    """Keeps rejected events as failed jobs. The arguments of each job are the event."""

    where = f"the queue {REJECTED_QUEUE} of their tenants"

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, target: str, rejected: Sequence[Rejected]) -> None:
        """Store the events. An event that was stored before is not stored again."""
        now_ms = int(time.time() * 1000)
        await self._store.restore([_record(each, target, now_ms) for each in rejected])


def _record(rejected: Rejected, target: str, now_ms: int) -> JobRecord:
    event, why = rejected
    return JobRecord(
        queue=QueueName(event.queue.tenant, REJECTED_QUEUE),
        id=event.id,
        name="rejected",
        state=State.FAILED,
        payload=b'[[],{"event":' + wire.encode(event) + b"}]",
        created_ms=now_ms,
        finished_ms=now_ms,
        given_id=True,
        failure=Failure(
            reason="rejected", type="Rejected", message=f"{target}: {why}", at_ms=now_ms
        ),
    )


log = logging.getLogger("jobq.server")


WebPort = Callable[
    [WebPlan, Host, Mapping[str, Route], tuple[str, int]], AbstractAsyncContextManager[int]
]
"""Serves the dashboard of a host at this address, with these routes beside it. Yields the port."""


async def run(plan: Plan, *, web_port: WebPort | None = None) -> None:
    """Serve until SIGTERM or SIGINT. A second signal stops at once.

    `web_port` serves the dashboard, if the plan has one: a server imports no dashboard.
    """
    stopping, at_once = asyncio.Event(), asyncio.Event()

    def caught(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: stopping at once", number.name)
            at_once.set()
            return
        log.info(
            "%s: stopping; running calls get up to %g s; send it again to stop at once",
            number.name,
            plan.grace_s,
        )
        stopping.set()

    with signals_caught(caught, last=True):
        async with serving(plan, web_port=web_port) as host:
            await stopping.wait()
            await _stop(host, at_once)
    log.info("stopped")


async def _stop(host: Host, at_once: asyncio.Event) -> None:
    """Stop in order, or at once if a second signal comes."""
    slow = asyncio.ensure_future(host.stop())
    fast = asyncio.ensure_future(at_once.wait())
    await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    fast.cancel()
    if not slow.done():
        await host.stop_now()
    await slow


@contextlib.asynccontextmanager
async def serving(plan: Plan, *, web_port: WebPort | None = None) -> AsyncIterator[Host]:
    """A server that listens while the context is open. Its store is closed last."""
    async with (
        open_store(plan.store_url) as opened,
        _authenticator(plan.auth) as authenticator,
        _hints(plan) as hints,
    ):
        log.info("jobs are in %s (from %s)", redacted_url(opened.url), plan.store_from)
        store = _traced(opened if hints is None else hints.around(opened))
        context = ServerContext(
            store, settings_of(plan), authenticator=authenticator, clients=plan.clients
        )
        metrics = ServerMetrics(store)
        metrics.attach(context)
        metrics.hints = hints
        relay = _relay(plan, store)
        if relay is not None:
            metrics.relay = lambda: relay.status
        host = Host(context, SERVICES, relay=relay)
        async with _http(plan, metrics, host, web_port), host:
            yield host
    log.debug("the store is closed")


def settings_of(plan: Plan) -> ServerSettings:
    """The settings of a planned server. ConfigError if its certificate cannot be used."""
    return ServerSettings(
        grpc_host=plan.host,
        grpc_port=plan.port,
        max_message=plan.max_message,
        max_streams=plan.max_streams,
        lease_ms=plan.lease_ms,
        shutdown_grace_s=plan.grace_s,
        certificates=None if plan.tls is None else Certificates(plan.tls),
        tenants=plan.tenants,
    )


@contextlib.asynccontextmanager
async def _authenticator(auth: AuthPlan | None) -> AsyncIterator[Authenticator | None]:
    if auth is None:
        yield None
        return
    reading: asyncio.Task[None] | None = None
    if auth.source is not None:
        await auth.source.load()
        reading = asyncio.create_task(auth.source.run())
    try:
        yield Tokens(auth.keys, auth.rules, source=auth.source)
    finally:
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading


@contextlib.asynccontextmanager
async def _hints(plan: Plan) -> AsyncIterator[Hints | None]:
    if plan.hints is None:
        yield None
        return
    from jobq.server.hints import Hints  # needs a driver that is not always installed

    most = {} if plan.hints.alone else {"at_most": 1}
    hints = Hints(plan.hints.url, plan.hints.channel, **most)
    hints.start()
    try:
        yield hints
    finally:
        await hints.aclose()


def _traced(store: Store) -> Store:
    """The store with spans, if this process has a tracer (`opentelemetry-instrument jq-server`)."""
    if find_spec("opentelemetry") is None:
        return store
    from jobq.otel import with_server_spans  # needs packages that are not always installed

    return with_server_spans(store)


def _relay(plan: Plan, store: Store) -> Relay | None:
    if plan.kafka_url is None:
        return None
    return Relay(store, open_target(plan.kafka_url), rejected=StoredRejects(store))


@contextlib.asynccontextmanager
async def _http(
    plan: Plan, metrics: ServerMetrics, host: Host, web_port: WebPort | None
) -> AsyncIterator[None]:
    """Serve /healthz, /readyz, /metrics and the dashboard. All ports may be the same."""
    loop = asyncio.get_running_loop()
    routes: dict[tuple[str, int], dict[str, Route]] = {}
    if plan.health is not None:
        routes[plan.health] = {
            "/healthz": healthz(Pulse(loop)),
            "/readyz": host.readiness.route(loop),
        }
    if plan.metrics is not None:
        routes.setdefault(plan.metrics, {})["/metrics"] = metrics.route(loop)
    async with contextlib.AsyncExitStack() as stack:
        for (address, port), found in routes.items():
            if plan.web is not None and (address, port) == plan.health:
                assert web_port is not None  # jq-server gives one
                number = await stack.enter_async_context(
                    web_port(plan.web, host, found, (address, port))
                )
                log.info("serving /ui/, %s on %s:%d", ", ".join(found), address, number)
                continue
            probes = stack.enter_context(Probes({port: found}, host=address))
            for served, number in probes.addresses:
                log.info("serving %s on %s:%d", ", ".join(found), served, number)
        yield
