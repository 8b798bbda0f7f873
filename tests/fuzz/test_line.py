"""Mutated sequences of messages from child processes: no slot is lost, no other job is touched.

JQ_FUZZ_CALLS says how many sequences (`make fuzz`: 100,000). A sequence begins as one that a child
may send while it runs a job. Then pieces of it are repeated, dropped, moved, cut, flipped, forged,
blown up or replaced. The worker, its pool and its store are real, and the processes are played
(tests/executors/peers.py): a hostile handler can send whatever the test sends. Innocent jobs run
beside it, in the same children, and each of them must return its own result at its first attempt.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import pytest

from jobq import State
from jobq.core.records import (
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
    QueueName,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.executors.pool.messages import (
    WINDOW,
    AddRequest,
    Done,
    FromChild,
    KeepRequest,
    NoteRequest,
    Ready,
    Start,
    Stopped,
    Unready,
    encode,
)
from tests.executors.peers import Line, Peer, echo, played
from tests.waiting import until

SEQUENCES = int(os.environ.get("JQ_FUZZ_CALLS", "3000"))
SEED = int(os.environ.get("JQ_FUZZ_SEED", "7"))
ROUND = 500
"""Sequences in one store. A new one follows, so that it stays small."""
AT_ONCE = 16

KINDS: tuple[type[FromChild], ...] = get_args(FromChild)
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

    def sequence(self, start: Start, url: str) -> list[bytes]:
        """What the child sends for one job: pieces, each written at once."""
        pick = self.random
        bodies = [self._encoded(each) for each in self._legal(start, url)]
        frames = [len(body).to_bytes(4, "big") + body for body in bodies]
        for _ in range(pick.choice((0, 1, 1, 1, 2, 3))):
            name, mutate = pick.choice(self._mutations(start, url))
            self.made[name] += 1
            frames = mutate(frames)
        if pick.random() < 0.2:  # in small pieces, as if the line were slow
            data = b"".join(frames)[:2_000]
            frames = [data[n : n + 97] for n in range(0, len(data), 97)]
        return frames

    # ── legal sequences ──

    def _legal(self, start: Start, url: str) -> Iterator[Any]:
        for n in range(self.random.choice((0, 0, 1, 2, 5))):
            yield self._request(n, start, url)
        if self.random.random() < 0.9:
            yield Done(self._outcome(start))

    def _request(self, n: int, start: Start, url: str) -> Any:
        pick = self.random
        kind = pick.randrange(3)
        if kind == 0:
            return NoteRequest(n, pick.choice((None, b"1")), ("a line",) * pick.randrange(3))
        if kind == 1:
            return KeepRequest(n, pick.choice((None, b"1")), ((f"s{n}", b"x"),))
        return AddRequest(n, f"{n}", self._spec(start, n), url)

    def _spec(self, start: Start, n: int) -> JobSpec:
        queue = QueueName("default", "unserved")
        return JobSpec(queue=queue, id=f"{start.lease.id}:{n}", name="x", payload=b"[[],{}]")

    def _outcome(self, start: Start) -> AnyOutcome:
        pick, lease = self.random, start.lease
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

    def _encoded(self, message: Any) -> bytes:
        return encode(message)

    # ── what can be wrong ──

    def _mutations(self, start: Start, url: str) -> list[tuple[str, Callable[[list[bytes]], Any]]]:
        pick = self.random

        def at(frames: list[bytes]) -> int:
            return pick.randrange(len(frames)) if frames else 0

        def framed(body: bytes) -> bytes:
            return len(body).to_bytes(4, "big") + body

        def put(frames: list[bytes], *new: bytes) -> list[bytes]:
            n = pick.randint(0, len(frames))
            return [*frames[:n], *new, *frames[n:]]

        def change(frames: list[bytes], fn: Callable[[bytes], bytes]) -> list[bytes]:
            n = at(frames)
            return [*frames[:n], fn(frames[n]), *frames[n + 1 :]] if frames else frames

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
            return put(frames, framed(encode(Done(Complete(queue=queue, id=id, token=token)))))

        def foreign(frames: list[bytes]) -> list[bytes]:
            """A message of another state, or a child that belongs to somebody else."""
            queue, id, _ = pick.choice(self.tokens)
            spec = msgspec.structs.replace(
                self._spec(start, 0),
                queue=pick.choice((queue, QueueName("other", "line"))),
                id=id,
                **pick.choice(({}, {"schedule": "x"}, {"origin": "x/y"}, {"priority": -5})),
            )
            made: tuple[Any, ...] = (
                Ready(),
                Unready("no"),
                Stopped(),
                Done(Release(queue=queue, id=id, token="no")),
                Done(Hold(queue=queue, id=id, token="no", delay_ms=5)),
                AddRequest(9, pick.choice(TEXTS), spec, pick.choice((url, *TEXTS))),
            )
            return put(frames, framed(encode(pick.choice(made))))

        def flood(frames: list[bytes]) -> list[bytes]:
            note = framed(encode(NoteRequest(1, b"1")))
            return put(frames, note * pick.choice((2, WINDOW, WINDOW + 1, 500)))

        def shuffled(frames: list[bytes]) -> list[bytes]:
            return pick.sample(frames, len(frames))

        def oversize(data: bytes) -> bytes:
            size = pick.choice((len(data) - 3, 2**16, 2**23, 2**24, 2**31, 2**32 - 1))
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


class Hostile:
    """Plays what hostile handlers send."""

    def __init__(self, fuzzer: Fuzzer) -> None:
        self.fuzzer = fuzzer
        self.url = ""

    def __call__(self, peer: Peer, start: Start) -> None:
        """The handler of a hostile job."""
        lease, pick = start.lease, self.fuzzer.random
        self.fuzzer.tokens = [
            *self.fuzzer.tokens[-50:],
            (lease.queue, lease.id, lease.token),
        ]
        end = pick.random()
        for piece in self.fuzzer.sequence(start, self.url):
            peer.send(piece)
        if end < 0.1:
            peer.hang_up()
        elif end < 0.2:
            peer.die(pick.choice((0, 1, -9, -11, -15)))
        elif end < 0.3:
            peer.at_stop = lambda peer: peer.say(Stopped())
        elif end < 0.4:
            os.ftruncate(peer.child._shared.descriptor, pick.choice((0, 3, 16)))

    def innocent(self, peer: Peer, start: Start) -> None:
        """The handler of an innocent job, whose token is known to hostile ones."""
        lease = start.lease
        self.fuzzer.tokens = [
            *self.fuzzer.tokens[-50:],
            (lease.queue, lease.id, lease.token),
        ]
        # Later, so that other children send their messages while this job runs.
        asyncio.get_running_loop().call_later(0.002, echo, peer, start)


async def test_mutated_sequences_lose_no_slot_and_touch_no_other_job(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level(logging.CRITICAL)
    logging.getLogger("jobq").setLevel(logging.CRITICAL)
    monkeypatch.setattr("jobq.executors.pool.child._HANG_UP_S", 0.02)
    fuzzer, ends = Fuzzer(SEED), Counter[str]()
    strange: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))
    try:
        done = 0
        while done < SEQUENCES:
            count = min(ROUND, SEQUENCES - done)
            before = len(os.listdir("/proc/self/fd"))
            hostile = Hostile(fuzzer)
            async with played(
                monkeypatch,
                hostile,
                innocent=hostile.innocent,
                timeout=0.05,
                grace=0.02,
                pool=AT_ONCE,
                concurrency=2 * AT_ONCE,
            ) as line:
                hostile.url = line.queue._context.url
                await _round(line, count, done, ends)
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) <= before, "open descriptors"
            assert not strange, strange[0]
            done += count
    finally:
        logging.getLogger("jobq").setLevel(logging.NOTSET)
    assert ends["completed"] > SEQUENCES / 20, ends
    assert ends["crashed"] > SEQUENCES / 4, ends
    record_property("ends", dict(ends))
    record_property("mutations", dict(fuzzer.made))


async def _round(line: Line, count: int, first: int, ends: Counter[str]) -> None:
    """Run sequences, with an innocent job beside every second one."""
    bad = [await line.hostile.enqueue(n) for n in range(count)]
    good = [await line.innocent.enqueue(first + n) for n in range(count // 2)]
    results = [await job.result(timeout=60) for job in good]
    assert results == [first + n for n in range(count // 2)]
    await until(lambda: _none_is_running(line), "all jobs to end or to wait for something")
    await until(lambda: line.is_calm, "all slots to be free")
    for job in good:
        info = await job.info()
        assert (info.attempt, info.failures, info.stalls, info.progress, info.steps) == (
            (1, 0, 0, None, ())
        ), info
        assert await job.logs() == []
    for job in bad:
        info = await job.info()
        assert info.state is not State.ACTIVE, info
        reason = info.state.value if info.failure is None else info.failure.reason
        ends[reason] += 1
    pool = line.pool
    assert len(pool._children) <= AT_ONCE
    idle = [child for some in pool._idle.values() for child in some]
    assert len(idle) == len(set(idle))
    assert all(child.run is None for child in (*pool._children, *pool._ending))


async def _none_is_running(line: Line) -> bool:
    counts = await line.queue.counts()
    return counts[State.ACTIVE] == counts[State.WAITING] == 0
