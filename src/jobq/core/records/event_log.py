"""The format of the event log.

One entry per store call and queue holds the events of the whole batch.

An entry is MessagePack: [FORMAT, number, incarnation, at_ms, worker | nil, [item, …]].

- `number` is the number of its first event; the others count up from there.
- `incarnation` identifies the run of the store that wrote the entry (see `unpack`).
- An item is an array of the fields in `events.ITEM`, in that order, with kinds and states as the
  codes below. Fields from `actor` on are left out if they and all fields after them are nil. Fields
  that a newer jobq has added follow, and are ignored.

A store appends entries and never looks inside. lua/log.lua packs the same arrays.

An `accepted` entry is [FORMAT, number, incarnation, at_ms, nil, "accepted", name, key, [job, …]]:
new waiting jobs that differ only in their ids. An event without a job (a `QueueKind`) has "" or 0
in the fields of a job, and nil for its states.

Format 1 has neither number nor incarnation: [1, at_ms, worker | nil, …]. It is still read, and its
events have number 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec

from jobq.core.records.events import FIELDS, ITEM, EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.refusals import no_position
from jobq.core.records.states import Kind, QueueKind, State
from jobq.errors import ConfigError

FORMAT = 2

# The codes are part of the format. Only append to these tuples.
STATES: tuple[State, ...] = (
    State.DELAYED,
    State.BLOCKED,
    State.WAITING,
    State.ACTIVE,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
)
KINDS: tuple[Kind | QueueKind, ...] = (
    Kind.ACCEPTED,
    Kind.PROMOTED,
    Kind.UNBLOCKED,
    Kind.STARTED,
    Kind.COMPLETED,
    Kind.RETRIED,
    Kind.SNOOZED,
    Kind.STALLED,
    Kind.RELEASED,
    Kind.LIMITED,
    Kind.BLOCKED,
    Kind.FAILED,
    Kind.CANCELLED,
    Kind.RERUN,
    Kind.CHANGED,
    QueueKind.PAUSED,
    QueueKind.RESUMED,
    QueueKind.LIMITS,
    QueueKind.HELD,
    QueueKind.RELEASED_HOLD,
    QueueKind.CLEARED,
    QueueKind.PURGED,
    QueueKind.SCHEDULE,
    QueueKind.MISSED,
    QueueKind.OBLITERATED,
    QueueKind.RELEASED_LOCK,
)
STATE_CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
KIND_CODES: dict[Kind | QueueKind, int] = {kind: code for code, kind in enumerate(KINDS)}

_SHORT = ITEM.index("actor")
"""The length of an item without actor, meta and later fields, as nearly all are."""
_LATER = (None,) * (len(ITEM) - _SHORT)
_STATE, _PREVIOUS = ITEM.index("state"), ITEM.index("previous")
_STATE_OF: dict[int | None, State | None] = {None: None, **dict(enumerate(STATES))}
_SHARED = ("id", "number", "shard", "position", "at_ms", "queue", "worker")
"""The fields that an event takes from its entry and its place there."""
_arranged: Any = itemgetter(*map((*_SHARED, *ITEM).index, EventRecord.__struct_fields__))
"""The values of an EventRecord in its order, from the shared ones and those of an item."""
_NO_JOB: dict[str, Any] = {
    field.name: None if field.optional else "" if field.type is str else 0
    for name in ITEM[1:_SHORT]
    for field in FIELDS
    if field.name == name
}
"""The fields of an item, without its kind, for an event that has no job."""

_ACCEPTED, _WAITING = KIND_CODES[Kind.ACCEPTED], STATE_CODES[State.WAITING]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()

Item = Sequence[Any]

_DAMAGED = (msgspec.MsgspecError, LookupError, TypeError, ValueError)
"""What decoding a damaged entry may raise."""
_UNREADABLE = "unreadable"
"""The incarnation in the id of the gap that replaces a damaged entry."""


def pack(
    number: int, incarnation: str, at_ms: int, worker: str | None, items: Sequence[Item]
) -> bytes:
    """One entry of the log. `number` is the number of its first event."""
    return _encoder.encode((FORMAT, number, incarnation, at_ms, worker, items))


def pack_packed(
    number: int, incarnation: str, at_ms: int, worker: str | None, items: bytes
) -> bytes:
    """The same for items that are packed already: a store may number entries after it wrote them.

    `items` is the MessagePack of the list of items."""
    return _encoder.encode((FORMAT, number, incarnation, at_ms, worker, msgspec.Raw(items)))


def with_later(item: Item, *later: Any) -> Item:
    """The item with its fields from `actor` on. Those at the end that are None are left out."""
    n = len(later)
    while n and later[n - 1] is None:
        n -= 1
    return (*item, *later[:n]) if n else item


def queue_item(kind: QueueKind, at_ms: int, reason: str | None, actor: str | None) -> Item:
    """The item of an operation on a queue. It has no job."""
    fields = {**_NO_JOB, "reason": reason, "created_ms": at_ms}
    return with_later((KIND_CODES[kind], *fields.values()), actor)


def jobs_reason(count: int, state: State | None = None) -> str:
    """How many jobs were cleared or purged, as the event's reason says it."""
    return f"{count} {'' if state is None else f'{state} '}{'job' if count == 1 else 'jobs'}"


def event_id(log: str, position: str, index: int, incarnation: str) -> str:
    """The id of the event at an index (from 0) of the entry at a position.

    An entry of format 1 has no incarnation ("").
    """
    return f"{log}-{position}-{index}-{incarnation}" if incarnation else f"{log}-{position}-{index}"


def incarnation_of(entry: bytes) -> str:
    """The incarnation in which an entry was written; "" for format 1.

    Never raises, because the entry may be damaged.
    """
    try:
        fields = _decoder.decode(entry)
        return str(fields[2]) if fields[0] == FORMAT else ""
    except _DAMAGED:
        return _UNREADABLE


def gap(
    log: str,
    position: str,
    queue: QueueName,
    at_ms: int,
    what: str,
    *,
    shard: int,
    number: int,
    incarnation: str,
) -> EventRecord:
    """The event for a reader whose next events were dropped from the log, up to `position`.

    `number` is the number of the last dropped event. The gap has the id of a dropped event: a
    consumer that already received that event misses nothing, and drops the gap as a known id.
    """
    fields = {**_NO_JOB, "reason": what, "created_ms": at_ms}
    id, kind = event_id(log, position, 0, incarnation), "gap"
    shared = (id, number, shard, position, at_ms, queue, None)
    return EventRecord(*_arranged((*shared, kind, *fields.values(), *_LATER)))


def unpack(
    log: str, position: str, queue: QueueName, entry: bytes, *, shard: int = 0
) -> list[EventRecord]:
    """The events of one entry. A damaged entry becomes a gap. ConfigError if a newer jobq wrote it.

    `log` identifies the log among all logs, so that no id is used twice. A store that has lost its
    last writes assigns their numbers and positions again, but in another incarnation. The
    incarnation is part of the id, so an id never names two events, and two ids under one number
    tell readers that events were lost.
    """
    newer = None
    try:
        fields = _decoder.decode(entry)
        if isinstance(fields, list) and isinstance(fields[0], int) and fields[0] > FORMAT:
            newer = fields[0]
        elif found := _unpack(log, position, queue, fields, shard):
            return found
    except _DAMAGED:
        pass
    if newer is not None:  # these events are intact, so a reader must not skip them
        raise ConfigError(
            f"event log entry {position} of queue {queue.queue!r} has format {newer}, and this "
            f"version of jobq reads formats 1 and {FORMAT}: upgrade jobq"
        )
    what = "an entry of the log cannot be read"  # readers continue after it
    return [gap(log, position, queue, 0, what, shard=shard, number=0, incarnation=_UNREADABLE)]


def _unpack(
    log: str, position: str, queue: QueueName, fields: Sequence[Any], shard: int
) -> list[EventRecord]:
    if fields[0] == FORMAT:
        _, number, incarnation, at_ms, worker, items = fields[:6]
        rest = fields[6:]
    elif fields[0] == 1:
        number, incarnation = 0, ""
        _, at_ms, worker, items = fields[:4]
        rest = fields[4:]
    else:
        return []
    if items == "accepted":
        name, key, jobs = rest[:3]
        same = (0, name, key, 0, 0, 0, _WAITING, None, None, None, None, at_ms, at_ms, None, None)
        items = [(_ACCEPTED, job, *same) for job in jobs]
    step = 1 if number else 0  # events of format 1 have no numbers
    return [
        _event(
            (
                event_id(log, position, n, incarnation),
                number + n * step,
                shard,
                position,
                at_ms,
                queue,
                worker,
            ),
            item,
        )
        for n, item in enumerate(items)
    ]


def _event(shared: tuple[Any, ...], item: Item) -> EventRecord:
    """The event of an item and of the values of `_SHARED`."""
    if len(item) < _SHORT:
        raise ValueError("the item is too short")
    fields = [*item, *_LATER[len(item) - _SHORT :]]
    fields[0] = KINDS[fields[0]]
    fields[_STATE] = _STATE_OF[fields[_STATE]]
    fields[_PREVIOUS] = _STATE_OF[fields[_PREVIOUS]]
    return EventRecord(*_arranged((*shared, *fields)))


_OFFSET = re.compile(r"\d{1,18}(-\d{1,18})?", re.ASCII)


def offsets(position: str, shards: int) -> list[str]:
    """The offsets of a position, one per shard of the log. InvalidJob if it is not a position.

    A position is the offsets of all shards joined by ",". An offset is a number, or two numbers
    joined by "-", and grows with the log. "0" is the beginning of all shards.
    """
    found = position.split(",") if position != "0" else ["0"] * shards
    if len(found) != shards or not all(map(_OFFSET.fullmatch, found)):
        raise no_position(position)
    return found


def joined(offsets: Sequence[str]) -> str:
    """The position made of these offsets."""
    return ",".join(offsets)


def passed(position: str, end: str) -> bool:
    """Whether a position is at or after `end` in every shard."""
    shards = max(position.count(","), end.count(",")) + 1
    return all(
        order(a) >= order(b)
        for a, b in zip(offsets(position, shards), offsets(end, shards), strict=True)
    )


def before(position: str) -> str:
    """A position right before the entry at `position`, in every shard: reading after it starts
    with that entry."""
    return joined([_before(offset) for offset in position.split(",")])


def _before(offset: str) -> str:
    first, *rest = order(offset)
    if not rest:
        return str(max(0, first - 1))
    if rest[0]:
        return f"{first}-{rest[0] - 1}"
    return f"{first - 1}-{'9' * 18}" if first else "0"  # 18 digits: the longest that is a position


def order(offset: str) -> tuple[int, ...]:
    """A sort key for the offsets of one shard."""
    return tuple(map(int, offset.split("-")))
