"""The event log's wire format: one entry per store call and queue holds the packed events of its whole batch.

An entry is MessagePack: [FORMAT, at_ms, worker | nil, [item, …]], an item the array of `_ITEM` in that order, with
kinds and states as their codes below. A store appends entries and never looks inside; Lua packs the same arrays.
An `accepted` entry is [FORMAT, at_ms, nil, "accepted", name, key, [job, …]]: new jobs that differ in nothing else, and wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core.records import EventRecord, QueueName
from jobq.core.states import Kind, State

FORMAT = 1

# Codes are part of the format: append only.
STATES: tuple[State, ...] = (
    State.DELAYED, State.BLOCKED, State.WAITING, State.ACTIVE, State.COMPLETED, State.FAILED, State.CANCELLED,
)  # fmt: skip
KINDS: tuple[Kind, ...] = (
    Kind.ACCEPTED, Kind.PROMOTED, Kind.UNBLOCKED, Kind.STARTED, Kind.COMPLETED, Kind.RETRIED, Kind.SNOOZED, Kind.STALLED,
    Kind.RELEASED, Kind.LIMITED, Kind.BLOCKED, Kind.FAILED, Kind.CANCELLED, Kind.RERUN, Kind.CHANGED,
)  # fmt: skip
STATE_CODES: dict[State, int] = {state: code for code, state in enumerate(STATES)}
KIND_CODES: dict[Kind, int] = {kind: code for code, kind in enumerate(KINDS)}

# An item, in this order. previous is nil for `accepted`; the times are ms or nil.
_ITEM = (
    "kind", "job", "life", "name", "key", "attempt", "failures", "stalls", "state", "previous",
    "reason", "error", "fingerprint", "created_ms", "due_ms", "started_ms", "finished_ms",
)  # fmt: skip

_ACCEPTED, _WAITING = KIND_CODES[Kind.ACCEPTED], STATE_CODES[State.WAITING]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()

Item = Sequence[Any]


def pack(at_ms: int, worker: str | None, items: Sequence[Item]) -> bytes:
    """One entry of the log."""
    return _encoder.encode((FORMAT, at_ms, worker, items))


def gap(log: str, position: str, queue: QueueName, at_ms: int, what: str) -> EventRecord:
    """What a reader is told who comes from before `position`, up to which the log was dropped. It has the id of an event that
    was: where that one has arrived already, nothing is missing, and a consumer that drops known ids drops this."""
    return EventRecord(
        id=f"{log}-{position}-0", position=position, kind="gap", at_ms=at_ms, queue=queue, job="", life=0, name="", key=None,
        attempt=0, failures=0, stalls=0, state=None, previous=None, worker=None, reason=what, error=None, fingerprint=None,
        created_ms=at_ms, due_ms=None, started_ms=None, finished_ms=None,
    )  # fmt: skip


def unpack(log: str, position: str, queue: QueueName, entry: bytes) -> list[EventRecord]:
    """The events of one entry. `log` names the log among all logs, so that ids are unique for ever."""
    fields = _decoder.decode(entry)
    if fields[0] != FORMAT:
        raise ValueError(f"event log entry {position} of {queue.queue!r} has format {fields[0]}; this jobq reads format {FORMAT}")
    _, at_ms, worker, items = fields[:4]
    stem = f"{log}-{position}"
    if items == "accepted":
        _, name, key, jobs = fields[3:]
        rest = (0, name, key, 0, 0, 0, _WAITING, None, None, None, None, at_ms, at_ms, None, None)
        items = [(_ACCEPTED, job, *rest) for job in jobs]
    return [_event(f"{stem}-{n}", position, at_ms, worker, queue, item) for n, item in enumerate(items)]


def _event(id: str, position: str, at_ms: int, worker: str | None, queue: QueueName, item: Item) -> EventRecord:
    (kind, job, life, name, key, attempt, failures, stalls, state, previous,
     reason, error, fingerprint, created_ms, due_ms, started_ms, finished_ms) = item  # fmt: skip
    return EventRecord(
        id=id, position=position, kind=KINDS[kind], at_ms=at_ms, queue=queue, job=job, life=life, name=name, key=key,
        attempt=attempt, failures=failures, stalls=stalls, state=STATES[state],
        previous=None if previous is None else STATES[previous], worker=worker, reason=reason, error=error,
        fingerprint=fingerprint, created_ms=created_ms, due_ms=due_ms, started_ms=started_ms, finished_ms=finished_ms,
    )  # fmt: skip
