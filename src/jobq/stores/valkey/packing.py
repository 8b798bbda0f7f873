"""Packs outcomes, notes, commands and limits into arguments of functions.

Maps hold text and numbers only, because the server's MessagePack has no bytes type. Bytes are
arguments of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jobq.core.records.commands import (
    AnyCommand,
    Cancel,
    Reprioritise,
    Reschedule,
    SendSignal,
    Update,
)
from jobq.core.records.defaults import LOG_LINES
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Defer,
    Edge,
    Fail,
    Failure,
    Hold,
    JobKey,
    Note,
    RetryLater,
    SnoozeFor,
)
from jobq.core.records.queues import JobDefaults, Limits, RateData, RetentionData, Window
from jobq.core.rules.limits import share
from jobq.core.rules.outcomes import MAX_CHECKPOINTS, error_text

encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder(order="deterministic").encode


def encode_edges(after: Sequence[Edge], prefix_of: Callable[[JobKey], str]) -> bytes:
    """Edges as the functions take them."""
    return encode([[prefix_of(e.job), e.job.id, int(e.data)] for e in after])


def optional(data: bytes | None) -> bytes:
    """Bytes, or "" for None. The first byte distinguishes empty bytes from None."""
    return b"" if data is None else b"\x01" + data


def outcome(
    o: AnyOutcome, prefix_of: Callable[[JobKey], str], token: str
) -> tuple[bytes, bytes, bytes]:
    """An outcome other than completion: packed fields, data and packed edges."""
    kind: str = type(o).__struct_config__.tag  # type: ignore[assignment]
    fields: dict[str, Any] = {"kind": kind, "id": o.id, "token": token}
    data = edges = b""
    if isinstance(o, RetryLater | Fail):
        fields |= _event_fields(o.failure)
        data = encode(o.failure)
    if isinstance(o, RetryLater | SnoozeFor | Hold | Defer):
        fields["delay"] = o.delay_ms
    if isinstance(o, Defer):
        fields["reason"], data = o.reason, o.text.encode()
    if isinstance(o, SnoozeFor | Block) and o.saved is not None:
        fields["saved"], data = True, o.saved
    if isinstance(o, SnoozeFor) and o.saved_number > 0:
        fields["saved_number"] = min(o.saved_number, MAX_CHECKPOINTS)
    if isinstance(o, Block):
        if o.signal is not None:
            fields |= {"signal": o.signal, "seen": o.seen}
        if o.timeout_ms is not None:
            fields["timeout"] = o.timeout_ms
        if o.after:
            edges = encode_edges(o.after, prefix_of)
    return encode(fields), data, edges


def note(n: Note, suffix: str) -> list[Any]:
    """The arguments of a note. Its token ends with `suffix` (see `partitions.Partition`)."""
    lines = n.lines[-LOG_LINES:]
    token = n.lease.token.removesuffix(suffix)
    number = min(n.saved_number, MAX_CHECKPOINTS)
    head = [n.lease.id, token, optional(n.progress), optional(n.saved), number]
    return [*head, len(lines), len(n.steps), *lines, *(part for step in n.steps for part in step)]


def _event_fields(failure: Failure) -> dict[str, str]:
    """What the event of a failure says about it."""
    fields = {"reason": failure.reason, "error": error_text(failure)}
    if failure.fingerprint is not None:
        fields["fingerprint"] = failure.fingerprint
    return fields


def command(c: AnyCommand) -> tuple[bytes, bytes]:
    """A command: packed fields and data."""
    kind: str = type(c).__struct_config__.tag  # type: ignore[assignment]
    fields: dict[str, Any] = {"kind": kind, "id": c.job.id}
    if c.actor is not None:
        fields["actor"] = c.actor
    if c.life is not None:
        fields["life"] = c.life
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
    """Limits as they are stored. Equal limits give equal texts."""
    return _json(limits)


def stalls_text(declared: dict[str, int]) -> bytes:
    """`max_stalls` by task name, as it is stored."""
    return _json(declared)


def in_force(limits: Limits, partitions: int) -> list[str]:
    """The limits of IN_FORCE in lua/queues.lua, "" for none.

    `max_waiting` has a partition's share and the number of the whole queue.
    """
    whole = limits.max_waiting
    bound = "" if whole is None else f"{share(whole, partitions)}/{whole}"
    return [
        _count(limits.limit),
        _rate(limits.rate),
        _count(limits.key_limit),
        _rate(limits.key_rate),
        bound,
    ]


def key_in_force(limits: Limits) -> str:
    """The limit and the rate of a single key."""
    return f"{_count(limits.key_limit)}|{_rate(limits.key_rate)}"


def retention(data: RetentionData) -> str:
    """Retention as the function `declare` takes it; "" means for ever."""
    return "|".join(
        "" if n is None else str(n)
        for n in (data.completed_ms, data.failed_ms, data.cancelled_ms, data.count)
    )


def job_defaults(data: JobDefaults) -> str:
    """Defaults of jobs as the function `declare` takes them; "" means none."""
    return f"{_count(data.max_retries)}|{_count(data.ttl_ms)}"


def event_meta(names: Sequence[str]) -> str:
    """Names as the function `declare` takes them, one per line after an empty line.

    Without the empty line, no names would look like nothing declared.
    """
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
