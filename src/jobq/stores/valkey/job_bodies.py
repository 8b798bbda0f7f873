"""The producer's part of a job's record: its body. RECORD in lua/fields.lua has the layout."""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any

from msgspec.structs import astuple

from jobq.core.new_jobs import Checked
from jobq.core.options import FIELDS
from jobq.core.records import JobSpec, PutResult, QueueName
from jobq.core.states import State
from jobq.stores.valkey.lua_names import numbers
from jobq.stores.valkey.packing import encode

_FLAGS = numbers("FLAG")
_GIVEN_ID, _MORE = _FLAGS["given_id"], _FLAGS["more"]
_AT_PUT, _AT_END = _FLAGS["at_put"], _FLAGS["at_end"]
_NONE = numbers("PACK")["none_byte"].to_bytes()
_short = Struct(">BB").pack  # flags, length of name and key
_long = Struct(">BxHH").pack  # flags, and both lengths
_length = Struct(">xI").pack  # a filler that lua/uniform.lua replaces, and the payload's length
_PLAIN = JobSpec(queue=QueueName("", ""), id="", name="", payload=b"")
_DEFAULTS = astuple(_PLAIN)[4:]
"""The values behind queue, id, name and payload of a spec that sets none of them."""
_option_values = attrgetter(
    *(f for f in _PLAIN.__struct_fields__[4:] if f not in ("key", "given_id"))
)
_NO_OPTIONS = _option_values(_PLAIN)

_MAX_BYTES = 16_000_000
"""Payload bytes per call. The server does nothing else meanwhile, and refuses far larger calls."""
_heads: dict[str, bytes | None] = {}
"""Task name → head (see `_head`)."""
_MAX_HEADS = 10_000


def name_and_key(name: str, key: str | None) -> bytes:
    """Name and key as MessagePack, as records and events hold them."""
    return encode(name) + (_NONE if key is None else encode(key))


def body_of(spec: JobSpec, channel: str | None) -> tuple[bytes, bool]:
    """The body of a job, and whether the job must be put singly: it has a lock or edges.

    The end of the job is published to `channel`, unless that is None.
    """
    payload = spec.payload
    plain = channel is None and _option_values(spec) == _NO_OPTIONS
    if plain and spec.key is None and not spec.given_id and (head := _head(spec.name)) is not None:
        return head + payload, False
    flags = _GIVEN_ID if spec.given_id else 0
    nk = name_and_key(spec.name, spec.key)
    if plain and len(nk) < 256:
        return _short(flags, len(nk)) + nk + payload, False
    options, more = _options(spec, channel)
    packed = encode(options) if options else b""
    body = _long(flags | more | _MORE, len(nk), len(packed)) + nk + packed + payload
    return body, spec.unique is not None or bool(spec.after)


Uniform = tuple[int, bytes, int, bytes, bytes]
"""The arguments of `put_uniform` (lua/uniform.lua) after `now`."""


def uniform(specs: Sequence[JobSpec]) -> Uniform | None:
    """The arguments of `put_uniform`, if these jobs differ in id and payload only; else None."""
    queue, name, width = specs[0].queue, specs[0].name, len(specs[0].id)
    head = _head(name)
    if head is None:
        return None
    ids: list[str] = []
    parts: list[bytes] = []
    for row in map(astuple, specs):
        id, payload = row[1], row[3]
        if (
            row[4:] != _DEFAULTS
            or row[2] != name
            or len(id) != width
            or (row[0] is not queue and row[0] != queue)
        ):
            return None
        ids.append(id)
        parts += (_length(len(payload)), payload)
    all_ids = "".join(ids).encode()
    # The function splits ids by bytes, and puts no id twice.
    if len(all_ids) != width * len(ids) or len(set(ids)) != len(ids):
        return None
    return len(ids), head, width, all_ids, b"".join(parts)


class Prepared(Checked):
    """Specs with their arguments for `put_uniform`, and the results if all are new and waiting."""

    __slots__ = ("results", "too_large", "uniform")

    def __init__(
        self, specs: Sequence[JobSpec], expected: Container[tuple[QueueName, str]] = ()
    ) -> None:
        """`expected`: jobs whose ends are published to the handle. `put_uniform` cannot do that."""
        super().__init__(specs)
        self.uniform = (
            None
            if expected and any((spec.queue, spec.id) in expected for spec in specs)
            else uniform(specs)
        )
        self.results = [PutResult(id=spec.id, life=0, state=State.WAITING) for spec in specs]
        self.too_large = too_large(specs)


def too_large(specs: Sequence[JobSpec]) -> bool:
    """Whether these are several jobs that are too large for one call together."""
    return len(specs) > 1 and sum([len(spec.payload) for spec in specs]) > _MAX_BYTES


def _head(name: str) -> bytes | None:
    """What the bodies of a task's jobs begin with if they have no key and no options.

    None if the name is too long for the short form.
    """
    if name not in _heads:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        nk = name_and_key(name, None)
        _heads[name] = _short(0, len(nk)) + nk if len(nk) < 256 else None
    return _heads[name]


_ORDER: list[tuple[str, ...]] = [(), ("put",), ("start",), ("end",)]
"""The order of the options in a record: by the first time that the server looks at them."""
_OPTIONS = [
    (each.field, each.recorded, each.default, sum(_FLAGS[f"at_{when}"] for when in each.when))
    for each in sorted(FIELDS, key=lambda option: _ORDER.index(option.when[:1]))
    if each.recorded is not None
]
"""Field of a spec, its name in the record, its default, and when the server must look at it."""


def _options(spec: JobSpec, channel: str | None) -> tuple[dict[str, Any], int]:
    """The options that differ from their defaults, and flags: when the server must look at them.

    `StoredOptions` in stored_job.py reads what this writes.
    """
    options: dict[str, Any] = {}
    flags = _AT_PUT if spec.after else 0
    for field, name, default, when in _OPTIONS:
        value = getattr(spec, field)
        if value != default:
            options[name], flags = value, flags | when
    if spec.at_ms is not None:
        options["at"], flags = spec.at_ms, flags | _AT_PUT
    elif spec.delay_ms:
        options["delay"], flags = spec.delay_ms, flags | _AT_PUT
    if channel is not None:
        options["chan"], flags = channel, flags | _AT_END
    if spec.unique is not None:
        options["lock"], flags = spec.unique.lock, flags | _AT_PUT | _AT_END
        if spec.unique.mode != "simple":
            options["lock_mode"] = spec.unique.mode
        if spec.unique.ttl_ms is not None:
            options["lock_ttl"] = spec.unique.ttl_ms
    return options, flags
