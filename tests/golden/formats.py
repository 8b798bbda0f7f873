"""What is stored and sent, as texts: one per record, with what is random replaced."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import hiredis
import msgspec
from google.protobuf.message import Message

from jobq.core.records import wire
from jobq.core.records.event_log import incarnation_of
from jobq.core.records.jobs import JobRecord, JobSpec, Lease
from jobq.core.records.queues import ScheduleRecord
from jobq.core.records.states import State
from jobq.rpc import convert, convert_queues
from jobq.rpc.contract import METHODS
from jobq.rpc.frames import encode
from jobq.stores import open_store
from jobq_conformance.kit import BEGINNING, FakeClock
from tests.golden import family

Formats = dict[str, str]
ROOT = Path(__file__).parents[2]


def shown(data: object, incarnation: str = "") -> str:
    """Bytes as text that people can compare. An incarnation has the same number of letters."""
    if not isinstance(data, bytes):
        return repr(data)
    if incarnation:
        data = data.replace(incarnation.encode(), b"I" * len(incarnation))
    return repr(data)[2:-1]


# ── in stores ─────────────────────────────────────────────────────────────────────────────────────


async def sqlite(folder: Path) -> Formats:
    """Rows of the tables of a SQLite store, after the family has been played."""
    clock, file = FakeClock(), folder / "golden.db"
    async with open_store(f"sqlite:///{file}", clock=clock) as store:
        await family.play(store, clock)
    database = apsw.Connection(str(file))
    jobs = "select q.name || ' ' || id, state, priority, at_ms, flags, options, failure"
    of_queues = "from queues q where settings is not null"
    return {
        **_rows(database, "job", f"{jobs} from jobs join queues q using (qid)"),
        **_rows(database, "schedule", "select id, spec from schedules"),
        **_rows(database, "settings", f"select name, settings {of_queues}"),
        **_rows(database, "event", "select at, entry from events"),
    }  # fmt: skip


def _rows(database: apsw.Connection, what: str, statement: str) -> Formats:
    found: Formats = {}
    for name, *values in database.execute(statement):
        incarnation = incarnation_of(values[0]) if what == "event" else ""
        found[f"{what} {name}"] = " ".join(shown(value, incarnation) for value in values)
    return found


async def valkey(url: str, port: int) -> Formats:
    """Keys of a Valkey, after the family has been played."""
    clock = FakeClock()
    async with open_store(url, clock=clock) as store:
        await family.play(store, clock)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        return dict(_keys(connection))


def _keys(connection: socket.socket) -> Iterator[tuple[str, str]]:
    for key in sorted(_ask(connection, b"KEYS", b"*")):
        name = key.decode()
        kind = name.rpartition("}")[2].partition(":")[0]
        if kind == "j":
            yield name, shown(_ask(connection, b"GET", key))
        elif kind in ("x", "sc", "m"):
            fields = _ask(connection, b"HGETALL", key)
            pairs = sorted(p for p in zip(fields[::2], fields[1::2], strict=True) if p[0] != b"tag")
            yield name, " ".join(f"{shown(field)}={shown(value)}" for field, value in pairs)
        elif kind == "s":
            for n, (_, fields) in enumerate(_ask(connection, b"XRANGE", key, b"-", b"+")):
                yield f"{name} {n}", shown(fields[-1], incarnation_of(fields[-1]))


def _ask(connection: socket.socket, *words: bytes) -> Any:
    reader = hiredis.Reader()
    connection.sendall(hiredis.pack_command(words))  # type: ignore[arg-type]
    while (reply := reader.gets()) is False:
        reader.feed(connection.recv(1 << 20))
    return reply


# ── on the wire ───────────────────────────────────────────────────────────────────────────────────


def sent() -> Formats:
    """Frames, messages of protobuf and lines of JSON."""
    found: Formats = {}
    for spec in family.specs():
        record = record_of(spec)
        found[f"frame spec {spec.id}"] = shown(encode(spec))
        found[f"frame record {spec.id}"] = shown(encode(record))
        found[f"message job {spec.id}"] = message(convert.job(record))
        found[f"frame lease {spec.id}"] = shown(encode(lease_of(spec)))
    for event in family.events():
        found[f"line {event.kind}"] = shown(wire.encode(event))
        found[f"message event {event.kind}"] = message(convert.event(event))
    found["frame events"] = shown(METHODS["read_events"].write(family.page()))
    for schedule in family.schedules():
        stored = ScheduleRecord(spec=schedule, next_ms=family.AT, fired=3, last_ms=BEGINNING)
        found[f"frame schedule {schedule.id}"] = shown(encode(schedule))
        found[f"message schedule {schedule.id}"] = message(convert_queues.schedule(stored))
    for file in sorted((ROOT / "schemas").iterdir()):
        found[f"schema {file.name}"] = sha256(file.read_bytes()).hexdigest()
    return found


def message(made: Message) -> str:
    """A message of protobuf."""
    return shown(made.SerializeToString(deterministic=True))


def lease_of(spec: JobSpec) -> Lease:
    """A lease of the job, with all that a lease takes from its spec."""
    return Lease(
        token="token", life=1, attempt=2, failures=1, stalls=0, created_ms=BEGINNING,
        started_ms=BEGINNING + 2, expires_ms=BEGINNING + 3, due_ms=BEGINNING + 1,
        **_shared(spec, Lease),
    )  # fmt: skip


def record_of(spec: JobSpec) -> JobRecord:
    """A record of the job, with all that a record takes from its spec."""
    options = type(JobRecord(**_named(spec), state=State.WAITING).options)
    return JobRecord(
        state=State.WAITING, life=1, attempt=2, failures=1, created_ms=BEGINNING,
        due_ms=BEGINNING + 1, options=options(**_shared(spec, options)), **_shared(spec, JobRecord),
    )  # fmt: skip


def _named(spec: JobSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("queue", "id", "name", "payload")}


def _shared(spec: JobSpec, other: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        name: getattr(spec, name)
        for name in other.__struct_fields__
        if name in spec.__struct_fields__
    }
