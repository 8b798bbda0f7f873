"""What one client of the exchange stream can make a server keep in memory."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.workers import WorkerRecord
from jobq.errors import InvalidJob
from jobq.rpc import contract, frames
from jobq.server import exchange
from jobq.server.context import Proof
from jobq.server.exchange import ExchangeService, Stream
from tests.server.serving import PATIENCE_S, RunningServer, running
from tests.waiting import nothing_happens, wait_until

QUEUE = QueueName("default", "large")
LARGE = 2**20
LIMIT = 4 * LARGE


class Slow:
    """A client that sends calls, and reads only when it is told to."""

    def __init__(self, server: RunningServer) -> None:
        self._outgoing: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        channel: Any = server.channel  # its stubs know no messages that are plain bytes
        self._replies = channel.stream_stream(frames.METHOD)(
            iter(self._messages()), timeout=PATIENCE_S
        )
        self._outgoing.put(frames.pack([frames.Hello(frames.VERSION)]))

    def _messages(self) -> Iterator[bytes]:
        while (messages := self._outgoing.get()) is not None:
            yield from messages

    def get(self, times: int) -> None:
        """Ask for the large job."""
        arguments = contract.raw(contract.METHODS["get"].arguments([JobKey(QUEUE, "1")]))
        for _ in range(times):
            call = frames.Call(next(self._numbers), "get", arguments)
            self._outgoing.put(frames.pack([call]))

    def read(self, replies: int) -> int:
        """Read until so many replies have arrived."""
        unpacker, found = frames.Unpacker(), 0
        for message in self._replies:
            found += sum(isinstance(each, frames.Reply) for each in unpacker.feed(message))
            if found >= replies:
                break
        return found

    def close(self) -> None:
        self._outgoing.put(None)
        self._replies.cancel()


def stream_of(server: RunningServer) -> Stream:
    (service,) = (each for each in server.host.services if isinstance(each, ExchangeService))
    found: list[Stream] = wait_until(lambda: list(service.streams), "the stream")
    return found[0]


class Unread(NamedTuple):
    """A client that has asked for more than the server keeps for it, and reads nothing."""

    server: RunningServer
    client: Slow
    stream: Stream


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Unread]:
    monkeypatch.setattr(exchange, "_MAX_UNSENT_BYTES", LIMIT)
    with running() as server:
        job = JobSpec(queue=QUEUE, id="1", name="n", payload=b"x" * LARGE)
        server.do(server.context.store.put([job]))
        client = Slow(server)
        try:
            client.get(40)
            stream = stream_of(server)
            wait_until(lambda: not stream._room.is_set(), "replies that wait")
            yield Unread(server, client, stream)
        finally:
            client.close()


def test_calls_wait_while_a_client_does_not_read_its_replies(unread: Unread) -> None:
    server, client, stream = unread
    client.get(100)
    wait_until(lambda: len(stream._calls) >= 100, "calls that wait")
    server.do(nothing_happens(0.2, "the server makes more replies"))
    assert LIMIT < stream._unsent_bytes < 3 * LIMIT
    assert len(stream._calls) >= 100
    assert client.read(140) == 140
    wait_until(stream._room.is_set, "room")


def test_a_client_that_never_reads_loses_its_stream(unread: Unread) -> None:
    later = unread.stream._loop.time() + exchange.DEAF_MS / 1000 + 1
    unread.stream._heard = later  # the client still sends beats
    unread.server.call(lambda: unread.stream.pace(later))
    assert unread.stream._over.is_set()


# ── what workers say about themselves ─────────────────────────────────────────────────────────────


def worker(**changed: Any) -> WorkerRecord:
    given: dict[str, Any] = {"name": "w", "host": "h", "pid": 1, "queues": (QUEUE,)}
    return WorkerRecord(**{**given, "concurrency": 1, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "h" * 256},
        {"host": "a\nb"},
        {"pid": -1},
        {"pid": 2**31},
        {"concurrency": -1},
        {"concurrency": 100_001},
        {"active": -1},
        {"started_ms": -1},
        {"seen_ms": 2**62},
        {"incarnation": "x" * 513},
        {"queues": (QUEUE,) * 10_001},
    ],
    ids=lambda changed: f"{next(iter(changed))}",
)
def test_a_heartbeat_that_no_worker_sends_is_refused(
    running_server: RunningServer, changed: dict[str, Any]
) -> None:
    store = running_server.context.guarded_by(Proof())
    with pytest.raises(InvalidJob):
        running_server.do(store.beat(worker(**changed), ttl_ms=1000))
    assert running_server.do(store.workers()) == []


def test_nobody_is_alive_or_leads_for_more_than_a_day(running_server: RunningServer) -> None:
    store = running_server.context.guarded_by(Proof())
    for ttl_ms in (0, -1, 86_400_001):
        with pytest.raises(InvalidJob, match="ttl_ms"):
            running_server.do(store.beat(worker(), ttl_ms=ttl_ms))
        with pytest.raises(InvalidJob, match="ttl_ms"):
            running_server.do(store.lead("upkeep", who="me", ttl_ms=ttl_ms))
    running_server.do(store.beat(worker(), ttl_ms=86_400_000))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(b"\xa5count\x91\x92\xa1\xff\xa1q", id="text that is not UTF-8"),
        pytest.param(b"\xa3put" + b"\x91" * 200_000 + b"\xc0", id="lists in lists"),
        pytest.param(b"\xa6listen\x91\x93\xa5ended\xc0\xa1\xff", id="a topic that is not UTF-8"),
        pytest.param(b"\xa6expect\x92\x92\xa1t\xa1q\xa1\xff", id="a job that is not UTF-8"),
    ],
)
def test_bytes_that_no_client_sends_are_an_error_of_the_client(
    running_server: RunningServer, call: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    hello, packet = frames.pack([frames.Hello(frames.VERSION)]), b"\x91\x94\x02\x01" + call
    channel: Any = running_server.channel
    replies = channel.stream_stream(frames.METHOD)(
        iter([*hello, frames._message(b"\0", packet)]), timeout=PATIENCE_S
    )
    unpacker = frames.Unpacker()
    found = [frame for message in replies for frame in unpacker.feed(message)]
    assert [each.error for each in found if isinstance(each, frames.Refusal)] == ["InvalidJob"]
    assert "Traceback" not in caplog.text
