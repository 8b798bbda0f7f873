"""The line between a worker and its children is hostile: a handler can send anything.

Whatever comes, the worker kills that child and fails the job that it runs. The slot comes back, the
child is replaced, and no other job notices.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest

from jobq import JobFailed, State, Worker
from jobq.core.records.defaults import LOG_LINE
from jobq.core.records.failures import MAX_MESSAGE, MAX_TRACEBACK, MAX_TYPE
from jobq.core.records.jobs import (
    MAX_AFTER,
    Block,
    Complete,
    Edge,
    Fail,
    Failure,
    JobKey,
    JobSpec,
    QueueName,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.core.values.checks import MAX_ID_LENGTH, MAX_STEPS_BYTES
from jobq.executors.pool.child import Child
from jobq.executors.pool.messages import (
    LEGAL,
    SHORT,
    WINDOW,
    AddRequest,
    Done,
    Frames,
    FromChild,
    Incoherent,
    KeepRequest,
    NoteRequest,
    Ready,
    Shared,
    SharedFile,
    Start,
    Stopped,
    Unready,
    decode_from_child,
    encode,
    frame,
    longest,
)
from jobq.executors.pool.messages import State as ChildState
from tests.executors.apps import hostile
from tests.executors.peers import Peer, PlayedPool, completed, echo, played
from tests.waiting import until

KINDS: tuple[type[FromChild], ...] = get_args(FromChild)
STATES = tuple(LEGAL)
Send = Callable[[Peer], None]


def message(kind: type[FromChild], start: Start | None) -> FromChild:
    """A message of this kind, with a content that is right for the job."""
    if kind is Done:
        assert start is not None
        return completed(start)
    if kind is Unready:
        return Unready("it cannot start")
    if kind is NoteRequest:
        return NoteRequest(1, b"1", ("a line",))
    if kind is KeepRequest:
        return KeepRequest(1, b"1", (("step", b"x"),))
    if kind is AddRequest:
        return AddRequest(1, "0", spec(), "memory://nowhere")
    if kind is Stopped:
        return Stopped(0 if start is None else start.n)
    return kind()  # type: ignore[call-arg]


def spec(**options: Any) -> JobSpec:
    given = {"queue": QueueName("default", "line"), "id": "x", "name": "x", "payload": b"[[],{}]"}
    return JobSpec(**{**given, **options})


async def still_works(played_pool: PlayedPool) -> None:
    """Innocent jobs run as if nothing had happened, in a pool that is whole again."""
    jobs = [await played_pool.innocent.enqueue(n) for n in range(6)]
    assert [await job.result(timeout=20) for job in jobs] == list(range(6))
    for job in jobs:
        info = await job.info()
        assert (info.attempt, info.failures, info.progress, info.steps) == (1, 0, None, ())
        assert await job.logs() == []
    await until(lambda: played_pool.is_calm, "all slots to be free")
    assert len(played_pool.pool._children) <= 2


async def in_state(played_pool: PlayedPool, state: ChildState, send: Send) -> tuple[Peer, Any]:
    """Let a peer send when its child is in this state. Returns the peer, and its job if it has
    one."""
    if state in (ChildState.BUSY, ChildState.ASKED):
        before = len(sent)
        job = await played_pool.hostile.enqueue(state.name)
        await until(lambda: len(sent) > before, "the peer to send")
        return sent[-1], job
    if state is ChildState.IDLE:
        peer = played_pool.peers[0]
        send(peer)
        return peer, None
    await played_pool.innocent.call(1)
    armed.append(True)
    if state is ChildState.STARTING:
        next(peer for peer in played_pool.peers if peer.start is not None).die(1)
    else:
        await played_pool.innocent.call(1)
    await until(lambda: len(sent) > 0, "the peer to send")
    return sent[-1], None


sent: list[Peer] = []
"""The peers that have sent what their test is about."""
armed: list[bool] = []
"""Whether the next peer that starts or ends sends it."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    sent.clear()
    armed.clear()


def pool_for(monkeypatch: pytest.MonkeyPatch, state: ChildState, send: Send) -> Any:
    """A worker with a peer that sends in this state."""

    def now(peer: Peer) -> None:
        send(peer)
        sent.append(peer)

    def hostile(peer: Peer, start: Start) -> None:
        if state is ChildState.BUSY:
            now(peer)
        else:
            peer.at_stop = now

    def on_start(peer: Peer) -> None:
        if state is ChildState.STARTING and armed:
            armed.clear()
            peer.at_ready = now
        if state is ChildState.ENDING:
            peer.at_end = lambda peer: now(peer) if armed else peer.die(0)

    return played(
        monkeypatch,
        hostile,
        on_start=on_start,
        timeout=0.05 if state is ChildState.ASKED else None,
        grace=20,
        pool_max_jobs=1 if state is ChildState.ENDING else None,
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
async def test_every_message_in_every_state_does_what_the_table_says(
    monkeypatch: pytest.MonkeyPatch, state: ChildState, kind: type[FromChild]
) -> None:
    expected = LEGAL[state].get(kind, ChildState.BROKEN)

    def send(peer: Peer) -> None:
        peer.say(message(kind, peer.start or other))

    async with pool_for(monkeypatch, state, send) as played_pool:
        other = await _some_start(played_pool)
        peer, job = await in_state(played_pool, state, send)
        await until(lambda: peer.child.state is expected, f"{expected}")
        if expected is ChildState.BROKEN:
            await until(lambda: peer.dead, "the child to be killed")
            words = f"{kind.__name__} while it {state.value}" if LEGAL[state] else "something"
            assert words in str(peer.child._why)
        elif kind in (NoteRequest, KeepRequest, AddRequest):
            assert peer.start is not None
            await until(lambda: peer.replies, "the reply")
            peer.say(completed(peer.start))
        elif kind is Unready:
            peer.die(1)
        if job is not None:
            info = await job.wait(timeout=20)
            reason = None if info.failure is None else info.failure.reason
            assert reason == (
                "crashed"
                if expected is ChildState.BROKEN
                else "timeout"
                if kind is Stopped
                else None
            )
        armed.clear()
        await still_works(played_pool)


async def _some_start(played_pool: PlayedPool) -> Start:
    """What a job looked like that has ended: its id and its token are known to hostile peers."""
    await played_pool.innocent.call(0)
    return next(peer.start for peer in played_pool.peers if peer.start is not None)


BAD: dict[str, bytes] = {
    "nothing": b"\0\0\0\0",
    "not MessagePack": b"\0\0\0\4\xc1\xc1\xc1\xc1",
    "a number": b"\0\0\0\1\1",
    "an unknown tag": b"\0\0\0\2\x91\x63",
    "a string as tag": b"\0\0\0\3\x91\xa1x",
    "bytes behind a message": b"\0\0\0\3\x91\x0d\0",
    "half a message in a frame": b"\0\0\0\2\x93\x0e",
    "bad UTF-8": b"\0\0\0\7\x94\x0e\x01\xc0\x91\xa1\xff",
    "a lone surrogate": b"\0\0\0\x09\x94\x0e\x01\xc0\x91\xa3\xed\xa0\x80",
    "arrays in arrays": (60_000).to_bytes(4, "big") + b"\x92\x0d" + b"\x91" * 59_998,
    "maps in maps": (60_000).to_bytes(4, "big") + b"\x92\x0d" + b"\x81\x01" * 29_999,
    "an array of 4 billion": b"\0\0\0\x09\x94\x0e\x01\xc0\xdd\xff\xff\xff\xff",
    "4 GiB of bytes": b"\0\0\0\x08\x93\x0e\x01\xc6\xff\xff\xff\xff",
    "a frame of 4 GiB": b"\xff\xff\xff\xff",
    "a frame that is too large by one": (longest(2**20) + 1).to_bytes(4, "big"),
    "lines without end": frame(NoteRequest(1, None, ("x",) * 1001)),
    "a line without end": frame(NoteRequest(1, None, ("x" * 10_101,))),
    "steps without end": frame(KeepRequest(1, None, (("x", b""),) * 1001)),
    "meta without end": frame(
        AddRequest(1, "0", spec(meta={str(n): "" for n in range(4097)}), "memory://x")
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
async def test_what_is_no_message_ends_that_child_only(
    monkeypatch: pytest.MonkeyPatch, state: ChildState, bad: bytes
) -> None:
    def send(peer: Peer) -> None:
        peer.send(bad)

    async with pool_for(monkeypatch, state, send) as played_pool:
        peer, job = await in_state(played_pool, state, send)
        await until(lambda: peer.dead, "the child to be killed")
        assert peer.child.state is ChildState.BROKEN
        if job is not None:
            with pytest.raises(JobFailed, match="was killed: it sent"):
                await job.result(timeout=20)
        armed.clear()
        await still_works(played_pool)


async def test_a_busy_child_that_says_ready_gets_no_second_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It got one: the innocent job failed for good, and the first one kept its slot for ever."""
    async with played(
        monkeypatch, lambda peer, start: peer.say(Ready()), pool=1, timeout=20
    ) as played_pool:
        job = await played_pool.hostile.enqueue(1)
        innocent = [await played_pool.innocent.enqueue(n) for n in range(5)]
        assert [await each.result(timeout=10) for each in innocent] == list(range(5))
        failure = (await job.wait(timeout=10)).failure
        assert failure is not None
        assert failure.message.endswith("it sent Ready while it runs a job")
        await still_works(played_pool)


WRONG_ENDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an id": lambda ref: Complete(**{**ref, "id": "other"}),
    "a token": lambda ref: Complete(**{**ref, "token": "other"}),
    "a queue": lambda ref: Complete(**{**ref, "queue": QueueName("default", "other")}),
    "a tenant": lambda ref: Complete(**{**ref, "queue": QueueName("other", "line")}),
    "a result": lambda ref: Complete(**ref, result=b"x" * (2**20 + 1)),
    "a saved value": lambda ref: SnoozeFor(**ref, saved=b"x" * (2**20 + 1)),
    "a negative delay": lambda ref: SnoozeFor(**ref, delay_ms=-1),
    "a delay for ever": lambda ref: SnoozeFor(**ref, delay_ms=2**63),
    "a retry for ever": lambda ref: RetryLater(**ref, failure=_failure(), delay_ms=2**63),
    "a long message": lambda ref: Fail(**ref, failure=_failure(message="x" * 2001)),
    "a long type": lambda ref: Fail(**ref, failure=_failure(type="x" * 257)),
    "a long traceback": lambda ref: Fail(**ref, failure=_failure(traceback="x" * 4097)),
    "a strange fingerprint": lambda ref: Fail(**ref, failure=_failure(fingerprint="{\0}")),
    "a strange worker": lambda ref: Fail(**ref, failure=_failure(worker="x" * 1_025)),
    "a time": lambda ref: Fail(**ref, failure=_failure(at_ms=2**63)),
    "an attempt": lambda ref: Fail(**ref, failure=_failure(attempt=-1)),
    "a job of another tenant": lambda ref: Block(**ref, after=(_edge("other", "x"),)),
    "a job without an id": lambda ref: Block(**ref, after=(_edge("default", ""),)),
    "a reserved signal": lambda ref: Block(**ref, signal="$jobq.child 0"),
    "signals seen": lambda ref: Block(**ref, signal="x", seen=-1),
    "a wait for ever": lambda ref: Block(**ref, signal="x", timeout_ms=2**62),
}


def _failure(**fields: Any) -> Failure:
    return Failure(**{"reason": "error", "type": "E", "message": "m", **fields})


def _edge(tenant: str, id: str) -> Edge:
    return Edge(JobKey(QueueName(tenant, "line"), id))


@pytest.mark.parametrize("made", WRONG_ENDS.values(), ids=WRONG_ENDS.keys())
async def test_an_end_that_no_run_of_the_job_can_have_is_none(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[dict[str, Any]], Any]
) -> None:
    def hostile(peer: Peer, start: Start) -> None:
        lease = start.lease
        peer.say(Done(start.n, made({"queue": lease.queue, "id": lease.id, "token": lease.token})))

    async with played(monkeypatch, hostile) as played_pool:
        with pytest.raises(JobFailed, match=r"was killed: it sent (the end of another job|an end)"):
            await (await played_pool.hostile.enqueue(1)).result(timeout=20)
        await still_works(played_pool)


async def test_a_byte_behind_the_end_of_a_job_ends_the_child_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hostile(peer: Peer, start: Start) -> None:
        peer.send(frame(completed(start)) + b"\0")

    async with played(monkeypatch, hostile) as played_pool:
        assert await (await played_pool.hostile.enqueue(1)).result(timeout=20) is None
        await until(lambda: any(peer.dead for peer in played_pool.peers), "the child to be killed")
        await still_works(played_pool)


async def test_a_child_cannot_end_a_job_that_another_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows id and token of that job."""
    running: list[tuple[Peer, Start]] = []

    def hostile(peer: Peer, start: Start) -> None:
        running.append((peer, start))
        if len(running) == 2:
            peer.say(completed(running[0][1], b'"forged"'))

    async with played(monkeypatch, hostile) as played_pool:
        first = await played_pool.hostile.enqueue(1)
        await until(lambda: running, "the first job")
        with pytest.raises(JobFailed, match="the end of another job"):
            await (await played_pool.hostile.enqueue(2)).result(timeout=20)
        assert (await first.info()).state is State.ACTIVE
        running[0][0].say(completed(running[0][1], b'"own"'))
        assert await first.result(timeout=20) == "own"


async def test_a_forged_end_before_the_real_one_does_not_harm_the_next_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process sends the real end when its next job has been sent, and even has begun."""
    ended: list[Start] = []

    def hostile(peer: Peer, start: Start) -> None:
        ended.append(start)
        peer.say(completed(start))

    def innocent(peer: Peer, start: Start) -> None:
        for one in ended:
            peer.say(completed(one, b'"late"'), Stopped(one.n))
        echo(peer, start)

    async with played(monkeypatch, hostile, innocent=innocent, pool=1) as played_pool:
        assert await (await played_pool.hostile.enqueue(1)).result(timeout=20) is None
        await still_works(played_pool)
        assert len(played_pool.peers) == 1


WRONG_CHILDREN: dict[str, tuple[dict[str, Any], str]] = {
    "another tenant": ({"queue": QueueName("other", "line")}, "another store or tenant"),
    "a priority": ({"priority": -1}, "priority"),
    "a schedule": ({"schedule": "nightly"}, "no schedule"),
    "an origin": ({"origin": "line/1"}, "no schedule"),
    "an edge to another tenant": ({"after": (_edge("other", "y"),)}, "another tenant"),
    "an id": ({"id": ""}, "id"),
}


@pytest.mark.parametrize(("fields", "words"), WRONG_CHILDREN.values(), ids=WRONG_CHILDREN.keys())
async def test_a_request_is_checked_like_anything_from_outside(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], words: str
) -> None:
    peers: list[Peer] = []

    def hostile(peer: Peer, start: Start) -> None:
        peers.append(peer)
        peer.say(AddRequest(1, "0", spec(**fields), played_pool.queue._context.url))

    async with played(monkeypatch, hostile) as played_pool:
        job = await played_pool.hostile.enqueue(1)
        await until(lambda: peers and peers[0].replies, "the reply")
        (reply,) = peers[0].replies
        assert reply.error is not None
        assert words in reply.error[1]
        peers[0].say(completed(peers[0].start))  # type: ignore[arg-type]
        await job.result(timeout=20)


@pytest.mark.rest("it waits for half a minute")
async def test_values_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    big, peers = b"x" * (2**20 + 1), []

    def hostile(peer: Peer, start: Start) -> None:
        peers.append(peer)
        peer.say(NoteRequest(1, big), KeepRequest(2, big), KeepRequest(3, None, (("s", big),)))

    async with played(monkeypatch, hostile) as played_pool:
        await played_pool.hostile.enqueue(1)
        await until(lambda: peers and len(peers[0].replies) == 3, "the replies")
        assert [reply.error and reply.error[0] for reply in peers[0].replies] == (
            ["PayloadTooLarge"] * 3
        )


async def test_a_child_that_does_not_wait_for_replies_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hostile(peer: Peer, start: Start) -> None:
        peer.say(*(NoteRequest(n, b"1") for n in range(WINDOW + 1)))

    async with played(monkeypatch, hostile) as played_pool:
        with pytest.raises(JobFailed, match="requests without waiting"):
            await (await played_pool.hostile.enqueue(1)).result(timeout=20)
        await still_works(played_pool)


async def test_as_many_requests_as_the_window_allows_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hostile(peer: Peer, start: Start) -> None:
        peer.say(*(NoteRequest(n, b"1") for n in range(WINDOW)))

    async with played(monkeypatch, hostile) as played_pool:
        job = await played_pool.hostile.enqueue(1)
        await until(lambda: any(len(p.replies) == WINDOW for p in played_pool.peers), "the replies")
        peer = next(p for p in played_pool.peers if p.replies)
        peer.say(*(NoteRequest(n, b"2") for n in range(WINDOW)))  # the window is open again
        await until(lambda: len(peer.replies) == 2 * WINDOW, "the replies")
        assert peer.start is not None
        peer.say(completed(peer.start))
        assert await job.result(timeout=20) is None


async def test_a_child_that_closes_the_line_and_lives_on_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with played(monkeypatch, lambda peer, start: peer.hang_up()) as played_pool:
        with pytest.raises(JobFailed, match="it closed the line and did not end"):
            await (await played_pool.hostile.enqueue(1)).result(timeout=20)
        idle = played_pool.peers[-1]
        idle.hang_up()  # the next job must not be sent to it
        await still_works(played_pool)
        await until(lambda: idle.dead, "the child to be killed")


async def test_what_was_sent_before_a_job_was_is_not_about_that_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop learns in one step that a child has sent something, and that a job waits. When
    it reads what was sent, the child has begun the job."""
    async with played(monkeypatch, lambda peer, start: None, pool=1) as played_pool:
        peer = played_pool.peers[0]
        take = played_pool.pool.take

        def sends_first(group: Any) -> Any:
            if peer.start is None and not peer.dead:
                peer.say(Ready())
                os.pwrite(peer.child._shared.descriptor, (1).to_bytes(8, sys.byteorder), 0)
            return take(group)

        monkeypatch.setattr(played_pool.pool, "take", sends_first)
        await still_works(played_pool)
        assert peer.dead
        assert peer.start is None


async def test_a_job_whose_child_drips_or_never_reads_ends_with_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drips(peer: Peer, start: Start) -> None:
        data = frame(NoteRequest(1, b"x" * 500_000))

        def drop(n: int) -> None:
            peer.send(data[n : n + 1])
            asyncio.get_running_loop().call_later(0.001, drop, n + 1)

        drop(0)

    async with played(monkeypatch, drips, timeout=0.1, grace=0.1) as played_pool:
        info = await (await played_pool.hostile.enqueue(1)).wait(timeout=20)
        assert info.failure is not None
        assert info.failure.reason == "timeout"
        await still_works(played_pool)


async def test_a_child_that_denies_to_have_begun_its_job_does_not_get_its_timeout_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another child gets a job that was not begun. So the job would run five times as long."""
    starts: list[Start] = []

    def hostile(peer: Peer, start: Start) -> None:
        starts.append(start)
        os.pwrite(peer.child._shared.descriptor, bytes(8), 0)
        asyncio.get_running_loop().call_later(0.3, peer.die, 1)

    async with played(monkeypatch, hostile, timeout=0.4, grace=0.05) as played_pool:
        info = await (await played_pool.hostile.enqueue(1)).wait(timeout=20)
        assert info.failure is not None
        assert info.failure.reason == "timeout"
        assert len(starts) <= 2
        await still_works(played_pool)


async def test_a_read_that_takes_long_is_followed_by_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that sends without a pause takes a fifth of the event loop, and is heard in the
    end."""
    resumed: list[Child] = []
    resume = Child._resume

    def counted(child: Child) -> None:
        resumed.append(child)
        resume(child)

    monkeypatch.setattr("jobq.executors.pool.child._LONG_S", -1.0)
    monkeypatch.setattr(Child, "_resume", counted)

    def hostile(peer: Peer, start: Start) -> None:
        peer.say(NoteRequest(1, b"x" * 2**20), completed(start))

    async with played(monkeypatch, hostile) as played_pool:
        assert await (await played_pool.hostile.enqueue(1)).result(timeout=20) is None
        assert len(resumed) > 10
        await still_works(played_pool)


async def test_a_child_that_prints_without_a_job_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jobq")
    async with played(monkeypatch, lambda peer, start: None) as played_pool:
        peer = played_pool.peers[0]
        for _ in range(100):
            peer.write(b"spam\n")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        printed = [record for record in caplog.records if "spam" in record.getMessage()]
        assert 0 < len(printed) <= 20
        await still_works(played_pool)


# ── frames ──


def test_a_stream_is_cut_into_frames_wherever_it_is_split() -> None:
    bodies = [b"", b"a", b"bc" * 50, b"d"]
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            frames = Frames(100)
            parts = (stream[:first], stream[first:second], stream[second:])
            assert [bytes(body) for part in parts for body in frames.feed(part)] == bodies
            assert not frames.partial


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    for parts in ([b"\0\0\0\x65"], [b"\0\0", b"\0\x65"]):
        frames = Frames(100)
        with pytest.raises(Incoherent, match="101 bytes, of 100 at most"):
            [list(frames.feed(part)) for part in parts]


def _largest() -> dict[str, FromChild]:
    ref: dict[str, Any] = {
        "queue": QueueName("ü" * 128, "ü" * 128),
        "id": "ü" * 256,
        "token": "t" * 64,
    }
    payload = b"x" * 2**20
    edges = tuple(Edge(JobKey(QueueName("tenant", "queue"), f"{n:060}")) for n in range(MAX_AFTER))
    failure = _failure(
        type="\U0001f600" * MAX_TYPE,
        message="\U0001f600" * MAX_MESSAGE,
        traceback="\U0001f600" * MAX_TRACEBACK,
    )
    meta = {"n": "x" * 4000}
    label = "%25" * MAX_ID_LENGTH
    return {
        "result": Done(1, Complete(**ref, result=payload)),
        "failure": Done(1, Fail(**ref, failure=failure)),
        "wait": Done(1, Block(**ref, after=edges, saved=payload)),
        "release": Done(1, Release(**ref)),
        "progress": NoteRequest(2**63, payload, ("\U0001f600" * LOG_LINE,)),
        "saved": KeepRequest(2**63, payload, (("s", b"x" * MAX_STEPS_BYTES),)),
        "child": AddRequest(
            2**63, label, spec(payload=payload, after=edges, meta=meta), "x" * 2000
        ),
    }


@pytest.mark.parametrize("name", list(_largest()))
def test_the_largest_legal_messages_fit(name: str) -> None:
    body = encode(_largest()[name])
    assert len(body) <= longest(2**20)
    decode_from_child(body)


def test_a_message_may_not_be_much_larger_than_the_largest_legal_one() -> None:
    assert longest(2**20) < 1.25 * max(len(encode(each)) for each in _largest().values())
    assert len(frame(Unready("\U0001f600" * MAX_MESSAGE))) < SHORT


def test_what_a_child_counts_is_read_without_mapping_its_memory() -> None:
    """A handler can truncate the memory. A worker that maps it would be killed by SIGBUS."""
    numbers = SharedFile()
    child = Shared(numbers.descriptor)
    child.begin(3)
    numbers.ask(4)
    assert (numbers.has_begun(3), numbers.has_begun(4), child.asked) == (True, False, 4)
    os.ftruncate(numbers.descriptor, 0)
    assert not numbers.has_begun(3)
    numbers.close()


# ── real processes ──


@pytest.fixture
async def real() -> AsyncIterator[Worker]:
    """A worker with children that are processes."""
    url = f"memory://{uuid4().hex}"
    for one in (hostile.queue, hostile.large):
        one._context.connection.move(url)
    async with hostile.queue, hostile.large, Worker(hostile.queue, pool=2) as worker:
        yield worker
    for one in (hostile.queue, hostile.large):
        await one._context.connection.move_back()


async def _all_is_well(worker: Worker) -> None:
    jobs = [await hostile.innocent.enqueue(n) for n in range(6)]
    assert [await job.result(timeout=30) for job in jobs] == list(range(6))
    assert {(await job.info()).attempt for job in jobs} == {1}
    slots = worker._slots
    await until(lambda: slots is not None and slots.free == slots.total, "all slots to be free")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(Ready()), "it sent Ready while it runs a job"),
        (BAD["arrays in arrays"], "it sent what is no message"),
        (b"\0\0", "was killed: it sent"),  # the length of the next message is wrong
    ],
)
async def test_a_handler_that_writes_to_the_line_fails_its_job_only(
    real: Worker, data: bytes, words: str
) -> None:
    with pytest.raises(JobFailed, match=words):
        await hostile.writes.options(call_timeout=30).call(base64.b64encode(data).decode())
    await _all_is_well(real)


async def test_a_handler_that_truncates_the_shared_memory_does_not_kill_its_worker(
    real: Worker,
) -> None:
    with pytest.raises(JobFailed, match="ended with exit code 3"):
        await hostile.truncates_and_dies.options(call_timeout=60).call()
    await _all_is_well(real)


async def test_a_process_that_outlives_its_child_does_not_keep_the_worker_busy(
    real: Worker, tmp_path: Path
) -> None:
    with pytest.raises(JobFailed, match=r"exit code 3|without waiting for replies"):
        await hostile.leaves_a_flood.options(call_timeout=30).call(str(tmp_path / "begun"))
    await _all_is_well(real)


async def test_a_process_that_closes_the_line_does_not_keep_its_slot(real: Worker) -> None:
    with pytest.raises(JobFailed, match=r"closed the line|did not end within"):
        await hostile.closes_the_line_and_waits.options(call_timeout=30).call()
    await _all_is_well(real)


async def test_a_handler_may_ask_for_more_at_once_than_the_line_takes(real: Worker) -> None:
    job = await hostile.asks_much_at_once.enqueue(10 * WINDOW)
    assert await job.result(timeout=60) == 10 * WINDOW
    assert sorted(await job.logs()) == sorted(f"line {n}" for n in range(10 * WINDOW))


async def test_a_child_job_that_does_not_fit_the_line_is_refused_in_the_handler(
    real: Worker,
) -> None:
    words = await hostile.adds_a_child_that_is_too_large.options(call_timeout=60).call()
    assert words.startswith("PayloadTooLarge: a message of the job to its worker takes 16,7")
    await _all_is_well(real)
