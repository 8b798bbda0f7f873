"""Every field of an event is in every format, and readers of other versions understand it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from jobq.api import info
from jobq.cli.ctl import documents
from jobq.cli.text import iso
from jobq.core.records import event_log, wire
from jobq.core.records.event_log import KIND_CODES, STATE_CODES, pack, unpack
from jobq.core.records.events import FIELDS, ITEM, EventPage, EventRecord, Field
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import Kind, State
from jobq.core.values.units import moment
from jobq.rpc import convert
from jobq.rpc.contract import METHODS
from jobq.rpc.v1 import jobs_pb2 as pb
from scripts.event_schemas import avro_schema, json_schema

QUEUE = QueueName("acme", "mail")
FIRST = ITEM[: ITEM.index("actor")]
"""The fields that every item has."""
LATER = ITEM[ITEM.index("actor") :]


def value(field: Field) -> Any:
    """A value of the field that no other field has."""
    if field.name == "kind":
        return Kind.RETRIED
    if field.path.startswith("queue."):
        return getattr(QUEUE, field.name)
    if field.type is State:
        return State.WAITING if field.name == "state" else State.ACTIVE
    if field.word == "text":
        return f"the {field.name}"
    if field.word == "map":
        return {"of": field.name}
    return 1_700_000_000_000 + field.number if field.word == "time" else field.number


VALUES = {field.name: value(field) for field in FIELDS}
EVENT = EventRecord(
    **{name: of for name, of in VALUES.items() if name not in ("tenant", "queue")},
    queue=QUEUE,
    position="12",
)
each_field = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)


def item() -> list[Any]:
    """The event as an item of the log."""
    fields = {**VALUES, "kind": KIND_CODES[Kind.RETRIED]}
    for name in ("state", "previous"):
        fields[name] = STATE_CODES[VALUES[name]]
    return [fields[name] for name in ITEM]


def read(*items: list[Any], position: str = "12") -> list[EventRecord]:
    """The events of an entry with these items, with the id and number of EVENT."""
    entry = pack(EVENT.number, "run", EVENT.at_ms, EVENT.worker, items)
    found = unpack("log", position, QUEUE, entry, shard=EVENT.shard)
    return [msgspec.structs.replace(e, id=EVENT.id, number=EVENT.number) for e in found]


def test_the_test_sets_every_field() -> None:
    assert None not in msgspec.structs.astuple(EVENT)
    assert len({str(of) for of in VALUES.values()}) == len(VALUES)


def test_numbers_are_used_once_and_never_again() -> None:
    assert sorted(field.number for field in FIELDS) == list(range(1, len(FIELDS) + 1))
    assert {f.name: f.number for f in pb.Event.DESCRIPTOR.fields} == {
        field.name: field.number for field in FIELDS
    }


@each_field
def test_a_line_has_the_field(field: Field) -> None:
    assert json.loads(wire.encode(EVENT))[field.name] == value(field)
    assert field.name in json_schema()["properties"]
    assert field.name in [each["name"] for each in avro_schema()["fields"]]


@each_field
def test_a_message_has_the_field(field: Field) -> None:
    sent = pb.Event.FromString(convert.event(EVENT).SerializeToString())
    found = getattr(sent, field.name)
    assert (dict(found) if field.word == "map" else found) == value(field)


@each_field
def test_the_document_of_jq_ctl_has_the_field(field: Field) -> None:
    shown = iso(value(field)) if field.word == "time" else value(field)
    assert documents.event(EVENT)[field.shown] == shown


@each_field
def test_the_event_of_the_api_has_the_field(field: Field) -> None:
    shown = moment(value(field)) if field.word == "time" else value(field)
    assert getattr(info.event(EVENT, "7"), field.shown) == shown


@each_field
def test_a_row_of_spark_has_the_field(field: Field) -> None:
    pytest.importorskip("pyspark")
    from jobq.pipeline.datasource import columns, event_source
    from jobq.pipeline.transforms.parse import WIRE

    (found,) = event_source._column([EVENT], field.shown)
    expected = value(field) * 1000 if field.word == "time" else value(field)
    assert (dict(found) if field.word == "map" else found) == expected
    assert field.shown in columns.EVENTS.names
    assert field.name in WIRE.names


def test_what_was_written_is_read() -> None:
    assert read(item()) == [EVENT]
    assert wire.decode(wire.encode(EVENT)) == msgspec.structs.replace(EVENT, position="")
    page = EventPage(events=(EVENT, EVENT), position="7")
    calls = METHODS["read_events"]
    assert calls.read(calls.write(page)) == page


# ── other versions ────────────────────────────────────────────────────────────────────────────────


def test_fields_that_a_newer_jobq_has_added_are_ignored() -> None:
    assert read([*item(), "new", {"a": 1}]) == [EVENT]
    jobs = [2, 1, "run", 5, None, "accepted", "send", None, ["a", "b"]]
    old, new = (msgspec.msgpack.encode(entry) for entry in (jobs, [*jobs, "new"]))
    assert unpack("log", "3", QUEUE, new) == unpack("log", "3", QUEUE, old)
    line = json.loads(wire.encode(EVENT)) | {"new": "field", "map": {"a": "b"}}
    assert wire.decode(json.dumps(line)) == msgspec.structs.replace(EVENT, position="")
    rows = [[*msgspec.structs.astuple(EVENT), "new"]]
    frame = msgspec.msgpack.encode([rows, "7", "new"])
    assert METHODS["read_events"].read(frame) == EventPage(events=(EVENT,), position="7")
    message = convert.event(EVENT)
    unknown = b"\xfa\x3f\x03new"  # field 1023, a text
    assert pb.Event.FromString(message.SerializeToString() + unknown).job == EVENT.job


@pytest.mark.parametrize("known", range(len(FIRST), len(ITEM)))
def test_fields_that_an_older_jobq_did_not_have_are_none(known: int) -> None:
    unset = dict.fromkeys(ITEM[known:])
    assert read(item()[:known]) == [msgspec.structs.replace(EVENT, **unset)]


def test_a_line_and_a_frame_of_an_older_jobq_are_read() -> None:
    line = json.loads(wire.encode(EVENT))
    for field in FIELDS:
        if not field.required:
            del line[field.name]
    found = wire.decode(json.dumps(line))
    assert [getattr(found, field.name) for field in FIELDS if field.optional] == [None] * sum(
        field.optional for field in FIELDS
    )
    since = EventRecord.__struct_fields__.index("meta")
    frame = msgspec.msgpack.encode([[msgspec.structs.astuple(EVENT)[:since]], "7"])
    (event,) = METHODS["read_events"].read(frame).events
    later = dict.fromkeys(EventRecord.__struct_fields__[since:])
    assert event == msgspec.structs.replace(EVENT, **later)


@pytest.mark.parametrize("n", range(len(LATER) + 1))
def test_an_item_is_as_short_as_its_fields_allow(n: int) -> None:
    later = [*item()[len(FIRST) : len(FIRST) + n], *[None] * (len(LATER) - n)]
    assert len(event_log.with_later(item()[: len(FIRST)], *later)) == len(FIRST) + n
