"""Mutated sequences of messages from child processes: no slot is lost, no other job is touched.

JQ_FUZZ_CALLS says how many sequences (`make fuzz`: 100,000); tests/fuzz/sequences.py makes them.
The worker, its pool and its store are real, and the processes are played
(tests/executors/peers.py): a hostile handler can send whatever the test sends. Innocent jobs run
beside it, in the same children, and each of them must return its own result at its first attempt.
A few sequences are sent by handlers in real processes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from jobq import Queue, State, Worker
from jobq.executors.pool.messages import (
    Start,
    Stopped,
)
from jobq_conformance.examples import number
from tests.executors.apps import hostile
from tests.executors.peers import Peer, PlayedPool, echo, played
from tests.fuzz.sequences import Fuzzer
from tests.waiting import until

SEQUENCES = int(os.environ.get("JQ_FUZZ_CALLS", number(3_000)))
SEED = int(os.environ.get("JQ_FUZZ_SEED", "7"))
log = logging.getLogger("fuzz")
ROUND = 500
"""Sequences in one store. A new one follows, so that it stays small."""
AT_ONCE = 16


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
        for piece in self.fuzzer.sequence(start.n, lease, self.url):
            peer.send(piece)
        if end < 0.1:
            peer.hang_up()
        elif end < 0.2:
            peer.die(pick.choice((0, 1, -9, -11, -15)))
        elif end < 0.3:
            peer.at_stop = lambda peer: peer.say(Stopped(start.n))
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
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "jobq")
    monkeypatch.setattr("jobq.executors.pool.child._HANG_UP_S", 0.02)
    fuzzer, ends = Fuzzer(SEED), Counter[str]()
    strange: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))
    done = 0
    while done < SEQUENCES:
        count = min(ROUND, SEQUENCES - done)
        before = _open()
        handlers = Hostile(fuzzer)
        async with played(
            monkeypatch,
            handlers,
            innocent=handlers.innocent,
            timeout=0.05,
            grace=0.02,
            pool=AT_ONCE,
            concurrency=2 * AT_ONCE,
        ) as played_pool:
            handlers.url = played_pool.queue._context.url
            await _round(played_pool, count, done, ends)
        gc.collect()
        await until(partial(_closed, before), f"all to be closed but {sorted(before)}")
        assert not strange, strange[0]
        done += count
        log.info("%d sequences: %s after %s", done, dict(ends), dict(fuzzer.made))
    assert ends["completed"] > SEQUENCES / 100, ends
    assert ends["crashed"] > SEQUENCES / 10, ends


def _open() -> list[str]:
    """What this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listdir itself had open
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def _closed(before: list[str]) -> bool:
    return len(_open()) <= len(before)


async def _round(played_pool: PlayedPool, count: int, first: int, ends: Counter[str]) -> None:
    """Run sequences, with innocent jobs in between."""
    calls = [played_pool.hostile.bind(n) for n in range(count)]
    for n in range(count // 3):
        calls.insert(4 * n, played_pool.innocent.bind(first + n))
    jobs = await played_pool.queue.enqueue_many(calls)
    await until(
        lambda: played_pool.is_calm and _none_is_left(played_pool),
        "all jobs to end, and all slots to be free",
        seconds=300,
    )
    innocent = {job.id for n, job in enumerate(jobs) if n % 4 == 0 and n // 4 < count // 3}
    async for info in played_pool.queue.find():
        if info.id not in innocent:
            assert info.state is not State.ACTIVE, info
            ends[info.state.value if info.failure is None else info.failure.reason] += 1
            continue
        innocent.remove(info.id)
        assert (info.state, info.result, info.attempt, info.failures, info.stalls) == (
            (State.COMPLETED, info.args[0], 1, 0, 0)
        ), info
        assert info.progress is None
        if len(innocent) % 10 == 0:  # they take a call each
            assert (await played_pool.queue.job(info.id).info()).steps == ()
            assert await played_pool.queue.job(info.id).logs() == []
    assert not innocent
    pool = played_pool.pool
    assert len(pool._children) <= AT_ONCE
    idle = [child for some in pool._idle.values() for child in some]
    assert len(idle) == len(set(idle))
    assert all(child.run is None for child in (*pool._children, *pool._ending))


async def _none_is_left(played_pool: PlayedPool) -> bool:
    return await _is_done(played_pool.queue)


async def test_mutated_sequences_of_real_processes_touch_no_other_job() -> None:
    queue, count = hostile.queue, max(5, SEQUENCES // 300)
    queue._context.connection.move(f"memory://{uuid4().hex}")
    try:
        async with queue, Worker(queue, pool=2) as worker:
            calls = [hostile.sends_a_sequence.bind(SEED + n) for n in range(count)]
            bad = await queue.enqueue_many(calls)
            good = [await hostile.innocent.enqueue(n) for n in range(count)]
            await until(lambda: _is_done(queue), "all jobs to end", seconds=60 + 5 * count)
            slots = worker._slots
            assert slots is not None
            await until(lambda: slots.free == slots.total, "all slots to be free")
            assert [await job.result() for job in good] == list(range(count))
            assert {(await job.info()).attempt for job in good} == {1}
            assert [job for job in bad if (await job.info()).failure is not None]
    finally:
        await queue._context.connection.move_back()


async def _is_done(queue: Queue) -> bool:
    counts = await queue.counts()
    return counts[State.ACTIVE] == counts[State.WAITING] == 0
