"""The wire format of events: one line of JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import Kind, QueueKind, State

EVENT = EventRecord(
    id="log-12-0-f00dcafe",
    number=40,
    shard=3,
    position="12",
    kind=Kind.STARTED,
    at_ms=1_763_211_600_123,
    queue=QueueName("acme", "mail"),
    job="j",
    life=0,
    name="send",
    key=None,
    attempt=1,
    failures=0,
    stalls=0,
    state=State.ACTIVE,
    previous=State.WAITING,
    worker="w-1",
    actor="ann",
    reason=None,
    error=None,
    fingerprint=None,
    created_ms=1,
    due_ms=2,
    started_ms=3,
    finished_ms=None,
)
GAP = EventRecord(
    id="log-13-0-f00dcafe",
    number=42,
    shard=0,
    position="13",
    kind="gap",
    at_ms=5,
    queue=QueueName("acme", "mail"),
    job="",
    life=0,
    name="",
    key=None,
    attempt=0,
    failures=0,
    stalls=0,
    state=None,
    previous=None,
    worker=None,
    actor=None,
    reason="3 entries dropped",
    error=None,
    fingerprint=None,
    created_ms=5,
    due_ms=None,
    started_ms=None,
    finished_ms=None,
)


PAUSED = msgspec.structs.replace(GAP, kind=QueueKind.PAUSED, actor="ann@host", reason=None)


@pytest.mark.parametrize("event", [EVENT, GAP, PAUSED])
def test_a_line_contains_the_whole_event(event: EventRecord) -> None:
    assert wire.decode(wire.encode(event)) == msgspec.structs.replace(event, position="")


def test_the_wire_format_is_stable() -> None:
    assert json.loads(wire.encode(EVENT)) == {
        "v": 1,
        "id": "log-12-0-f00dcafe",
        "number": 40,
        "shard": 3,
        "kind": "started",
        "at_ms": 1_763_211_600_123,
        "tenant": "acme",
        "queue": "mail",
        "job": "j",
        "actor": "ann",
        "life": 0,
        "name": "send",
        "attempt": 1,
        "failures": 0,
        "stalls": 0,
        "state": "active",
        "previous": "waiting",
        "worker": "w-1",
        "created_ms": 1,
        "due_ms": 2,
        "started_ms": 3,
    }
    assert wire.key(EVENT) == b"acme/mail/j"


def test_a_line_from_before_numbered_events_can_be_read() -> None:
    line = json.loads(wire.encode(EVENT))
    del line["number"], line["shard"], line["actor"]
    event = wire.decode(json.dumps(line))
    assert (event.number, event.shard, event.actor) == (0, 0, None)


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        wire.decode(wire.encode(EVENT).replace(b'"v":1', b'"v":2'))
