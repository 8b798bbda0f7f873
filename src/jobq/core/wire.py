"""An event as it leaves jobq: one line of JSON, the same in Kafka and in files, and its key.

    {"v":1,"id":"…","number":7,"shard":0,"kind":"started","at_ms":1763211600123,"tenant":"acme",
     "queue":"billing","job":"…","life":0,"name":"charge","attempt":1,"failures":0,"stalls":0,
     "state":"active","previous":"waiting","worker":"w-1","created_ms":…,"due_ms":…,"started_ms":…}

- Times are integers of milliseconds since the epoch. `meta` is a map of strings (those that
  `Queue(event_meta=…)` allows). All other values are strings or small integers. A field that is
  None is left out.
- `id` is never used for another event. It is log-position-n-incarnation: the position in the log is
  one or more numbers joined by "-", n is the place of the event in its entry, and the incarnation
  (absent in ids of jobq 0.1) identifies the run of the store that wrote it. By these numbers the
  events of one job are in order. A consumer receives each event at least once, so it drops ids that
  it has seen.
- `number` counts the events of a queue's log (of each `shard`, in a partitioned queue) from 1
  without gaps. A missing number is an event that has not arrived. Two ids under one number are a
  fork: the store lost its last writes, as in a power cut.
- Fields may be added under the same `v`. A change of meaning makes it 2.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from jobq.core.event_records import EventRecord
from jobq.core.records import QueueName
from jobq.core.states import Kind, QueueKind, State

VERSION = 1
GAP = "gap"
_OF_QUEUES = frozenset(kind.value for kind in QueueKind)


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The fields on the wire, in order. scripts/event_schemas.py writes schemas/ from this."""

    v: int  # a field without a default is always written
    id: str
    number: int | None = None  # None: the line is from before events were numbered
    shard: int | None = None
    kind: str
    at_ms: int
    tenant: str
    queue: str
    job: str
    life: int
    name: str
    key: str | None = None
    attempt: int
    failures: int
    stalls: int
    state: str | None = None
    previous: str | None = None
    worker: str | None = None
    actor: str | None = None
    reason: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    created_ms: int
    due_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    meta: dict[str, str] | None = None


FIELDS: tuple[str, ...] = Line.__struct_fields__
"""The names on the wire, in order."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def encode(event: EventRecord) -> bytes:
    """The event as one line of JSON, without the newline."""
    e = event
    return _encoder.encode(
        Line(
            v=VERSION,
            id=e.id,
            number=e.number,
            shard=e.shard,
            kind=e.kind,
            at_ms=e.at_ms,
            tenant=e.queue.tenant,
            queue=e.queue.queue,
            job=e.job,
            life=e.life,
            name=e.name,
            key=e.key,
            attempt=e.attempt,
            failures=e.failures,
            stalls=e.stalls,
            state=e.state,
            previous=e.previous,
            worker=e.worker,
            actor=e.actor,
            reason=e.reason,
            error=e.error,
            fingerprint=e.fingerprint,
            created_ms=e.created_ms,
            due_ms=e.due_ms,
            started_ms=e.started_ms,
            finished_ms=e.finished_ms,
            meta=e.meta,
        )
    )


def decode(line: bytes | str) -> EventRecord:
    """The event of a line. ValueError says what is wrong with it.

    The position is not on the wire, because only the store knows it.
    """
    e = _decoder.decode(line)
    if e.v != VERSION:
        raise ValueError(f"event {e.id} has version {e.v}; this jobq reads version {VERSION}")
    return EventRecord(
        id=e.id,
        number=e.number or 0,
        shard=e.shard or 0,
        position="",
        kind=_kind(e.kind),
        at_ms=e.at_ms,
        queue=QueueName(e.tenant, e.queue),
        job=e.job,
        life=e.life,
        name=e.name,
        key=e.key,
        attempt=e.attempt,
        failures=e.failures,
        stalls=e.stalls,
        state=None if e.state is None else State(e.state),
        previous=None if e.previous is None else State(e.previous),
        worker=e.worker,
        actor=e.actor,
        reason=e.reason,
        error=e.error,
        fingerprint=e.fingerprint,
        created_ms=e.created_ms,
        due_ms=e.due_ms,
        started_ms=e.started_ms,
        finished_ms=e.finished_ms,
        meta=e.meta,
    )


def _kind(name: str) -> Kind | QueueKind | Literal["gap"]:
    return "gap" if name == GAP else QueueKind(name) if name in _OF_QUEUES else Kind(name)


def key(event: EventRecord) -> bytes:
    """The key by which Kafka chooses a partition.

    All events of a job share it, so they stay in order.
    """
    return f"{event.queue.tenant}/{event.queue.queue}/{event.job}".encode()
