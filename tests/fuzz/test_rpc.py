"""Random requests and malformed frames cannot crash, block or bloat a server.

JQ_FUZZ_CALLS says how many requests (`make fuzz`: 100,000). Every request has an answer, and none
is INTERNAL, UNKNOWN or UNAVAILABLE: those would be bugs.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from jobq.rpc.v1 import admin_pb2, jobs_pb2, workers_pb2
from jobq.server.host import SERVICES
from jobq_conformance.examples import number
from tests.server.serving import ServerProcess, process

CALLS = int(os.environ.get("JQ_FUZZ_CALLS", number(3_000)))
SEED = int(os.environ.get("JQ_FUZZ_SEED", "7"))
IN_FLIGHT = 50
BUGS = {StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.UNAVAILABLE, StatusCode.UNIMPLEMENTED}
GROWTH_KB = 96 * 1024
"""How much a server may grow in kB after it has warmed up: caches, arenas, and pages of SQLite."""

F = FieldDescriptor
TEXTS = ("", "q", "r", "q", "a", "b", "c", "n", "json", "msgpack", "simple", "keyed", "failed")
ODD_TEXTS = (
    "a{b}",
    "\x00",
    "ü" * 300,
    "x" * 5_000,
    "*",
    "0",
    "-1",
    "a\nb",
    "$jobq.x",
    "💥",
    "1-2~3",
)
NUMBERS = (0, 1, 2, 5, 100, 1_000, 60_000)
ODD_NUMBERS = (-1, 2**31 - 1, -(2**31), 10_001)
LARGE_NUMBERS = (2**53, 2**63 - 1, -(2**63), 253_402_214_400_001)
FLOATS = (0.0, 0.5, 1.0, 2.0, -1.0, math.nan, math.inf, 1e308, 5e-324)
BYTES = (b"", b"[[],{}]", b"null", b"\xff\xfe", b"x" * 3_000)


class Fuzzer:
    """Makes messages of any type."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, kind: Descriptor, depth: int = 0) -> Message:
        """A random message. Many fields have values that a server accepts."""
        made = GetMessageClass(kind)()
        for field in kind.fields:
            chance = 0.9 if field.name in ("queue", "id", "job", "jobs", "name", "worker") else 0.3
            if self.random.random() < chance / (1 + depth / 2):
                self._fill(made, field, depth)
        return made

    def _fill(self, made: Any, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._fill_map(getattr(made, field.name), field.message_type, depth)
        elif field.is_repeated:
            for _ in range(self.random.choice((1, 1, 2, 5))):
                if field.message_type is not None:
                    child = self.message(field.message_type, depth + 1)
                    getattr(made, field.name).append(child)
                else:
                    getattr(made, field.name).append(self.value(field))
        elif field.message_type is not None:
            getattr(made, field.name).CopyFrom(self.message(field.message_type, depth + 1))
        else:
            setattr(made, field.name, self.value(field))

    def _fill_map(self, made: Any, entry: Descriptor, depth: int) -> None:
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        if value.message_type is not None:
            made[self.value(key)].CopyFrom(self.message(value.message_type, depth + 1))
        else:
            made[self.value(key)] = self.value(value)

    def value(self, field: FieldDescriptor) -> Any:
        """A random value of a field."""
        pick = self.random.choice
        odd = self.random.random() < 0.15
        match field.type:
            case F.TYPE_STRING:
                if field.name == "tenant":
                    return pick(("", "", "", "acme", "a:b", "{"))
                return pick(ODD_TEXTS if odd else TEXTS)
            case F.TYPE_BYTES:
                return pick(BYTES)
            case F.TYPE_BOOL:
                return pick((True, False))
            case F.TYPE_DOUBLE:
                return pick(FLOATS)
            case F.TYPE_INT64:
                return pick((*ODD_NUMBERS, *LARGE_NUMBERS) if odd else NUMBERS)
        return pick(ODD_NUMBERS if odd else NUMBERS)

    def broken(self, encoded: bytes) -> bytes:
        """Bytes that are no message, or another one."""
        data = bytearray(encoded or b"\x0a\x02q")
        for _ in range(self.random.choice((1, 2, 8))):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data[: self.random.randrange(1, len(data) + 1)])


def methods() -> list[MethodDescriptor]:
    """The methods of all services, apart from Exchange, whose frames are not protobuf."""
    files = (jobs_pb2, admin_pb2, workers_pb2)
    served = {str(make.name) for make in SERVICES if not hasattr(make, "exchange")}  # type: ignore[attr-defined]
    return [
        method
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        if service.full_name in served
        for method in service.methods
        if method.name != "Exchange"
    ]


def call(client: ServerProcess, method: MethodDescriptor, bodies: list[bytes]) -> Any:
    """Begin a call with these messages."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    waits = method.server_streaming or method.name in ("Wait", "Claim")
    timeout = 0.3 if waits else 60.0
    channel = client.channel
    if method.client_streaming and method.server_streaming:
        return channel.stream_stream(path, bytes, bytes)(iter(bodies), timeout=timeout)
    if method.client_streaming:
        return channel.stream_unary(path, bytes, bytes).future(iter(bodies), timeout=timeout)
    if method.server_streaming:
        return channel.unary_stream(path, bytes, bytes)(bodies[0], timeout=timeout)
    return channel.unary_unary(path, bytes, bytes).future(bodies[0], timeout=timeout)


def outcome(method: MethodDescriptor, pending: Any) -> tuple[StatusCode, str]:
    """How a call ended."""
    try:
        if method.server_streaming:
            for n, _ in enumerate(pending):
                if n == 3:
                    pending.cancel()
        else:
            pending.result(timeout=90)
    except grpc.RpcError as error:
        failed = cast(grpc.Call, error)
        return failed.code(), failed.details() or ""
    except grpc.FutureCancelledError:
        return StatusCode.CANCELLED, ""
    return StatusCode.OK, ""


def resident_kb(pid: int) -> int:
    """The memory of a process."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    )
    return int(line.split()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with process(f"sqlite:///{folder}/fuzz.db") as running:
        yield running


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_random_requests_are_answered_and_none_is_a_bug(server: ServerProcess) -> None:
    fuzzer = Fuzzer(SEED)
    known = methods()
    assert len(known) > 40
    codes: Counter[StatusCode] = Counter()
    pending: list[tuple[MethodDescriptor, list[bytes], Any]] = []
    warm_kb = 0

    def finish(left: int) -> None:
        while len(pending) > left:
            method, bodies, begun = pending.pop(0)
            code, details = outcome(method, begun)
            assert code not in BUGS, f"{method.full_name} {bodies!r}: {code} {details}"
            codes[code] += 1

    for n in range(CALLS):
        method = fuzzer.random.choice(known)
        if method.server_streaming and fuzzer.random.random() < 0.9:
            continue  # a stream takes its whole time
        bodies = [
            fuzzer.message(method.input_type).SerializeToString()
            for _ in range(fuzzer.random.choice((1, 3)) if method.client_streaming else 1)
        ]
        if fuzzer.random.random() < 0.1:
            bodies[-1] = fuzzer.broken(bodies[-1])
        pending.append((method, bodies, call(server, method, bodies)))
        finish(IN_FLIGHT)
        if n == CALLS // 4:
            warm_kb = resident_kb(server.process.pid)
    finish(0)
    assert server.process.poll() is None
    assert codes[StatusCode.OK] > CALLS / 20, codes
    assert codes[StatusCode.INVALID_ARGUMENT] > CALLS / 20, codes
    grown = resident_kb(server.process.pid) - warm_kb
    assert grown < GROWTH_KB, f"the server grew by {grown} kB"


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, body: bytes, length: int | None = None) -> bytes:
    """A frame of HTTP/2. `length` may be a lie."""
    size = len(body) if length is None else length
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def malformed(chance: random.Random) -> bytes:
    """What a broken or hostile client may send."""
    noise = chance.randbytes(chance.choice((1, 9, 100, 5_000)))
    settings = frame(4, 0, 0, b"")
    return chance.choice(
        (
            noise,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            PREFACE + noise,
            PREFACE + settings + frame(chance.randrange(256), chance.randrange(256), 1, noise),
            PREFACE + settings + frame(1, 4, 1, noise),  # headers that no table decodes
            PREFACE + settings + frame(0, 1, 3, noise),  # data of a stream that was never opened
            PREFACE + settings + frame(0, 0, 1, b"", length=2**24 - 1),  # more than allowed
            PREFACE + settings * 2_000,
            PREFACE + settings + frame(6, 0, 0, b"12345678") * 2_000,  # pings
            PREFACE + settings + frame(3, 0, 1, b"\0\0\0\0") * 500,  # resets
            PREFACE + settings + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,  # windows that overflow
            PREFACE + settings + frame(2, 0, 1, b"\0\0\0\x01\xff") * 100,  # depends on itself
        )
    )


def test_malformed_frames_end_their_connection_and_nothing_else(server: ServerProcess) -> None:
    chance = random.Random(SEED)
    host, port = server.address.split(":")
    for _ in range(max(200, CALLS // 100)):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.settimeout(0.05)
            try:
                raw.sendall(malformed(chance))
                while raw.recv(65_536):
                    pass
            except OSError:  # the server closed the connection, or waits for the rest of a frame
                pass
    assert server.process.poll() is None
    version = server.admin.GetVersion(admin_pb2.GetVersionRequest(), timeout=30)
    assert version.api == "jobq.v1"
