"""A call that somebody adds without a row in the table of access is refused at every door, also to
callers that may do everything. The routes of the dashboard are in tests/web/test_roles.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc import StatusCode

from jobq.access.guarded.rules import passed
from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import ANYONE
from jobq.access.quotas import TenantRules
from jobq.access.table import CALLS
from jobq.core.records.jobs import JobKey, QueueName
from jobq.errors import AccessDenied
from jobq.rpc import contract, frames
from jobq.rpc.v1 import admin_pb2 as pb
from jobq.server.context import ServerContext
from jobq.server.handlers import Caller, Handlers
from jobq.server.host import SERVICES
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.server.matrix import exchange
from tests.server.serving import RunningServer

QUEUE = QueueName("acme", "mail")
made: list[str] = []
"""The doors that let an invented call in."""


class Role:
    """A role of the contract with a new call."""

    async def invented(self, queue: QueueName) -> bool:
        """Do what no call does yet."""
        made.append("store")
        return True

    async def move(self, queue: QueueName, to: QueueName) -> None:
        """Name a second queue, which may belong to somebody else."""

    async def shorten(self, queue: QueueName, limit: int) -> None:
        """Take a number by its place, where `passed` does not look."""

    async def cancel(self, job: JobKey) -> None:
        """Name no queue."""


class Passed(GuardedStore):
    """The guarded store, which passes the new call on."""

    invented = passed(Role.invented)


class Written(GuardedStore):
    """The guarded store, with a method that checks nothing."""

    async def invented(self, queue: QueueName) -> bool:
        """Do what no call does yet."""
        made.append("guarded store")
        return True


def _service() -> Any:
    """The descriptor of a service with a new RPC."""
    file = descriptor_pb2.FileDescriptorProto(
        name="invented.proto", package="invented", dependency=["jobq/v1/admin.proto"]
    )
    method = file.service.add(name="InventedService").method.add(name="Invented")
    method.input_type, method.output_type = (
        ".jobq.v1.GetVersionRequest",
        ".jobq.v1.PauseQueueResponse",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindServiceByName("invented.InventedService")


class InventedService:
    """A service with a new RPC."""

    name = "invented.InventedService"

    def __init__(self, context: ServerContext) -> None:
        self._handlers = Handlers(context, self, _service())

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to the server."""
        self._handlers.register(server)

    def drain(self) -> None:
        """Nothing stays open."""

    async def Invented(self, request: object, caller: Caller) -> pb.PauseQueueResponse:
        """Do what no RPC does yet."""
        made.append("rpc")
        return pb.PauseQueueResponse()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server that checks no tokens: every caller may do everything that has a row."""
    running = RunningServer(services=[*SERVICES, InventedService])
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def nothing_is_made() -> Iterator[None]:
    made.clear()
    yield
    assert made == []


async def test_the_guarded_store_passes_no_call_on_that_has_no_row() -> None:
    async with open_store("memory://forgotten") as store:
        cast(Any, store).invented = Role().invented
        guarded = Passed(store, ANYONE, TenantRules())
        with pytest.raises(AccessDenied, match="invented is in no table of access"):
            await guarded.invented(QUEUE)


@pytest.mark.parametrize("call", [Role.move, Role.shorten, Role.cancel])
def test_a_call_that_needs_a_rule_of_its_own_is_not_passed_on(call: Any) -> None:
    with pytest.raises(TypeError, match="write a method that guards it"):
        passed(call)


async def test_a_call_of_the_contract_that_nobody_guards_is_not_there() -> None:
    async with open_store("memory://forgotten") as store:
        cast(Any, store).invented = Role().invented
        guarded = cast(Any, GuardedStore(store, ANYONE, TenantRules()))
        with pytest.raises(AttributeError):
            await guarded.invented(QUEUE)


@pytest.mark.parametrize("guard", [GuardedStore, Passed, Written])
def test_the_stream_refuses_a_call_of_the_contract_that_has_no_row(
    server: RunningServer, guard: type[GuardedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = contract.Method("invented", Role.invented)
    monkeypatch.setitem(cast(dict[str, Any], contract.METHODS), "invented", method)
    monkeypatch.setattr(server.context.store, "invented", Role().invented, raising=False)
    monkeypatch.setattr(server.context, "guard", guard)
    server.call(server.context._guarded.clear)
    call = frames.Call(1, "invented", contract.raw(method.arguments(QUEUE)))
    refusal = exchange(server.channel, None, [call])[1]
    assert isinstance(refusal, frames.Refusal), refusal
    assert refusal.error == "AccessDenied"


def test_an_rpc_without_a_row_is_refused(server: RunningServer) -> None:
    call = cast(Any, server.channel).unary_unary("/invented.InventedService/Invented")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"", timeout=30)
    assert cast(Any, refused.value).code() is StatusCode.PERMISSION_DENIED


def test_the_guarded_store_has_no_calls_but_those_of_the_table() -> None:
    """`expect` listens and `put_all` puts, so they need what these calls need."""
    own = {name for name in dir(GuardedStore) if not name.startswith("_")}
    assert own - set(CALLS) == {"check", "expect", "put_all"}
    assert set(CALLS) <= own


def _is_a_store(guarded: GuardedStore) -> Store:
    """mypy knows the methods that are made from the contract, with their types."""
    return guarded
