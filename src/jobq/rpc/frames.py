"""The frames of the exchange stream: calls and errors of the Store contract over gRPC.

`WorkerService.Exchange` is a stream in both directions. Its messages are `Frame {bytes body = 1}`
(proto/jobq/v1/workers.proto). A body is a part of a packet, and a packet is a MessagePack list of
the frames below. A large packet is sent in several bodies, so that gRPC's limit on the size of a
message does not limit a batch.

    client                          server
    Hello                   →
                            ←       Welcome, or the stream ends with a status
    Call 1 put …            →
    Call 2 sleep …          →
                            ←       Reply 1
    Cancel 2                →
    Call 3 listen …         →
                            ←       Reply 3 (it listens from now on), Item 3, Item 3, …
                            ←  →    Beat, if there was nothing else to send for a while

Calls run concurrently, and their replies arrive in any order. `expect` has no reply: calls that
follow it start when the server expects the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobq import errors
from jobq.errors import JobqError

VERSION = 1
"""The version of the frames. A server refuses a client of another version."""

METHOD = "/jobq.v1.WorkerService/Exchange"

CHUNK = 1 << 20
"""The largest body, in bytes: a quarter of what gRPC accepts as one message by default."""

MAX_PACKET = 256 << 20
"""The largest packet of a client, in bytes. 1,000 jobs with payloads of 256 KiB still fit."""

MAX_REPLIES = 4 << 30
"""The largest packet of a server, in bytes. It has what the client has asked for: a server claims
and lists up to 10,000 jobs at once. A claim that the client could not read would be repeated."""

_HEAD = 100
"""Bytes of a packet besides the arguments of its call, at most."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first frame of a client. With `clock`, frames of type `Time` set the store's time."""

    version: int
    tenant: str | None = None
    clock: bool = False


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first frame of the server.

    `tenant` is the token's tenant, or None if the token is for every tenant. Each side sends a
    frame at least every `beat_ms`. A side that hears nothing for `deaf_ms` ends the stream.
    """

    version: int
    tenant: str | None
    beat_ms: int
    deaf_ms: int


class Call(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A call of the Store contract. The client chooses the number."""

    number: int
    method: str
    arguments: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What the call with this number has returned."""

    number: int
    result: msgspec.Raw


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What the call with this number has raised."""

    number: int
    error: str
    message: str
    fields: dict[str, str | int | float | None] = {}


class Item(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A signal for a `listen`, or the end of a job for an `expect`."""

    number: int
    value: msgspec.Raw


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The client no longer waits for this call. The server ends it if it is only a wait."""

    number: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """There is nothing to say. A stream without frames is deaf, not idle."""


class Time(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The time from the next call on. Only a server for tests accepts it."""

    now_ms: int


Frame = Hello | Welcome | Call | Reply | Refusal | Item | Cancel | Beat | Time

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Frame]).decode


def pack(frames: Sequence[Frame]) -> list[bytes]:
    """The messages that carry these frames as one packet."""
    packet = encode(frames)
    if len(packet) <= CHUNK:
        return [_message(b"\0", packet)]
    starts = range(0, len(packet), CHUNK)
    return [
        _message(b"\1" if start + CHUNK < len(packet) else b"\0", packet[start : start + CHUNK])
        for start in starts
    ]


def fits(arguments: msgspec.Raw) -> bool:
    """Whether a server accepts a call with these arguments."""
    return len(arguments) <= MAX_PACKET - _HEAD


class Unpacker:
    """Puts packets together again. ValueError for bytes that no client or server of jobq sends."""

    def __init__(self, max_packet: int | None = None) -> None:
        self._max = max_packet or MAX_PACKET
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, message: bytes) -> list[Frame]:
        """The frames of the packet that this message completes; none if more messages follow."""
        body = _body(message)
        self._size += len(body) - 1
        if self._size > self._max:
            raise ValueError(f"a packet of more than {self._max:,} bytes")
        more = body[0]
        if more or self._parts:
            self._parts.append(body[1:])
            if more:
                return []
            packet: bytes | memoryview = b"".join(self._parts)
            self._parts = []
        else:
            packet = memoryview(body)[1:]
        self._size = 0
        return _decode(packet)


def _message(more: bytes, part: bytes) -> bytes:
    """`Frame {bytes body = 1}` as protobuf writes it: a tag, a length, and the bytes.

    Written by hand, because a client then needs no protobuf. A test compares it with the stubs.
    """
    head = bytearray(b"\x0a")
    size = len(part) + 1
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return b"".join((head, more, part))


def _body(message: bytes) -> bytes:
    """The opposite of `_message`."""
    size, shift, start = 0, 0, 1
    while start < len(message) and shift < 35:
        byte = message[start]
        size |= (byte & 127) << shift
        start += 1
        if byte < 128:
            if message[:1] == b"\x0a" and 0 < size == len(message) - start:
                return message[start:]
            break
        shift += 7
    raise ValueError("a message that is not a Frame")


# Errors of a store as frames: the client raises the error that the store has raised.

_NAMED: dict[str, type[JobqError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, JobqError)
}
_FIELDS = {
    "QueueFull": ("queue", "max_waiting", "refused"),
    "QuotaExceeded": ("retry_after",),
}
"""What an error says besides its message. A store's QueueFull has no handles of accepted jobs."""


def refusal_of(number: int, error: JobqError) -> Refusal:
    """The frame for an error. A class that is not public is sent as its nearest public one."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _NAMED)
    fields = {field: getattr(error, field) for field in _FIELDS.get(name, ())}
    return Refusal(number, name, str(error), fields)


def error_of(refusal: Refusal) -> JobqError:
    """The error that a frame stands for. One that this version does not know is a JobqError."""
    known = _FIELDS.get(refusal.error, ())
    fields = {name: value for name, value in refusal.fields.items() if name in known}
    try:
        return _NAMED.get(refusal.error, JobqError)(refusal.message, **fields)
    except TypeError:  # it has other fields in this version
        return JobqError(refusal.message)
