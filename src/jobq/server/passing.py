"""RPCs that only pass on: their row of the table of access names one call of the Store contract,
and the fields of their request are its arguments. The other methods are written in their services.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from jobq.access.table import RPCS
from jobq.core import checks
from jobq.core.new_jobs import check_schedule_id
from jobq.errors import JobNotFound
from jobq.operations import schedules
from jobq.operations.listing import MAX_PAGE, page_size
from jobq.rpc import convert_queues

if TYPE_CHECKING:
    from jobq.server.handlers import Caller

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
