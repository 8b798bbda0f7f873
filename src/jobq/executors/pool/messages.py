"""What a worker and a child process say to each other over their socket pair.

A frame is the length of its body (4 bytes, big-endian) and a body in MessagePack. Never pickle: a
child runs code that its worker need not trust.
"""

from __future__ import annotations

import struct

import msgspec

from jobq.core.policies import Permissions
from jobq.core.records import AnyOutcome, JobSpec, Lease, PutResult, Steps
from jobq.executors.handlers import Address
from jobq.executors.sandbox.workspace import Workspace

_HEADER = struct.Struct(">I")
MAX_FRAME = 256 * 2**20
"""Bytes. Far more than a payload may take; a child that announces more is out of order."""

# ── the worker says ───────────────────────────────────────────────────────────────────────────────


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message: what to import, and which stores the queues use."""

    worker: int  # process id
    tasks: tuple[Address, ...]
    stores: dict[str, str]  # queue → URL
    measure: bool = False  # report the memory in use after each job
    permissions: Permissions | None = None
    workspace: Workspace | None = None  # with permissions
    lifespan: tuple[str, str] | None = None  # the module and the name of a function


class Start(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Run this job, the n-th of the child. `now_ms` is the store's time."""

    n: int
    task: Address
    lease: Lease
    now_ms: int


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The reply to request `n`. `error` is the type and the message of an error."""

    n: int
    put: PutResult | None = None
    error: tuple[str, str] | None = None


# ── the child says ────────────────────────────────────────────────────────────────────────────────


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """All tasks are imported: the child waits for jobs."""


class Unready(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The child cannot run its tasks, and ends."""

    message: str


class Done(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The job has ended like this. `memory` is in bytes, if it was to be measured."""

    outcome: AnyOutcome
    memory: int = 0
    last: bool = False  # the child cannot run another job


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The job has ended because it was asked to: the worker knows why."""

    memory: int = 0
    last: bool = False


class NoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Store progress and log lines."""

    n: int
    progress: bytes | None = None
    lines: tuple[str, ...] = ()


class KeepRequest(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Store what later runs depend on: a checkpoint or steps. The reply confirms it."""

    n: int
    saved: bytes | None = None
    steps: Steps = ()


class AddRequest(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Enqueue a child job of this job. With `note`, store first which child it is."""

    n: int
    label: str
    spec: JobSpec
    url: str  # of the store of its queue
    note: bool = True


ToChild = Hello | Start | Reply
Request = NoteRequest | AddRequest | KeepRequest
FromChild = Ready | Unready | Done | Stopped | Request

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


class Incoherent(Exception):
    """The other side sent something that is not a message."""


def frame(message: ToChild | FromChild) -> bytes:
    """The frame of a message."""
    body = encode(message)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes. Returns the bodies that are complete now."""
        whole = data
        if self._rest:
            self._rest += data
            if len(self._rest) < 4 or len(self._rest) < 4 + _size(self._rest, 0):
                return []
            whole, self._rest = bytes(self._rest), bytearray()
        bodies = []
        start = 0
        while len(whole) - start >= 4:
            end = start + 4 + _size(whole, start)
            if end > len(whole):
                break
            bodies.append(whole[start + 4 : end])
            start = end
        if start < len(whole):
            self._rest += whole[start:]
        return bodies


def _size(data: bytes | bytearray, start: int) -> int:
    (size,) = _HEADER.unpack_from(data, start)
    if size > MAX_FRAME:
        raise Incoherent(f"a message of {size:,} bytes")
    return int(size)
