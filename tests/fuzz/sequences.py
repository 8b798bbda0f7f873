"""Mutated sequences of messages from a child process, for tests/fuzz/test_child_messages.py.

A sequence begins as one that a child may send while it runs a job. Then pieces of it are repeated,
dropped, moved, cut, flipped, forged, blown up or replaced.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Defer,
    Edge,
    Fail,
    Failure,
    Hold,
    JobKey,
    JobSpec,
    Lease,
    QueueName,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.executors.pool.messages import (
    WINDOW,
    AddRequest,
    Done,
    KeepRequest,
    NoteRequest,
    Ready,
    Stopped,
    Unready,
    encode,
)

TEXTS = ("", "x", "line", "default", "other", "ü" * 300, "{}", "\0", "a\nb", "$jobq.x", "x" * 9_000)
NUMBERS = (0, 1, -1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63))
VALUES: tuple[Any, ...] = (*TEXTS, *NUMBERS, None, True, 1.5, float("nan"), b"", b"x" * 999, [], {})
BAD_BODIES = (
    b"",
    b"\xc1",
    b"\x92\x0d" + b"\x91" * 5_000,
    b"\x92\x0d" + b"\x81\x01" * 5_000,
    b"\x94\x0e\x01\xc0\x91\xa2\xff\xfe",
    b"\x94\x0e\x01\xc0\xdd\xff\xff\xff\xff",
    b"\x93\x0e\x01\xc6\xff\xff\xff\xff",
    b"\x92\x0b\xa3\xed\xa0\x80",
    b"\x94\x0e\x01\xc0\xdd\x00\x00\x27\x10" + b"\xa0" * 10_000,
)


class Fuzzer:
    """Makes sequences of frames."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made: Counter[str] = Counter()
        self.tokens: list[tuple[QueueName, str, str]] = []  # of jobs that run or ran

    def sequence(self, n: int, lease: Lease, url: str) -> list[bytes]:
        """What the child sends for its n-th job: pieces, each written at once."""
        self._n = n
        pick = self.random
        bodies = [encode(each) for each in self._legal(lease, url)]
        frames = [len(body).to_bytes(4, "big") + body for body in bodies]
        for _ in range(pick.choice((0, 1, 1, 1, 2, 3))):
            name, mutate = pick.choice(self._mutations(lease, url))
            self.made[name] += 1
            frames = mutate(frames)
        if pick.random() < 0.2:  # in small pieces, as if the line were slow
            data = b"".join(frames)[:2_000]
            frames = [data[n : n + 97] for n in range(0, len(data), 97)]
        return frames

    # ── legal sequences ──

    def _legal(self, lease: Lease, url: str) -> Iterator[Any]:
        for n in range(self.random.choice((0, 0, 1, 2, 5))):
            yield self._request(n, lease, url)
        if self.random.random() < 0.9:
            yield Done(self._n, self._outcome(lease))

    def _request(self, n: int, lease: Lease, url: str) -> Any:
        pick = self.random
        kind = pick.randrange(3)
        if kind == 0:
            return NoteRequest(n, pick.choice((None, b"1")), ("a line",) * pick.randrange(3))
        if kind == 1:
            return KeepRequest(n, pick.choice((None, b"1")), ((f"s{n}", b"x"),))
        return AddRequest(n, f"{n}", self._spec(lease, n), url)

    def _spec(self, lease: Lease, n: int) -> JobSpec:
        queue = QueueName("default", "unserved")
        return JobSpec(queue=queue, id=f"{lease.id}:{n}", name="x", payload=b"[[],{}]")

    def _outcome(self, lease: Lease) -> AnyOutcome:
        pick = self.random
        ref: dict[str, Any] = {"queue": lease.queue, "id": lease.id, "token": lease.token}
        failure = Failure(reason="error", type="E", message="m", attempt=lease.attempt, at_ms=1)
        outcomes: tuple[Callable[[], AnyOutcome], ...] = (
            lambda: Complete(**ref, result=b'"done"'),
            lambda: Complete(**ref, result=b'"done"'),
            lambda: Fail(**ref, failure=failure),
            lambda: RetryLater(**ref, failure=failure, delay_ms=3_600_000),
            lambda: SnoozeFor(**ref, delay_ms=3_600_000, saved=b"1"),
            lambda: Block(**ref, signal="go"),
            lambda: Block(**ref, after=(Edge(JobKey(QueueName("default", "unserved"), "y")),)),
            lambda: Defer(**ref, delay_ms=3_600_000),
        )
        return pick.choice(outcomes)()

    # ── what can be wrong ──

    def _mutations(self, lease: Lease, url: str) -> list[tuple[str, Callable[[list[bytes]], Any]]]:
        pick = self.random

        def at(frames: list[bytes]) -> int:
            return pick.randrange(len(frames)) if frames else 0

        def framed(body: bytes) -> bytes:
            return len(body).to_bytes(4, "big") + body

        def put(frames: list[bytes], *new: bytes) -> list[bytes]:
            n = pick.randint(0, len(frames))
            rest = frames[n:] if pick.random() < 0.7 else []
            return [*frames[:n], *new, *rest]

        def change(frames: list[bytes], fn: Callable[[bytes], bytes]) -> list[bytes]:
            n = at(frames)
            kept = not any(frames[n : n + 1])  # there is none, or it was cut to nothing
            return frames if kept else [*frames[:n], fn(frames[n]), *frames[n + 1 :]]

        def flip(data: bytes) -> bytes:
            changed = bytearray(data)
            for _ in range(pick.choice((1, 1, 3))):
                changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(8)
            return bytes(changed)

        def retyped(data: bytes) -> bytes:
            """Replace a value somewhere in the message, whatever it was."""
            try:
                return framed(encode(self._replaced(msgspec.msgpack.decode(data[4:]))))
            except (ValueError, RecursionError):
                return data

        def forged(frames: list[bytes]) -> list[bytes]:
            queue, id, token = pick.choice(self.tokens)
            return put(
                frames, framed(encode(Done(self._n, Complete(queue=queue, id=id, token=token))))
            )

        def foreign(frames: list[bytes]) -> list[bytes]:
            """A message of another state, or a child that belongs to somebody else."""
            queue, id, _ = pick.choice(self.tokens)
            spec = msgspec.structs.replace(
                self._spec(lease, 0),
                queue=pick.choice((queue, QueueName("other", "line"))),
                id=id,
                **pick.choice(({}, {"schedule": "x"}, {"origin": "x/y"}, {"priority": -5})),
            )
            made: tuple[Any, ...] = (
                Ready(),
                Unready("no"),
                Stopped(self._n + pick.choice((-1, 0, 1))),
                Done(pick.choice(NUMBERS), Release(queue=queue, id=id, token="no")),
                Done(self._n, Hold(queue=queue, id=id, token="no", delay_ms=5)),
                AddRequest(9, pick.choice(TEXTS), spec, pick.choice((url, *TEXTS))),
            )
            return put(frames, framed(encode(pick.choice(made))))

        def flood(frames: list[bytes]) -> list[bytes]:
            note = framed(encode(NoteRequest(1, b"1")))
            return put(frames, note * pick.choice((2, WINDOW, WINDOW + 1, 500)))

        def shuffled(frames: list[bytes]) -> list[bytes]:
            return pick.sample(frames, len(frames))

        def oversize(data: bytes) -> bytes:
            size = pick.choice((max(0, len(data) - 3), 2**16, 2**23, 2**24, 2**31, 2**32 - 1))
            return size.to_bytes(4, "big") + data[4:]

        return [
            ("repeated", lambda f: put(f, f[at(f)]) if f else f),
            ("dropped", lambda f: f[: (n := at(f))] + f[n + 1 :]),
            ("moved", shuffled),
            ("cut", lambda f: change(f, lambda data: data[: pick.randrange(len(data) + 1)])),
            ("ended early", lambda f: f[: at(f)]),
            ("flipped", lambda f: change(f, flip)),
            ("flipped", lambda f: change(f, flip)),
            ("retyped", lambda f: change(f, retyped)),
            ("retyped", lambda f: change(f, retyped)),
            ("oversize", lambda f: change(f, oversize)),
            ("bad body", lambda f: put(f, framed(pick.choice(BAD_BODIES)))),
            ("noise", lambda f: put(f, pick.randbytes(pick.choice((1, 3, 4, 40, 4_000))))),
            ("forged", forged),
            ("of another state", foreign),
            ("flood", flood),
        ]

    def _replaced(self, value: Any) -> Any:
        pick = self.random
        if isinstance(value, list) and value and pick.random() < 0.9:
            n = pick.randrange(len(value))
            return [*value[:n], self._replaced(value[n]), *value[n + 1 :]]
        if isinstance(value, dict) and value and pick.random() < 0.9:
            key = pick.choice(list(value))
            return {**value, key: self._replaced(value[key])}
        return pick.choice(VALUES)
