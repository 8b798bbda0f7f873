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

from operator import attrgetter
from typing import Any

import msgspec

from jobq.core.records import events
from jobq.core.records.events import KIND_NAMED, EventRecord
from jobq.core.records.jobs import QueueName

VERSION = 1
GAP = "gap"

FIELDS: tuple[str, ...] = ("v", *(field.name for field in events.FIELDS))
"""The names on the wire, in order."""

_Written = msgspec.defstruct(
    "_Written", [(name, Any, None) for name in FIELDS], omit_defaults=True, gc=False
)
"""A line to encode. It is made without keywords, which is faster than a dict."""
_Line = msgspec.defstruct(
    "_Line",
    [
        ("v", int),
        *(
            (field.name, field.type) if field.required else (field.name, field.type | None, None)
            for field in events.FIELDS
        ),
    ],
    kw_only=True,
    gc=False,
)
"""A line that was decoded. A field that is not required may be absent or null."""

_encoder = msgspec.json.Encoder()
_decoder: Any = msgspec.json.Decoder(_Line)
_AFTER = EventRecord.__struct_fields__.index("queue") + 1
_of_job: Any = attrgetter(*EventRecord.__struct_fields__[_AFTER:])


def encode(event: EventRecord) -> bytes:
    """The event as one line of JSON, without the newline."""
    return _encoder.encode(_Written(VERSION, *events.values(event)))


def decode(line: bytes | str) -> EventRecord:
    """The event of a line. ValueError says what is wrong with it.

    The position is not on the wire, because only the store knows it.
    """
    e = _decoder.decode(line)
    if e.v != VERSION:
        raise ValueError(f"event {e.id} has version {e.v}; this jobq reads version {VERSION}")
    kind = KIND_NAMED.get(e.kind)
    if kind is None:
        raise ValueError(f"event {e.id} has the unknown kind {e.kind!r}")
    queue = QueueName(e.tenant, e.queue)
    return EventRecord(e.id, e.number or 0, e.shard or 0, "", kind, e.at_ms, queue, *_of_job(e))


def key(event: EventRecord) -> bytes:
    """The key by which Kafka chooses a partition.

    All events of a job share it, so they stay in order.
    """
    return f"{event.queue.tenant}/{event.queue.queue}/{event.job}".encode()
