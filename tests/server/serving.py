"""Servers for tests: in a thread of the test process, or as a process of their own.

Tests talk to them with gRPC's blocking stubs. (Two event loops with gRPC's asyncio client in one
process are known to disturb each other.)
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar
from uuid import uuid4

import grpc
import pytest

from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Complete,
    Fail,
    Failure,
    QueueName,
    Settled,
)
from jobq.rpc.status import ERROR
from jobq.rpc.v1.admin_pb2_grpc import AdminServiceStub
from jobq.rpc.v1.jobs_pb2_grpc import JobServiceStub
from jobq.rpc.v1.workers_pb2_grpc import WorkerServiceStub
from jobq.server.config import ServerSettings
from jobq.server.context import Authenticator, ServerContext
from jobq.server.host import SERVICES, Host, MakeService
from jobq.server.tls import Clients
from jobq.stores import open_store

T = TypeVar("T")

PATIENCE_S = 30.0
"""Seconds that a call of a test may take on a loaded machine."""


class Client:
    """The services of a server, as a client of any language sees them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address)

    @cached_property
    def jobs(self) -> JobServiceStub:
        """JobService."""
        return JobServiceStub(self.channel)

    @cached_property
    def admin(self) -> AdminServiceStub:
        """AdminService."""
        return AdminServiceStub(self.channel)

    @cached_property
    def workers(self) -> WorkerServiceStub:
        """WorkerService."""
        return WorkerServiceStub(self.channel)

    def close(self) -> None:
        """Close the connection."""
        self.channel.close()


class RunningServer(Client):
    """A server in a thread with an event loop of its own."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: ServerSettings | None = None,
        authenticator: Authenticator | None = None,
        clients: Clients | None = None,
        services: Sequence[MakeService] = SERVICES,
    ) -> None:
        self.url = url or f"memory://server-{uuid4().hex}"
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.do(self._start(settings, authenticator, clients, services))
        except BaseException:
            self._end()
            raise
        super().__init__(f"127.0.0.1:{self.host.port}")

    async def _start(
        self,
        settings: ServerSettings | None,
        authenticator: Authenticator | None,
        clients: Clients | None,
        services: Sequence[MakeService],
    ) -> None:
        store = open_store(self.url)
        await store.migrate()
        self.context = ServerContext(
            store,
            settings or ServerSettings(grpc_port=0),
            authenticator=authenticator,
            clients=clients,
        )
        self.host = Host(self.context, services)
        await self.host.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the server's event loop."""

        async def called() -> T:
            return function()

        return self.do(called())

    def stop(self) -> None:
        """Stop the server, and close its store."""
        self.close()
        try:
            self.do(self.host.stop(0))
            self.do(self.context.store.aclose())
        finally:
            self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextmanager
def running(url: str | None = None, **options: Any) -> Iterator[RunningServer]:
    """A server in a thread, for a `with` block."""
    server = RunningServer(url, **options)
    try:
        yield server
    finally:
        server.stop()


_PROGRAM = """
import asyncio, sys
from jobq.server.context import ServerContext
from jobq.server.host import SERVICES, Host
from jobq.server.config import ServerSettings
from jobq.stores import open_store

async def main(url):
    async with open_store(url) as store:
        async with Host(ServerContext(store, ServerSettings(grpc_port=0)), SERVICES) as host:
            print(host.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(sys.argv[1]))
"""


class ServerProcess(Client):
    """A server in a process of its own. It ends when its standard input is closed."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        assert port, "the server did not start"
        super().__init__(f"127.0.0.1:{port}")

    def stop(self) -> int:
        """End the server and return its exit code."""
        self.close()
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextmanager
def process(url: str) -> Iterator[ServerProcess]:
    """A server in a process, for a `with` block."""
    server = ServerProcess(url)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def claim(server: RunningServer, queue: str, *, tenant: str = "default", limit: int = 1) -> Settled:
    """Claim jobs, as a worker does."""
    wanted = Claim(queues=(QueueName(tenant, queue),), limit=limit, lease_ms=60_000)
    return server.do(
        server.context.store.settle((), worker="tester", call=uuid4().hex, then=wanted)
    )


def settle(server: RunningServer, outcome: AnyOutcome) -> None:
    """End a run, as a worker does."""
    settled = server.do(server.context.store.settle((outcome,), worker="tester", call=uuid4().hex))
    assert not settled.stale


def complete(server: RunningServer, queue: str, result: bytes = b"null") -> str:
    """Run the next job of a queue successfully, and return its id."""
    (lease,) = claim(server, queue).leases
    settle(server, Complete(queue=lease.queue, id=lease.id, token=lease.token, result=result))
    return lease.id


def fail(server: RunningServer, queue: str, message: str = "no such invoice") -> str:
    """Run the next job of a queue, which fails for good, and return its id."""
    (lease,) = claim(server, queue).leases
    failure = Failure(reason="error", type="ValueError", message=message, attempt=lease.attempt)
    settle(server, Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure))
    return lease.id


@contextmanager
def refused(code: grpc.StatusCode, words: str = "", error: str | None = None) -> Iterator[None]:
    """The block is refused with this status, and its message contains the words."""
    with pytest.raises(grpc.RpcError) as raised:
        yield
    refusal = raised.value
    assert isinstance(refusal, grpc.Call)
    assert refusal.code() is code, f"{refusal.code()}: {refusal.details()}"
    details = refusal.details() or ""
    assert words in details, details
    assert "Traceback" not in details
    assert 'File "' not in details
    named = dict(refusal.trailing_metadata() or ()).get(ERROR)
    assert error is None or named == error, named
