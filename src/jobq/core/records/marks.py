"""Marks: how far a log has been shipped, for consumers that must know whether events are missing.

    {"v":1,"id":"…","number":7,"shard":0,"kind":"mark","at_ms":…,"tenant":"acme","queue":"billing",
     "job":"","life":0,"name":"","attempt":0,"failures":0,"stalls":0,"created_ms":…,
     "log":"…","partition":2,"partitions":4}

A sender writes a mark after the events, among them: every event of the log (and shard) up to
`number` was stored in the target before the mark, or a `gap` was stored in its place. A target with
several partitions gets the mark in each of them, because a consumer may read one partition faster
than another. So all events up to a number have been delivered once a consumer has read that mark
from all `partitions`. An event that is missing then is lost, not late.

A mark has the fields of an event without a job. It has no number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName

MARK = "mark"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """All events of a log's shard up to `number` are shipped. `log` is the first part of ids."""

    queue: QueueName
    log: str
    shard: int
    number: int
    at_ms: int


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    v: int = wire.VERSION
    id: str
    number: int
    shard: int
    kind: str = MARK
    at_ms: int
    tenant: str
    queue: str
    job: str = ""
    life: int = 0
    name: str = ""
    attempt: int = 0
    failures: int = 0
    stalls: int = 0
    created_ms: int
    log: str
    partition: int
    partitions: int


FIELDS: tuple[str, ...] = ("log", "partition", "partitions")
"""The fields that a mark has and an event does not."""

_encoder = msgspec.json.Encoder()


def log_of(id: str) -> str:
    """The log of an event, from its id."""
    return id.split("-", 1)[0]


def reached(events: Iterable[EventRecord]) -> dict[int, Mark]:
    """The mark of each shard after these events, which are in order. Without unnumbered ones."""
    last = {event.shard: event for event in events if event.number}
    return {
        shard: Mark(
            queue=event.queue,
            log=log_of(event.id),
            shard=shard,
            number=event.number,
            at_ms=event.at_ms,
        )
        for shard, event in last.items()
    }


def encode(mark: Mark, partition: int = 0, partitions: int = 1) -> bytes:
    """The mark as one line of JSON, without the newline, for one partition of the target."""
    return _encoder.encode(
        _Line(
            id=f"{mark.log}-mark-{mark.shard}-{mark.number}-{partition}",
            number=mark.number,
            shard=mark.shard,
            at_ms=mark.at_ms,
            tenant=mark.queue.tenant,
            queue=mark.queue.queue,
            created_ms=mark.at_ms,
            log=mark.log,
            partition=partition,
            partitions=partitions,
        )
    )
