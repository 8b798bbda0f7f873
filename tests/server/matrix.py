"""What the matrix of refused calls consists of: every call, its arguments, and a tenant to protect.

The calls come from the descriptors of the services and from the Store contract.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from jobq.access.principal import SCOPES, Scope
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import (
    Claim,
    Complete,
    Failure,
    Filter,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    Note,
    QueueName,
    UniqueSpec,
)
from jobq.core.records.queues import Fire, QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.rpc import contract, frames
from jobq.rpc.v1 import admin_pb2, jobs_pb2, workers_pb2
from jobq.server.host import SERVICES
from jobq.stores.base import Store
from tests.server.serving import PATIENCE_S

OTHER = QueueName("other", "mail")
MARK = b"what nobody else may read"
"""Is in the payload, the result and the log lines of the other tenant's jobs."""


async def fill(store: Store) -> None:
    """Everything that a tenant can have."""
    payload = b'[[],{"text":"' + MARK + b'"}]'

    def spec(id: str, **more: Any) -> JobSpec:
        return JobSpec(queue=OTHER, id=id, name="send", payload=payload, **more)

    await store.declare(OTHER, QueueConfig(dead_letters="dead"))
    await store.put([spec("1", unique=UniqueSpec(lock="lock"), priority=9)])
    claim = Claim(queues=(OTHER,), limit=1, lease_ms=3_600_000)
    settled = await store.settle([], worker="other:w", call="1", then=claim)
    lease = settled.leases[0]
    await store.note([Note(lease=LeaseRef(OTHER, "1", lease.token), lines=(MARK.decode(),))])
    await store.put([spec("2"), spec("3", delay_ms=3_600_000)])
    await store.put_schedule(
        ScheduleSpec(queue=OTHER, id="nightly", template=spec("s"), every_ms=3_600_000),
        next_ms=int(time.time() * 1000) + 3_600_000,
    )
    worker = WorkerRecord(name="other:w", host="h", pid=1, queues=(OTHER,), concurrency=1)
    await store.beat(worker, ttl_ms=3_600_000)
    await store.ack_events(OTHER, "reader", "0")


async def seen(store: Store) -> dict[str, Any]:
    """Everything that the other tenant has, as a reader of the store sees it."""
    return {
        "queues": await store.queues("other"),
        "jobs": await store.get([JobKey(OTHER, id) for id in ("1", "2", "3")]),
        "counts": await store.count(OTHER),
        "holds": await store.holds(OTHER),
        "lock": await store.find_lock(OTHER, "lock"),
        "schedules": await store.list_schedules(OTHER),
        "workers": [(w.name, w.draining) for w in await store.workers(OTHER)],
        "asked": (
            await store.beat(
                WorkerRecord(name="other:w", host="h", pid=1, queues=(OTHER,), concurrency=1),
                ttl_ms=3_600_000,
            )
        ).request,
        "readers": await store.readers(OTHER),
        "log": await store.read_events(OTHER, after="0"),
    }


# ── the typed services ────────────────────────────────────────────────────────────────────────────

DESCRIPTORS = {
    f"{service.full_name}/{method.name}": method
    for file in (jobs_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR, workers_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
SERVED = {
    name: method
    for name, method in DESCRIPTORS.items()
    if method.name != "Exchange" and any(made.__name__ in name for made in SERVICES)
}
"""The calls with typed messages. The exchange stream has a matrix of its own, below."""


SUBSETS: tuple[frozenset[Scope], ...] = tuple(
    frozenset(scopes) for n in range(len(SCOPES) + 1) for scopes in combinations(sorted(SCOPES), n)
)
"""Every set of scopes that a token can have."""

_STATED = re.compile(r"((?:^  //[^\n]*\n)*)^  rpc (\w+)\(", re.MULTILINE)


def _ways() -> dict[str, list[frozenset[str]]]:
    """The sets of scopes that are enough for each RPC, as the comments of the .proto files say."""
    found: dict[str, list[frozenset[str]]] = {}
    for path in Path("proto/jobq/v1").glob("*.proto"):
        for comment, rpc in _STATED.findall(path.read_text()):
            words = " ".join(line.strip(" /") for line in comment.splitlines())
            stated = words.rpartition("Scope: ")[2].rstrip(".").rpartition(": ")[2]
            ways = re.split(r",? or ", stated)
            found[rpc] = [frozenset(way.split(" and ")) - {"any"} for way in ways]
    return found


WAYS = _ways()


def enough(rpc: str, scopes: frozenset[Scope]) -> bool:
    """Whether a token with these scopes may make the call of these tests."""
    return "admin" in scopes or any(way <= scopes for way in WAYS[rpc])


VALUES: dict[str, Any] = {
    "queue": "mail",
    "queues": ["mail"],
    "id": "1",
    "ids": ["1"],
    "job": "1",
    "name": "send",
    "worker": "w",
    "session": "",
    "lock": "lock",
    "reader": "reader",
    "position": "0",
    "payload": b"[[],{}]",
    "token": "1",
    "credit": 1,
    "limit": 1,
    "concurrency": 1,
    "lease_ms": 1000,
    "hold_ms": 1000,
    "every_ms": 60_000,
    "call": "1",
    "timeout_ms": 1,
    "wait_ms": 0,
    "until_now": True,
    "schedule": "nightly",
}
"""Values of fields, by name. They name what the other tenant has."""
_LEFT_OUT = {"after", "after_queue", "cron", "unique", "flow", "config", "limits", "running"}


def _filled(descriptor: Descriptor, **fields: Any) -> Message:
    """A request with everything that it can name."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        _fill_field(message, field)
    for name, value in fields.items():
        if name in descriptor.fields_by_name:
            setattr(message, name, value)
        elif "open" in descriptor.fields_by_name:
            setattr(message.open, name, value)  # type: ignore[attr-defined]
    return message


def _fill_field(message: Message, field: FieldDescriptor) -> None:
    if field.name in _LEFT_OUT or field.name == "tenant" or field.containing_oneof is not None:
        return
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return
        inner = _filled(field.message_type)
        if field.is_repeated:
            getattr(message, field.name).append(inner)
        else:
            getattr(message, field.name).CopyFrom(inner)
    elif field.name in VALUES:
        value = VALUES[field.name]
        if field.is_repeated:
            getattr(message, field.name).extend(value)
        else:
            setattr(message, field.name, value)


class Outcome(NamedTuple):
    """How a call ended."""

    code: StatusCode
    details: str
    replies: bytes


def make_call(channel: Any, method: MethodDescriptor, bearer: str | None, **fields: Any) -> Outcome:
    """Make a call with a filled request, and read all replies."""
    kind = ("stream" if method.client_streaming else "unary") + (
        "_stream" if method.server_streaming else "_unary"
    )
    service = method.containing_service.full_name
    make = getattr(channel, kind)(
        f"/{service}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )
    request = _filled(method.input_type, **fields)
    metadata = [] if bearer is None else [("authorization", f"Bearer {bearer}")]
    given = iter([request]) if method.client_streaming else request
    try:
        found = make(given, metadata=metadata, timeout=PATIENCE_S)
        replies = b"".join(found) if method.server_streaming else found
    except grpc.RpcError as e:
        return Outcome(e.code(), e.details() or "", b"")
    return Outcome(StatusCode.OK, "", replies)


# ── the exchange stream ───────────────────────────────────────────────────────────────────────────


def _record(queue: QueueName) -> JobRecord:
    failure = Failure(reason="error", type="E", message="m")
    return JobRecord(
        queue=queue, id="1", name="send", state=State.FAILED, payload=b"[[],{}]", failure=failure
    )


def arguments(queue: QueueName) -> dict[str, dict[str, Any]]:
    """Arguments of every call that name a queue, and what the other tenant has in it."""
    spec = JobSpec(queue=queue, id="1", name="send", payload=b"[[],{}]")
    worker = WorkerRecord(name="other:w", host="h", pid=2, queues=(queue,), concurrency=1)
    lease = LeaseRef(queue, "1", "token")
    in_queue: dict[str, Any] = {"queue": queue}
    return {
        "put": {"specs": [spec]},
        "settle": {
            "outcomes": [Complete(queue=queue, id="1", token="token")],
            "worker": "other:w",
            "call": "1",
            "then": Claim(queues=(queue,), limit=1, lease_ms=1000),
        },
        "extend": {"leases": [lease], "lease_ms": 1000},
        "note": {"notes": [Note(lease=lease, lines=("line",))]},
        "sleep": {"queues": [queue], "worker": "other:w", "slots": 1, "timeout_ms": 1},
        "alter": {"commands": [Cancel(job=JobKey(queue, "2"))]},
        "declare": {**in_queue, "config": QueueConfig()},
        "set_limits": {**in_queue, "limits": None},
        "pause": in_queue,
        "resume": in_queue,
        "hold": {**in_queue, "ms": 1000},
        "release_hold": in_queue,
        "release_lock": {**in_queue, "lock": "lock"},
        "purge_pending": in_queue,
        "purge_ended": {**in_queue, "state": State.COMPLETED},
        "obliterate": {**in_queue, "force": True},
        "restore": {"records": [_record(queue)]},
        "put_schedule": {
            "spec": ScheduleSpec(queue=queue, id="nightly", template=spec, every_ms=1000),
            "next_ms": 1,
        },
        "drop_schedule": {**in_queue, "id": "nightly"},
        "pause_schedule": {**in_queue, "id": "nightly", "paused": True},
        "list_schedules": in_queue,
        "fire": {"fires": [Fire(queue=queue, schedule="nightly", at_ms=1, next_ms=2)]},
        "get": {"jobs": [JobKey(queue, "1")]},
        "find": {"filter": Filter(queue=queue)},
        "skip": {"filter": Filter(queue=queue)},
        "count": in_queue,
        "stats": in_queue,
        "holds": in_queue,
        "find_lock": {**in_queue, "lock": "lock"},
        "metrics": in_queue,
        "logs": {"job": JobKey(queue, "1")},
        "queues": {"tenant": queue.tenant},
        "beat": {"worker": worker, "ttl_ms": 1000, "displace": True},
        "retire": {"worker": "other:w"},
        "workers": in_queue,
        "ask_worker": {"name": "other:w", "request": "shutdown-now"},
        "lead": {"name": "upkeep", "who": "me", "ttl_ms": 1},
        "read_events": {**in_queue, "after": "0"},
        "ack_events": {**in_queue, "reader": "reader", "position": "1"},
        "readers": in_queue,
        "remove_reader": {**in_queue, "reader": "reader"},
        "tick": {},
    }


SENT = sorted(contract.METHODS)
"""The calls of the contract that cross the network as such."""

MISSING: dict[str, Any] = {
    "extend": ["lost"],
    "note": ["lost"],
    "alter": ["missing"],
    "get": [None],
    "logs": [],
    "queues": [],
    # Names of workers and elections are apart for each tenant, so these change only their own.
    "retire": None,
    "ask_worker": False,
    "lead": True,
    "tick": 0,
}
"""Replies to calls that name something of another tenant. All others are refused as not found."""


def exchange(
    channel: Any, bearer: str | None, calls: Sequence[frames.Frame]
) -> dict[int, frames.Frame]:
    """Send a hello and the calls in one packet, and read until every call or the stream is done."""
    metadata = [] if bearer is None else [("authorization", f"Bearer {bearer}")]
    over = threading.Event()

    def sent() -> Iterator[bytes]:
        yield from frames.pack([frames.Hello(frames.VERSION), *calls])
        over.wait(PATIENCE_S)  # the end of what the client sends would end the stream

    stream = channel.stream_stream(frames.METHOD)(sent(), metadata=metadata, timeout=PATIENCE_S)
    unpacker, found = frames.Unpacker(), dict[int, frames.Frame]()
    try:
        for message in stream:
            for frame in unpacker.feed(message):
                if isinstance(frame, (frames.Reply, frames.Refusal, frames.Item)):
                    found[frame.number] = frame
            if 0 in found or len(found) >= len(calls):
                break
    except grpc.RpcError:
        pass
    over.set()
    stream.cancel()
    return found


def calls_in(queue: QueueName, names: list[str]) -> list[frames.Frame]:
    by_name = arguments(queue)
    calls: list[frames.Frame] = []
    for number, name in enumerate(names, 1):
        given = contract.METHODS[name].arguments(**by_name[name])
        calls.append(frames.Call(number, name, contract.raw(given)))
    return calls
