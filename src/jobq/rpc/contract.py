"""The Store contract as messages: for each call, how its arguments and its reply are encoded.

Both come from the annotations of `stores.base`, so a new call of the contract needs no code here.
Arguments are a list in the order of the parameters. A list that is too short is filled with the
defaults of the parameters, and items that are too many are ignored: so a client and a server of
neighbouring versions understand each other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from jobq.core.records.events import KIND_NAMED, EventPage, EventRecord
from jobq.core.records.jobs import JobKey, JobRecord, Signal, Topic
from jobq.core.records.workers import Beat
from jobq.rpc.frames import encode
from jobq.stores.base import (
    EventStore,
    HotStore,
    LifecycleStore,
    OperatorStore,
    PresenceStore,
    ReadStore,
    ScheduleStore,
    SignalStore,
)

_ROLES = (
    HotStore,
    SignalStore,
    OperatorStore,
    ScheduleStore,
    ReadStore,
    PresenceStore,
    EventStore,
    LifecycleStore,
)
_LOCAL = frozenset({"migrate", "aclose", "listen"})
"""Not calls that are sent: they belong to a handle, or have messages of their own (below)."""

WAITS = frozenset({"sleep", "listen", "expect"})
"""Calls that change nothing and may take long. The server ends them when the client cancels."""

READS = frozenset(
    name for role in (ReadStore, EventStore) for name in vars(role) if not name.startswith("_")
) - {"ack_events", "remove_reader"}
"""Calls that change nothing and return soon. A client repeats them on a new stream."""


# ── types that MessagePack cannot tell apart ──────────────────────────────────────────────────────


_Event: Any = msgspec.defstruct(
    "_Event",
    [
        (
            field.name,
            str if field.name == "kind" else field.type,
            *(() if field.required else (field.default,)),
        )
        for field in msgspec.structs.fields(EventRecord)
    ],
    array_like=True,
)
"""An EventRecord whose `kind` is a plain string: msgspec decodes no union of two enums."""
_EventPage = msgspec.defstruct(
    "_EventPage", [("events", list[_Event]), ("position", str)], array_like=True
)
_DECODE_PAGE: Any = msgspec.msgpack.Decoder(_EventPage).decode
_KIND = EventRecord.__struct_fields__.index("kind")


def _write_page(page: EventPage) -> bytes:
    rows = [msgspec.structs.astuple(event) for event in page.events]
    return encode((rows, page.position))


def _read_page(raw: bytes | msgspec.Raw) -> EventPage:
    page = _DECODE_PAGE(raw)
    events = []
    for event in page.events:
        fields = [*msgspec.structs.astuple(event)]
        fields[_KIND] = KIND_NAMED.get(event.kind, event.kind)
        events.append(EventRecord(*fields))
    return EventPage(events=tuple(events), position=page.position)


class _Beat(msgspec.Struct, array_like=True):
    """A Beat whose request is any string."""

    request: str | None
    workers: int
    displaced: bool = False


_DECODE_BEAT = msgspec.msgpack.Decoder(_Beat).decode


def _read_beat(raw: bytes | msgspec.Raw) -> Beat:
    found = _DECODE_BEAT(raw)
    return Beat(found.request, found.workers, found.displaced)  # type: ignore[arg-type]


_REPLIES: dict[str, tuple[Callable[[Any], bytes], Callable[[Any], Any]]] = {
    "read_events": (_write_page, _read_page),
    "beat": (encode, _read_beat),
}
_ARGUMENTS: dict[tuple[str, str], Any] = {("ask_worker", "request"): str}


# ── the calls ─────────────────────────────────────────────────────────────────────────────────────


class Method:
    """One call of the contract. `arguments` is a record with a field for each parameter."""

    __slots__ = ("_keywords", "_positional", "arguments", "name", "read_arguments", "read", "write")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.name = name
        self.arguments = msgspec.defstruct(
            f"{name}_arguments",
            [_field(name, parameter, hints[parameter.name]) for parameter in parameters],
            array_like=True,
        )
        """Called like the method itself."""
        self.read_arguments = msgspec.msgpack.Decoder(self.arguments).decode
        self.write: Callable[[Any], bytes]
        self.read: Callable[[Any], Any]
        self.write, self.read = _REPLIES.get(name) or (
            encode,
            msgspec.msgpack.Decoder(hints["return"]).decode,
        )
        """Encode and decode the reply."""
        self._positional = tuple(
            p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY
        )
        self._keywords = tuple(
            p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
        )

    def call(self, store: object, arguments: msgspec.Struct) -> Any:
        """Call the method of this store. Returns what is to be awaited."""
        return getattr(store, self.name)(
            *[getattr(arguments, name) for name in self._positional],
            **{name: getattr(arguments, name) for name in self._keywords},
        )


def _field(method: str, parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    kind = _ARGUMENTS.get((method, parameter.name), hint)
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, kind
    return parameter.name, kind, parameter.default


METHODS: Mapping[str, Method] = {
    name: Method(name, function)
    for role in _ROLES
    for name, function in vars(role).items()
    if not name.startswith("_") and name not in _LOCAL and inspect.isfunction(function)
}
"""Every call that is sent, by name."""

read_topics: Callable[[Any], list[Topic]] = msgspec.msgpack.Decoder(list[Topic]).decode
read_signal: Callable[[Any], Signal] = msgspec.msgpack.Decoder(Signal).decode
read_key: Callable[[Any], JobKey] = msgspec.msgpack.Decoder(JobKey).decode
read_end: Callable[[Any], JobRecord | None] = msgspec.msgpack.Decoder(JobRecord | None).decode
"""The arguments and items of `listen` and `expect`."""


def raw(value: object) -> msgspec.Raw:
    """The value as a part of a frame."""
    return msgspec.Raw(encode(value))
