"""Starts and stops a server: ports, services, upkeep, and the order in which they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from jobq.access.schedules import TenantSchedules
from jobq.engine.identity import WorkerSettings
from jobq.engine.scheduler import Scheduler
from jobq.engine.service import Service as Loop
from jobq.engine.upkeep import UPKEEP, Leader, Ticker
from jobq.errors import ConfigError
from jobq.relay.relay import Relay
from jobq.server.admin import AdminService
from jobq.server.checkup import Readiness
from jobq.server.context import ServerContext
from jobq.server.exchange import ExchangeService
from jobq.server.jobs import JobService
from jobq.server.workers import WorkerService

log = logging.getLogger("jobq.server")

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Service(Protocol):
    """A gRPC service of the server."""

    name: str
    """The full name, e.g. `jobq.v1.JobService`."""

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to the server."""
        ...

    def drain(self) -> None:
        """The server stops: give out no more jobs, and end streams that would stay open."""
        ...


MakeService = Callable[[ServerContext], Service]


class _Health(HealthServicer):  # type: ignore[misc] # it has no annotations
    """The standard health service, whose watches end when the server stops.

    A watch never ends by itself, so it would delay every stop by the whole grace time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stopping = asyncio.Event()

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Send the state of a service whenever it changes, until the server stops."""
        watch = asyncio.ensure_future(super().Watch(request, context))
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({watch, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            stop.cancel()


class Host:
    """A running server. Use it as an async context manager, on an open store.

    It listens when the context is entered, and `port` then says where. On exit it stops in this
    order: no new calls, running calls end (up to the grace time), upkeep ends, the relay ends. The
    caller closes the store.
    """

    def __init__(
        self,
        context: ServerContext,
        services: Sequence[MakeService],
        *,
        relay: Relay | None = None,
    ) -> None:
        self.context = context
        self.relay = relay
        self.services = [make(context) for make in services]
        self.port = 0
        self._health = _Health()
        self._server = self._built()
        self._loops: list[Loop] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._relaying: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.readiness = Readiness(context.store, self._say_ready)
        self.on_stop: list[Callable[[], None]] = []
        """Called when the server begins to stop."""
        self._stopped = False

    def _built(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=_options(self.context))
        for service in self.services:
            service.register(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = sorted({service.name for service in self.services})  # two serve WorkerService
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        return server

    async def start(self) -> None:
        """Listen, and begin the upkeep."""
        settings = self.context.settings
        address = f"{_bracketed(settings.grpc_host)}:{settings.grpc_port}"
        tls = settings.certificates
        try:
            self.port = (
                self._server.add_insecure_port(address)
                if tls is None
                else self._server.add_secure_port(address, tls.credentials())
            )
        except RuntimeError as e:
            raise ConfigError(f"cannot listen on {address}: is the port in use?") from e
        await self._server.start()
        await self._say_ready(True)
        self._looking = asyncio.create_task(self.readiness.run(), name="jobq server, readiness")
        if settings.upkeep:
            self._begin_upkeep()
        if self.relay is not None:
            self._relaying = asyncio.create_task(self._relay(self.relay))
        log.info("listening on %s:%d", _bracketed(settings.grpc_host), self.port)

    async def _say_ready(self, ready: bool) -> None:
        """Tell the clients of the health service."""
        for name in ("", *(service.name for service in self.services)):
            await self._health.set(name, _SERVING if ready else _NOT_SERVING)

    def _begin_upkeep(self) -> None:
        who = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        worker = WorkerSettings()
        store = self.context.store
        schedules = TenantSchedules(store, self.context.settings.tenants, self.context.clock)
        leader = Leader(store, UPKEEP, who=who, ttl_ms=worker.leadership_ms)
        self._leader = leader
        self._loops = [
            Ticker(store, leader, worker),
            Scheduler(schedules, leader, worker, clock=self.context.clock, planner=schedules.plan),
        ]
        self._tasks = [asyncio.create_task(loop.run()) for loop in self._loops]

    async def stop(self, grace_s: float | None = None) -> None:
        """Stop in order. Calls that are running get `grace_s` to end."""
        if self._stopped:
            return
        self._stopped = True
        grace = self.context.settings.shutdown_grace_s if grace_s is None else grace_s
        self.readiness.stop()
        if self._looking is not None:
            self._looking.cancel()
        for notify in self.on_stop:
            notify()
        await self._health.enter_graceful_shutdown()
        self._health.stopping.set()
        for service in self.services:
            service.drain()
        await self._server.stop(grace)
        log.debug("no more calls run")
        for loop in self._loops:
            loop.stop()
        await asyncio.gather(*self._tasks)
        if self._loops:
            with contextlib.suppress(Exception):  # another server leads after the ttl
                await self._leader.resign()
        log.debug("the upkeep has ended")
        if self.relay is not None and self._relaying is not None:
            self.relay.stop()
            await self._relaying
            log.debug("the relay has ended")

    async def _relay(self, relay: Relay) -> None:
        """Ship events. A failure of the relay does not stop the server."""
        try:
            await relay.run()
        except Exception:
            log.exception("the relay has failed: events stay in the store until a restart")

    async def stop_now(self) -> None:
        """End all calls at once, while `stop` still waits for them."""
        await self._server.stop(0)

    async def __aenter__(self) -> Host:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _options(context: ServerContext) -> list[tuple[str, int]]:
    settings = context.settings
    return [
        # Handlers refuse what is above max_message with a message that helps (INVALID_ARGUMENT).
        # Above twice the size gRPC refuses it unread, with RESOURCE_EXHAUSTED.
        ("grpc.max_receive_message_length", 2 * settings.max_message),
        ("grpc.max_send_message_length", -1),  # a reply is never larger than what was stored
        ("grpc.max_concurrent_streams", settings.max_streams),
        ("grpc.so_reuseport", 0),  # a second server on this port is a mistake, not a replica
        # Clients behind proxies ping to keep idle streams open. gRPC's defaults would cut them off.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# The gRPC services of a server, in the order in which they are registered.

# ExchangeService serves one call of WorkerService's interface, so it comes before WorkerService.
SERVICES: list[MakeService] = [JobService, AdminService, ExchangeService, WorkerService]
