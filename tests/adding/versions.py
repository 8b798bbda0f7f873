"""Events between two versions of jobq: `python -m tests.adding.versions write|read FOLDER`.

One version writes an event with all its fields in every format. Another version reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from jobq.core.records import event_log, wire
from jobq.core.records.events import EventPage, EventRecord
from jobq.rpc import convert
from jobq.rpc.contract import METHODS
from jobq.rpc.v1 import jobs_pb2 as pb
from tests.events.test_fields import EVENT, QUEUE, item

ID = "log-12-0-run"


def write(folder: Path) -> None:
    """Write the event of this version in every format."""
    event = msgspec.structs.replace(EVENT, id=ID)
    entry = event_log.pack(event.number, "run", event.at_ms, event.worker, [item()])
    (folder / "entry").write_bytes(entry)
    (folder / "line").write_bytes(wire.encode(event))
    page = EventPage(events=(event,), position="12")
    (folder / "frame").write_bytes(METHODS["read_events"].write(page))
    (folder / "message").write_bytes(convert.event(event).SerializeToString())


def read(folder: Path) -> None:
    """Read the event of another version: this version knows all its fields that it has there."""
    (entry,) = event_log.unpack(
        "log", "12", QUEUE, (folder / "entry").read_bytes(), shard=EVENT.shard
    )
    line = wire.decode((folder / "line").read_bytes())
    (frame,) = METHODS["read_events"].read((folder / "frame").read_bytes()).events
    message = pb.Event.FromString((folder / "message").read_bytes())
    for found in (entry, msgspec.structs.replace(line, position="12"), frame):
        check(found)
    assert (message.id, message.job, message.meta["of"]) == (ID, EVENT.job, "meta")


def check(found: EventRecord) -> None:
    """The fields of both versions have their values, and those of one version are None."""
    for name in found.__struct_fields__:
        value, expected = getattr(found, name), getattr(EVENT, name)
        later = found.__struct_fields__.index(name) > found.__struct_fields__.index("meta")
        assert value == (ID if name == "id" else expected) or (later and value is None), name


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
