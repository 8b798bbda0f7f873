"""From records to what the functions take: the producer's part of a job's record, outcomes and commands as packed maps.

Maps hold text, numbers and nothing else, because the server's MessagePack knows no bytes; bytes travel as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from struct import Struct
from typing import Any

import msgspec
from msgspec.structs import astuple

from jobq.core.bounds import share
from jobq.core.commands import AnyCommand, Cancel, Reprioritise, Reschedule, SendSignal, Update
from jobq.core.defaults import LOG_LINES
from jobq.core.queues import Limits, RateData, RetentionData, Window
from jobq.core.records import (
    AnyOutcome,
    Block,
    Defer,
    Edge,
    Fail,
    Failure,
    Hold,
    JobKey,
    JobSpec,
    Note,
    PutResult,
    QueueName,
    RetryLater,
    SnoozeFor,
)
from jobq.core.states import State
from jobq.core.verdicts import error_text

encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder(order="deterministic").encode
_short = Struct(">BB").pack
_long = Struct(">BxHH").pack
_length = Struct(">xI").pack
_USUAL = astuple(JobSpec(queue=QueueName("", ""), id="", name="", payload=b""))[4:]
"""What a spec says beyond queue, id, name and payload, if it says nothing."""

GIVEN, AT_PUT, AT_START, AT_END, MORE = 1, 2, 4, 8, 16
_BYTES = 16_000_000
_HEADS: dict[str, bytes | None] = {}
"""See `_head`."""
_HEADS_MAX = 10_000


def name_and_key(name: str, key: str | None) -> bytes:
    """As events hold them."""
    return encode(name) + (b"\xc0" if key is None else encode(key))


def body_of(spec: JobSpec, channel: str | None) -> tuple[bytes, bool]:
    """The producer's part of the record, and whether it can only be put by itself (a lock, edges).

    `channel`: where the end of the job is told; None: nowhere."""
    payload = spec.payload
    plain = channel is None and _plain(spec)
    if plain and spec.key is None and not spec.given_id and (head := _head(spec.name)) is not None:
        return head + payload, False
    flags = GIVEN if spec.given_id else 0
    nk = name_and_key(spec.name, spec.key)
    if plain and len(nk) < 256:
        return _short(flags, len(nk)) + nk + payload, False
    options, more = _options(spec, channel)
    packed = encode(options) if options else b""
    return _long(
        flags | more | MORE, len(nk), len(packed)
    ) + nk + packed + payload, spec.unique is not None or bool(spec.after)


Alike = tuple[int, bytes, int, bytes, bytes]


def alike(specs: Sequence[JobSpec]) -> Alike | None:
    """What `put_alike` takes of jobs of one queue that differ in id and payload only, and simply wait; None for others."""
    queue, name, width = specs[0].queue, specs[0].name, len(specs[0].id)
    head = _head(name)
    if head is None:
        return None
    ids: list[str] = []
    parts: list[bytes] = []
    for row in map(astuple, specs):
        id, payload = row[1], row[3]
        if (
            row[4:] != _USUAL
            or row[2] != name
            or len(id) != width
            or (row[0] is not queue and row[0] != queue)
        ):
            return None
        ids.append(id)
        parts += (_length(len(payload)), payload)
    all_ids = "".join(ids).encode()
    if len(all_ids) != width * len(ids) or len(set(ids)) != len(
        ids
    ):  # not one byte per character, or one of them twice
        return None
    return len(ids), head, width, all_ids, b"".join(parts)


class Prepared(list[JobSpec]):
    """Specs, what `put_alike` takes of them, and the answers if all of them are new and wait."""

    __slots__ = ("alike", "results", "too_large")

    def __init__(
        self, specs: Sequence[JobSpec], expected: Container[tuple[QueueName, str]] = ()
    ) -> None:
        """`expected`: jobs whose ends the handle wants to hear of, which `put_alike` cannot say."""
        super().__init__(specs)
        self.alike = (
            None
            if expected and any((spec.queue, spec.id) in expected for spec in specs)
            else alike(specs)
        )
        self.results = [PutResult(id=spec.id, life=0, state=State.WAITING) for spec in specs]
        self.too_large = too_large(specs)


def too_large(specs: Sequence[JobSpec]) -> bool:
    """Whether they are more than one call should hold the server up with; far larger ones it refuses."""
    return len(specs) > 1 and sum([len(spec.payload) for spec in specs]) > _BYTES


def _head(name: str) -> bytes | None:
    """What the bodies of a task's jobs begin with, if nothing but their payload differs; None if the name is too long for it."""
    if name not in _HEADS:
        if len(_HEADS) >= _HEADS_MAX:
            _HEADS.clear()
        nk = name_and_key(name, None)
        _HEADS[name] = _short(0, len(nk)) + nk if len(nk) < 256 else None
    return _HEADS[name]


def _plain(spec: JobSpec) -> bool:
    return (
        spec.priority == 0
        and spec.delay_ms == 0
        and spec.codec == "json"
        and spec.retry is None
        and spec.timeout_ms is None
        and spec.max_stalls is None
        and spec.cost == 1
        and not spec.lifo
        and spec.at_ms is None
        and spec.ttl_ms is None
        and spec.result_ttl_ms is None
        and spec.unique is None
        and not spec.after
        and spec.schedule is None
        and spec.origin is None
        and spec.on_child_failure == "fail"
        and spec.meta is None
    )


def _options(spec: JobSpec, channel: str | None) -> tuple[dict[str, Any], int]:
    """What is not at its default, and when the server has to look at it."""
    options: dict[str, Any] = {}
    flags = AT_PUT if spec.after else 0
    if spec.codec != "json":
        options["codec"] = spec.codec
    if spec.retry is not None:
        options["retry"] = spec.retry
    if spec.timeout_ms is not None:
        options["timeout"] = spec.timeout_ms
    if spec.max_stalls is not None:
        options["max_stalls"] = spec.max_stalls
    if spec.on_child_failure != "fail":
        options["policy"] = spec.on_child_failure
    if spec.origin is not None:
        options["origin"] = spec.origin
    if spec.meta is not None:
        options["meta"] = spec.meta
    if spec.priority:
        options["priority"], flags = spec.priority, flags | AT_PUT
    if spec.lifo:
        options["lifo"], flags = True, flags | AT_PUT
    if spec.at_ms is not None:
        options["at"], flags = spec.at_ms, flags | AT_PUT
    elif spec.delay_ms:
        options["delay"], flags = spec.delay_ms, flags | AT_PUT
    if spec.ttl_ms is not None:
        options["ttl"], flags = spec.ttl_ms, flags | AT_PUT | AT_START
    if spec.cost != 1:
        options["cost"], flags = spec.cost, flags | AT_START
    if spec.result_ttl_ms is not None:
        options["result_ttl"], flags = spec.result_ttl_ms, flags | AT_END
    if spec.schedule is not None:
        options["schedule"], flags = spec.schedule, flags | AT_END
    if channel is not None:
        options["chan"], flags = channel, flags | AT_END
    if spec.unique is not None:
        options["lock"], flags = spec.unique.lock, flags | AT_PUT | AT_END
        if spec.unique.mode != "simple":
            options["lock_mode"] = spec.unique.mode
        if spec.unique.ttl_ms is not None:
            options["lock_ttl"] = spec.unique.ttl_ms
    return options, flags


def edges(after: Sequence[Edge], where: Callable[[JobKey], str]) -> bytes:
    """Edges as the functions take them; `where` finds the prefix of a job's (partition of a) queue."""
    return encode([[where(e.job), e.job.id, int(e.data)] for e in after])


def some(data: bytes | None) -> bytes:
    """Bytes or nothing, told apart."""
    return b"" if data is None else b"\x01" + data


def outcome(
    o: AnyOutcome, where: Callable[[JobKey], str], token: str
) -> tuple[bytes, bytes, bytes]:
    """An outcome other than completion: itself, its bytes, its edges."""
    kind: str = type(o).__struct_config__.tag  # type: ignore[assignment]
    fields: dict[str, Any] = {"kind": kind, "id": o.id, "token": token}
    data = tied = b""
    if isinstance(o, RetryLater | Fail):
        fields |= _told(o.failure)
        data = encode(o.failure)
    if isinstance(o, RetryLater | SnoozeFor | Hold | Defer):
        fields["delay"] = o.delay_ms
    if isinstance(o, SnoozeFor | Block) and o.saved is not None:
        fields["saved"], data = True, o.saved
    if isinstance(o, Block):
        if o.signal is not None:
            fields |= {"signal": o.signal, "seen": o.seen}
        if o.timeout_ms is not None:
            fields["timeout"] = o.timeout_ms
        tied = edges(o.after, where) if o.after else b""
    return encode(fields), data, tied


def note(n: Note, mark: str) -> list[Any]:
    """A note as the function takes it. `mark`: what its token ends with in a partition (see hot.Place)."""
    lines = n.lines[-LOG_LINES:]
    token = n.lease.token.removesuffix(mark)
    return [n.lease.id, token, some(n.progress), some(n.saved), len(lines), *lines]


def _told(failure: Failure) -> dict[str, str]:
    """What events tell of a failure."""
    told = {"reason": failure.reason, "error": error_text(failure)}
    if failure.fingerprint is not None:
        told["fingerprint"] = failure.fingerprint
    return told


def command(c: AnyCommand) -> tuple[bytes, bytes]:
    """A command: itself and its bytes."""
    kind: str = type(c).__struct_config__.tag  # type: ignore[assignment]
    fields: dict[str, Any] = {"kind": kind, "id": c.job.id}
    if c.actor is not None:
        fields["actor"] = c.actor
    data = b""
    if isinstance(c, Cancel):
        fields |= {"reason": c.reason, "cascade": c.cascade}
    elif isinstance(c, Reprioritise):
        fields["priority"] = c.priority
    elif isinstance(c, Reschedule):
        fields |= {"delay": c.delay_ms} if c.at_ms is None else {"at": c.at_ms}
    elif isinstance(c, Update):
        fields["codec"], data = c.codec, c.payload
    elif isinstance(c, SendSignal):
        fields["name"], data = c.name, c.value
    return encode(fields), data


def limits_text(limits: Limits) -> bytes:
    """Limits as they are stored: the same limits give the same text."""
    return _json(limits)


def stalls_text(declared: dict[str, int]) -> bytes:
    """`max_stalls` by task name."""
    return _json(declared)


def in_force(limits: Limits, partitions: int) -> list[str]:
    """Those that claims and puts look at, "" for none; of max_waiting, a partition's share and the whole."""
    most = limits.max_waiting
    bound = "" if most is None else f"{share(most, partitions)}/{most}"
    return [
        _count(limits.limit),
        _rate(limits.rate),
        _count(limits.key_limit),
        _rate(limits.key_rate),
        bound,
    ]


def key_in_force(limits: Limits) -> str:
    """The two of a single key."""
    return f"{_count(limits.key_limit)}|{_rate(limits.key_rate)}"


def retention(data: RetentionData) -> str:
    """As text; nothing is for ever."""
    return "|".join(
        "" if n is None else str(n)
        for n in (data.completed_ms, data.failed_ms, data.cancelled_ms, data.count)
    )


def event_meta(names: Sequence[str]) -> str:
    """As text, a line per name. It begins with an empty one, because "" says that nothing is declared."""
    return "\n" + "\n".join(names)


def _count(n: int | None) -> str:
    return "" if n is None else str(n)


def _rate(rate: RateData | None) -> str:
    if rate is None:
        return ""
    return (
        f"w:{rate.limit}:{rate.per_ms}"
        if isinstance(rate, Window)
        else f"t:{rate.capacity}:{rate.refill!r}"
    )
