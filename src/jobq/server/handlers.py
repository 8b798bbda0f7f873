"""The one wrapper around every call of a service, and the RPCs that only pass on a call of the
store.

It decodes requests, finds out who calls, bounds sizes and times, and turns errors into statuses. A
caller never sees a stack trace, nor where the store is: such an error is logged under a number, and
the caller gets that number (access/caller_errors.py).

A service is a class with one method per RPC, except for those that only pass on (`passing`). A
method gets the request (an async iterator of requests, if the client streams) and the `Caller`. It
returns the reply, or is an async generator of replies if the server streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from jobq.access.guarded.store import GuardedStore
from jobq.access.table import RPCS
from jobq.client.connection import Session
from jobq.client.tenants import DEFAULT_TENANT
from jobq.core.records.jobs import QueueName
from jobq.core.rules.new_jobs import check_schedule_id
from jobq.core.values import checks
from jobq.core.values.checks import check_queue_name, check_tenant, shown
from jobq.errors import InvalidJob, JobNotFound, JobqError, PayloadTooLarge
from jobq.operations import schedules
from jobq.operations.listing import MAX_PAGE, page_size
from jobq.rpc import convert_queues, status
from jobq.server.context import Proof, ServerContext

# RPCs that only pass on: their row of the table of access names one call of the Store contract,
# and the fields of their request are its arguments. The other methods are written in their
# services.

_ABOUT = ("queue", "tenant")
_NAMES = {"hold_ms": "ms"}
"""Fields that have another name in the contract."""

_CHECKS: dict[str, Callable[[Any], Any]] = {
    "delayed": bool,
    "force": bool,
    "hold_ms": lambda ms: checks.check_int(ms, "hold_ms", low=1, high=checks.MAX_MS),
    "id": check_schedule_id,
    "job": lambda job: checks.check_id(job, "job") if job else None,
    "key": lambda key: checks.check_key(key) if key else None,
    "limit": lambda limit: page_size(limit, MAX_PAGE),
    "limits": convert_queues.limits,
    "lock": lambda lock: checks.check_id(lock, "lock"),
    "position": lambda position: position or None,
    "reader": lambda reader: checks.check_id(reader, "reader"),
}
"""Makes a field an argument. A field without a row passes nothing on: its RPC is written."""


def _free(request: Any) -> str:
    return f"no job of queue {request.queue!r} holds the lock {request.lock!r}"


_MISSING: dict[str, Callable[[Any], str]] = {
    "GetLock": _free,
    "ReleaseHold": lambda request: (
        f"{f'key {request.key!r} of ' if request.key else ''}queue {request.queue!r} is not held"
    ),
    "ReleaseLock": _free,
    "RemoveReader": lambda request: f"queue {request.queue!r} has no reader {request.reader!r}",
    "RemoveSchedule": lambda request: schedules.missing(request.queue, request.id),
}
"""What a caller is told if the call found nothing."""


def passing(method: MethodDescriptor) -> Callable[[Any, Caller], Awaitable[Message]]:
    """What a method does that its service leaves to the table."""
    (call,) = RPCS[method.name].calls
    given = [
        (_NAMES.get(field.name, field.name), field, _CHECKS[field.name])
        for field in method.input_type.fields
        if field.name not in _ABOUT
    ]
    reply, shown = GetMessageClass(method.output_type), tuple(method.output_type.fields_by_name)
    missing = _MISSING.get(method.name)

    async def pass_on(request: Any, caller: Caller) -> Message:
        queue = caller.queue(request.queue, request.tenant)
        arguments = {name: _argument(request, field, check) for name, field, check in given}
        found = await getattr(caller.store, call)(queue, **arguments)
        if (found is None or found is False) and missing is not None:
            raise JobNotFound(missing(request))
        if len(shown) == 1:
            return reply(**{shown[0]: found})
        return reply(**{name: getattr(found, name) for name in shown})

    return pass_on


def _argument(request: Message, field: FieldDescriptor, check: Callable[[Any], Any]) -> Any:
    if field.has_presence and not request.HasField(field.name):
        return None
    return check(getattr(request, field.name))


MAX_CALL_S = 60.0
"""Seconds that a call without a stream may take, unless it waits on purpose. Far more than a store
needs; a caller without a deadline must not hold a place forever."""

_Context = grpc.aio.ServicerContext[Any, Any]


class Refused(Exception):
    """A refusal that is not an error of the library, e.g. that a job has ended already."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Caller:
    """Who makes a call, and the store as the caller may use it."""

    __slots__ = ("_rpc", "proof", "session", "store")

    def __init__(self, session: Session, store: GuardedStore, rpc: _Context, proof: Proof) -> None:
        self.session = session
        """The sender and the reader of the caller's store: its calls share batches."""
        self.store = store
        self.proof = proof
        self._rpc = rpc

    def tenant(self, named: str) -> str:
        """The tenant that a request is about. `named` is the field of the request."""
        own = self.store.principal.tenant
        if own is None:
            return check_tenant(named) if named else DEFAULT_TENANT
        if named and named != own:
            raise JobNotFound(f"there is no tenant {shown(named)}")
        return own

    def queue(self, name: str, tenant: str) -> QueueName:
        """The queue that a request names."""
        return QueueName(self.tenant(tenant), check_queue_name(name))

    def metadata(self, name: str) -> str | None:
        """A value of the call's metadata."""
        for key, value in self._rpc.invocation_metadata() or ():
            if key == name:
                return value if isinstance(value, str) else value.decode("utf-8", "replace")
        return None

    def time_left(self) -> float | None:
        """Seconds until the caller's deadline. None: it has none."""
        return self._rpc.time_remaining()


class Handlers:
    """The handlers of one service."""

    def __init__(
        self,
        context: ServerContext,
        service: object,
        descriptor: ServiceDescriptor,
        *,
        methods: Collection[str] | None = None,
        unbounded: Collection[str] = (),
    ) -> None:
        """`methods`: those that `service` has; None: all. `unbounded`: calls that wait on purpose,
        so MAX_CALL_S does not apply to them."""
        self._methods = [
            method for method in descriptor.methods if methods is None or method.name in methods
        ]
        self._context = context
        self._service = service
        self._descriptor = descriptor
        self._unbounded = unbounded
        self._sessions: dict[GuardedStore, Session] = {}

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to a server. A method that the service does not have passes on."""
        handlers = {method.name: self._handler(method) for method in self._methods}
        generic = grpc.method_handlers_generic_handler(self._descriptor.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        behaviour = getattr(self._service, method.name, None)
        call = _Call(self, method, behaviour or passing(method))
        # Requests are decoded by the wrapper: gRPC would answer INTERNAL to a malformed one.
        if method.client_streaming:
            if method.server_streaming:
                return grpc.stream_stream_rpc_method_handler(call.streamed)
            return grpc.stream_unary_rpc_method_handler(call.gathered)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(call.streamed)
        return grpc.unary_unary_rpc_method_handler(call.single)

    async def caller(self, rpc: _Context, method: str) -> Caller:
        """Who calls. Unauthenticated or AccessDenied if the caller may not make the call."""
        proof = self._context.proof(rpc)
        store = await self._context.guarded(proof)
        store.check(method)
        session = self._sessions.get(store)
        if session is None:
            if len(self._sessions) >= _MAX_SESSIONS:
                self._sessions.clear()  # calls that are running keep theirs
            session = self._sessions[store] = Session(store)
        return Caller(session, store, rpc, proof)

    def patience(self, method: str) -> float | None:
        """Seconds that a call may take."""
        return None if method in self._unbounded else MAX_CALL_S

    @property
    def max_message(self) -> int:
        """Bytes of one request."""
        return self._context.settings.max_message

    def error_for_caller(self, error: Exception, method: str) -> JobqError:
        """The error as the caller is told of it."""
        return self._context.error_for_caller(error, method)

    def observe(self, method: str, code: StatusCode, seconds: float) -> None:
        """A call has ended."""
        if self._context.on_call is not None:
            self._context.on_call(method, code, seconds)


_MAX_SESSIONS = 10_000
"""Sessions that are remembered, one per principal."""


class _Call:
    """One method of a service, as gRPC calls it."""

    def __init__(
        self, handlers: Handlers, method: MethodDescriptor, behaviour: Callable[..., Any]
    ) -> None:
        self._handlers = handlers
        self._name = f"/{method.containing_service.full_name}/{method.name}"
        self._method = method.name
        self._decode = GetMessageClass(method.input_type).FromString
        self._behaviour = behaviour
        self._streams = method.client_streaming
        self._patience = handlers.patience(method.name)
        self._max_message = handlers.max_message

    async def single(self, raw: bytes, rpc: _Context) -> bytes:
        """A request and a reply."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._patience):
                caller = await self._handlers.caller(rpc, self._method)
                reply = await self._behaviour(self._request(raw), caller)
            encoded: bytes = reply.SerializeToString()
        except Exception as error:
            await self._refuse(error, rpc, started)
            raise  # not reached: a refusal ends the call
        self._ended(StatusCode.OK, started)
        return encoded

    async def gathered(self, requests: AsyncIterator[bytes], rpc: _Context) -> bytes:
        """A stream of requests and one reply. The client's deadline bounds it, if it has one."""
        started = time.perf_counter()
        try:
            caller = await self._handlers.caller(rpc, self._method)
            reply = await self._behaviour(self._requests(requests), caller)
            encoded: bytes = reply.SerializeToString()
        except Exception as error:
            await self._refuse(error, rpc, started)
            raise
        self._ended(StatusCode.OK, started)
        return encoded

    async def streamed(self, given: Any, rpc: _Context) -> AsyncIterator[bytes]:
        """One request, or a stream of them, and a stream of replies."""
        started = time.perf_counter()
        try:
            caller = await self._handlers.caller(rpc, self._method)
            request = self._requests(given) if self._streams else self._request(given)
            async with aclosing(self._behaviour(request, caller)) as replies:
                async for reply in replies:
                    yield reply.SerializeToString()
        except Exception as error:
            await self._refuse(error, rpc, started)
            raise
        self._ended(StatusCode.OK, started)

    def _request(self, raw: bytes) -> Message:
        if len(raw) > self._max_message:
            raise PayloadTooLarge(
                f"the request has {len(raw):,} bytes, more than the {self._max_message:,} allowed: "
                "send fewer jobs at once, or references to what is stored elsewhere"
            )
        try:
            return self._decode(raw)
        except (DecodeError, ValueError, RecursionError):
            raise InvalidJob(
                f"the request of {self._name} cannot be decoded: is the client built with "
                "proto/jobq/v1?"
            ) from None

    async def _requests(self, raw: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        async for each in raw:
            yield self._request(each)

    async def _refuse(self, error: Exception, rpc: _Context, started: float) -> None:
        if isinstance(error, grpc.aio.AbortError):
            return  # the method has refused the call itself
        code, message, name = self._refusal(error)
        self._ended(code, started)
        trailing = () if name is None else ((status.ERROR, name),)
        await rpc.abort(code, status.shortened(message), trailing)

    def _refusal(self, error: Exception) -> tuple[StatusCode, str, str | None]:
        """The status, the message and the name of an error."""
        if isinstance(error, Refused):
            return error.code, str(error), None
        if isinstance(error, TimeoutError) and not isinstance(error, JobqError):
            text = f"{self._name} took more than {MAX_CALL_S:g} s"
            return StatusCode.DEADLINE_EXCEEDED, text, None
        shown = self._handlers.error_for_caller(error, self._name)
        if not isinstance(error, JobqError):
            return StatusCode.INTERNAL, str(shown), None
        return status.code_of(shown), str(shown), status.name_of(shown)

    def _ended(self, code: StatusCode, started: float) -> None:
        self._handlers.observe(self._name, code, time.perf_counter() - started)
