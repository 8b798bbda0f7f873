"""The events of JobService: replay from a position, several queues, and live without polling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc import StatusCode

from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server import events
from tests.server.serving import PATIENCE_S, RunningServer, complete, refused

WITHIN = PATIENCE_S


def submit(server: RunningServer, queue: str, *ids: str) -> None:
    """Submit jobs in one call."""
    jobs = [common.NewJob(queue=queue, name="n", id=id) for id in ids]
    server.jobs.SubmitMany(pb.SubmitManyRequest(jobs=jobs), timeout=WITHIN)


def follow(
    server: RunningServer, *queues: pb.EventsPosition, until_now: bool = False
) -> Iterator[pb.EventsResponse]:
    """A stream of events."""
    request = pb.EventsRequest(queues=queues, until_now=until_now)
    return iter(server.jobs.Events(request, timeout=WITHIN))


def kept(server: RunningServer, queue: str, after: str) -> list[str]:
    """Jobs and kinds of the events after a position that are there now."""
    stream = follow(server, pb.EventsPosition(queue=queue, after=after), until_now=True)
    return [f"{event.job} {event.kind}" for reply in stream for event in reply.events]


def test_events_are_replayed_from_a_position(running_server: RunningServer) -> None:
    submit(running_server, "q", "a", "b")
    (first,) = follow(running_server, pb.EventsPosition(queue="q", after="0"), until_now=True)
    assert [event.number for event in first.events] == [1, 2]
    complete(running_server, "q")
    assert kept(running_server, "q", first.position) == ["a started", "a completed"]
    assert kept(running_server, "q", "0")[:2] == ["a accepted", "b accepted"]
    event = first.events[0]
    assert (event.tenant, event.queue, event.name, event.state) == ("default", "q", "n", "waiting")


def test_a_long_log_is_replayed_whole_in_order(running_server: RunningServer) -> None:
    ids = [f"j{n:04}" for n in range(1700)]
    submit(running_server, "q", *ids)
    stream = list(follow(running_server, pb.EventsPosition(queue="q", after="0"), until_now=True))
    assert [event.job for reply in stream for event in reply.events] == ids
    assert all(reply.position for reply in stream)


def test_live_events_of_several_queues_come_by_signals(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "CHECK_AGAIN_S", 600.0)  # nothing comes without a signal
    submit(running_server, "q", "before")
    stream = follow(
        running_server,
        pb.EventsPosition(queue="q"),
        pb.EventsPosition(queue="other", after="0"),
    )
    begun = [next(stream), next(stream)]
    assert [reply.queue for reply in begun] == ["q", "other"]
    assert not any(reply.events for reply in begun)
    for queue, id in (("other", "x"), ("q", "y"), ("q", "z")):
        submit(running_server, queue, id)
        reply = next(stream)
        assert (reply.queue, [event.job for event in reply.events]) == (queue, [id])


def test_a_live_stream_waits_for_signals_and_does_not_poll(running_server: RunningServer) -> None:
    reads: list[str] = []
    store = running_server.context.store
    original = store.read_events

    async def counted(queue: object, **options: object) -> object:
        reads.append(str(queue))
        return await original(queue, **options)  # type: ignore[arg-type]

    store.read_events = counted  # type: ignore[method-assign,assignment]
    stream = follow(running_server, pb.EventsPosition(queue="q", after="0"))
    next(stream)
    submit(running_server, "q", "a")
    assert next(stream).events[0].job == "a"
    submit(running_server, "q", "b")
    assert next(stream).events[0].job == "b"
    # The end of the log at the start, an empty look, and at most two reads per signal.
    assert len(reads) <= 8, reads


def test_a_reader_continues_where_it_has_acknowledged(running_server: RunningServer) -> None:
    submit(running_server, "q", "a")
    mine = pb.EventsPosition(queue="q", reader="audit")
    (reply,) = follow(running_server, mine, until_now=True)
    assert [event.job for event in reply.events] == ["a"]
    ack = running_server.jobs.AckEvents
    asked = ack(pb.AckEventsRequest(queue="q", reader="audit"), timeout=WITHIN)
    assert asked.position == "0", "a new reader is registered at the beginning"
    ack(pb.AckEventsRequest(queue="q", reader="audit", position=reply.position), timeout=WITHIN)
    submit(running_server, "q", "b")
    (reply,) = follow(running_server, mine, until_now=True)
    assert [event.job for event in reply.events] == ["b"]
    nobody = ack(pb.AckEventsRequest(queue="q", reader="nobody"), timeout=WITHIN)
    assert nobody.position == ""


def test_a_silent_stream_says_that_it_is_alive(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_ALIVE_S", 0.1)
    monkeypatch.setattr(events, "CHECK_AGAIN_S", 0.1)
    stream = follow(running_server, pb.EventsPosition(queue="q", after="0"))
    replies = [next(stream) for _ in range(3)]
    assert [(reply.queue, reply.position, len(reply.events)) for reply in replies] == [
        ("q", "0", 0)
    ] * 3


def test_wrong_requests_are_invalid(running_server: RunningServer) -> None:
    submit(running_server, "q", "a")
    with refused(StatusCode.INVALID_ARGUMENT, "from 1 to 100 queues"):
        list(follow(running_server))
    with refused(StatusCode.INVALID_ARGUMENT, "named twice"):
        list(follow(running_server, pb.EventsPosition(queue="q"), pb.EventsPosition(queue="q")))
    with refused(StatusCode.INVALID_ARGUMENT, "not both"):
        list(follow(running_server, pb.EventsPosition(queue="q", after="0", reader="r")))
    with refused(StatusCode.INVALID_ARGUMENT, "is not a position"):
        list(follow(running_server, pb.EventsPosition(queue="q", after="nonsense")))
