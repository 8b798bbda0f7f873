"""What a worker and a child process say to each other over their socket pair.

A frame is the length of its body (4 bytes, big-endian) and a body in MessagePack. Never pickle: a
child runs code that its worker need not trust. So the worker takes nothing for granted that comes
from a child: `LEGAL` says which message may come when, and the types and `longest` how large it may
be. A child that sends anything else is killed, and the job that it runs fails.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from jobq.core.policies import Permissions
from jobq.core.records.defaults import LOG_LINES, LONGEST_LINE
from jobq.core.records.jobs import AnyOutcome, JobSpec, Lease, PutResult, Steps
from jobq.core.values.checks import MAX_STEPS
from jobq.executors.handlers import Address
from jobq.executors.sandbox.workspace import Workspace

_HEADER = struct.Struct(">I")
WINDOW = 32
"""Requests of a job that may wait for their replies. The child keeps the next ones to itself."""
SHORT = 2**16
"""Bytes of a message about no job."""
_MAX_PAYLOAD = 2**20
"""Bytes that a handler may encode, if its queue does not say."""
_ROOM = 8 * 2**20
"""Bytes of a message beside what its handler has encoded.

The jobs that a run waits for take most: 100,000 of them, with names of 80 bytes. All steps of a job
take 1 MiB, and a log line, a failure, meta and names less than 100 kB.
"""


def longest(max_payload: int | None) -> int:
    """Bytes of the largest message about a job whose handler may encode `max_payload` bytes."""
    return (_MAX_PAYLOAD if max_payload is None else max_payload) + _ROOM


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
    """The n-th job has ended like this. `memory` is in bytes, if it was to be measured."""

    n: int
    outcome: AnyOutcome
    memory: int = 0
    last: bool = False  # the child cannot run another job


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The n-th job has ended because it was asked to: the worker knows why."""

    n: int
    memory: int = 0
    last: bool = False


_Lines = Annotated[
    tuple[Annotated[str, Meta(max_length=LONGEST_LINE)], ...], Meta(max_length=LOG_LINES)
]


class NoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Store progress and log lines."""

    n: int
    progress: bytes | None = None
    lines: _Lines = ()


class KeepRequest(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Store what later runs depend on: a checkpoint or steps. The reply confirms it."""

    n: int
    saved: bytes | None = None
    steps: Annotated[Steps, Meta(max_length=MAX_STEPS)] = ()


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

# ── which message may come when ───────────────────────────────────────────────────────────────────


class State(Enum):
    """What a child does, in the worker's eyes. The value completes `a child that …`."""

    STARTING = "imports its tasks"
    IDLE = "has no job"
    BUSY = "runs a job"
    ASKED = "was asked to stop its job"
    ENDING = "ends"  # it could not start, was told to end, or has closed the line
    BROKEN = "is killed"  # it sent what it may not: nothing that it sends is read


_REQUESTS: tuple[type[Request], ...] = (NoteRequest, KeepRequest, AddRequest)

LEGAL: Mapping[State, Mapping[type[FromChild], State]] = {
    State.STARTING: {Ready: State.IDLE, Unready: State.ENDING},
    State.IDLE: {},
    State.BUSY: {**dict.fromkeys(_REQUESTS, State.BUSY), Done: State.IDLE},
    State.ASKED: {
        **dict.fromkeys(_REQUESTS, State.ASKED),
        Done: State.IDLE,
        Stopped: State.IDLE,
    },
    State.ENDING: {},
}
"""The messages that a child may send in a state, and the state that follows.

The worker changes the state when it sends a job (IDLE → BUSY), when it asks the job to stop (BUSY →
ASKED), and when it lets the child end (IDLE → ENDING). Every other message, and everything that is
no message, leads to BROKEN. Only the end of an earlier job is ignored while a job runs: its handler
has sent an end in the name of its process before, and the job that runs now is not to blame.
"""

# ── frames ────────────────────────────────────────────────────────────────────────────────────────

encode = msgspec.msgpack.Encoder().encode
decode_to_child = msgspec.msgpack.Decoder(ToChild).decode
_decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


class Incoherent(Exception):
    """The other side sent something that is not a message, or that it may not send now."""


def decode_from_child(body: bytes | memoryview) -> FromChild:
    """The message. Incoherent if it is none, whatever is wrong with it."""
    try:
        message: FromChild = _decode_from_child(body)
    except Exception as error:  # also UnicodeDecodeError and RecursionError
        raise Incoherent(f"what is no message: {error}") from None
    return message


def frame(message: ToChild | FromChild) -> bytes:
    """The frame of a message."""
    body = encode(message)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of frames. One body is held at a time."""

    def __init__(self, limit: int = 2**32) -> None:
        self.limit = limit  # bytes of a body; Incoherent if one announces more
        self._rest = bytearray()  # of a frame that is not complete

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and is not complete."""
        return bool(self._rest)

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Take received bytes. Yields the bodies that are complete now; each is used at once."""
        given, start, rest = memoryview(data), 0, self._rest
        if rest:
            if len(rest) < _HEADER.size:
                start = _HEADER.size - len(rest)
                rest += given[:start]
            if len(rest) < _HEADER.size:
                return
            missing = _HEADER.size + self._size(rest, 0) - len(rest)
            rest += given[start : start + missing]
            start += missing
            if start > len(given):
                return
            self._rest = bytearray()
            yield memoryview(rest)[_HEADER.size :]
        while len(given) - start >= _HEADER.size:
            body = start + _HEADER.size
            end = body + self._size(given, start)
            if end > len(given):
                break
            yield given[body:end]
            start = end
        self._rest += given[start:]

    def _size(self, data: bytearray | memoryview, start: int) -> int:
        (size,) = _HEADER.unpack_from(data, start)
        if size > self.limit:
            raise Incoherent(f"a message of {size:,} bytes, of {self.limit:,} at most")
        return int(size)


# Two numbers in memory that a worker and its child share. They cost no message.
#
# `begun` is the last job that the child has begun. When a child has died, the worker reads there
# whether the job that it had just sent was begun. If not, another child runs it, and the job does
# not notice.
#
# `asked` is the last job that the worker has asked to stop. The child compares it when it receives
# SIGTERM. So a signal that comes late, or from a service manager that signals every process, does
# not interrupt a job.
#
# The child maps the memory. The worker does not: it would be killed by SIGBUS if a handler
# truncated the memory. It reads and writes it as a file, which it rarely does.

_NUMBER = struct.Struct("=Q")
_BEGUN, _ASKED = 0, _NUMBER.size
_SIZE = 2 * _NUMBER.size


class Shared:
    """The shared numbers, as the child has them."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE)

    def begin(self, job: int) -> None:
        """Tell that this job has begun."""
        _NUMBER.pack_into(self._memory, _BEGUN, job)

    @property
    def asked(self) -> int:
        """The last job that the worker has asked to stop."""
        return int(_NUMBER.unpack_from(self._memory, _ASKED)[0])


class SharedFile:
    """The shared numbers, as the worker has them. The child can write anything there."""

    def __init__(self) -> None:
        self.descriptor = _make()

    def has_begun(self, job: int) -> bool:
        """Whether the child has begun this job, as far as it says so."""
        return os.pread(self.descriptor, _NUMBER.size, _BEGUN) == _NUMBER.pack(job)

    def ask(self, job: int) -> None:
        """Tell that this job is asked to stop."""
        os.pwrite(self.descriptor, _NUMBER.pack(job), _ASKED)

    def close(self) -> None:
        """Give up the memory."""
        os.close(self.descriptor)


def _make() -> int:
    """A new descriptor that both processes can use."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jobq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor
