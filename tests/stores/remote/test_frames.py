"""What crosses the exchange stream: frames, calls of the contract, and errors."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from jobq import errors
from jobq.core.records.jobs import JobSpec, PutResult, QueueName
from jobq.core.records.states import State
from jobq.rpc import contract, frames
from jobq.rpc.frames import Beat, Call, Refusal, Unpacker, error_of, pack, refusal_of
from jobq.rpc.v1 import workers_pb2
from jobq.stores.base import Store

QUEUE = QueueName("acme", "work")


def test_every_call_of_the_contract_can_be_sent() -> None:
    calls = {
        name
        for name, function in inspect.getmembers(Store, inspect.isfunction)
        if not name.startswith("_")
    }
    assert calls - contract.METHODS.keys() == {"migrate", "aclose", "listen"}
    assert contract.METHODS.keys() <= calls
    assert contract.METHODS.keys() > contract.READS


def test_frames_are_messages_of_the_proto() -> None:
    (message,) = pack([Beat(), Call(7, "put", contract.raw([1]))])
    parsed = workers_pb2.Frame.FromString(message)
    assert parsed.SerializeToString() == message
    assert Unpacker().feed(message) == Unpacker().feed(
        workers_pb2.Frame(body=parsed.body).SerializeToString()
    )


@pytest.mark.parametrize("size", [0, 100, frames.CHUNK - 1, frames.CHUNK, 3 * frames.CHUNK + 1])
def test_a_packet_of_any_size_arrives_whole(size: int) -> None:
    call = Call(1, "put", contract.raw(b"x" * size))
    messages = pack([call, Beat()])
    assert all(len(message) < frames.CHUNK + 10 for message in messages)
    unpacker = Unpacker()
    found = [frame for message in messages for frame in unpacker.feed(message)]
    assert len(found) == 2
    assert isinstance(found[0], Call)
    assert msgspec.msgpack.decode(found[0].arguments) == b"x" * size


@pytest.mark.parametrize(
    "message",
    [b"", b"\x0a", b"\x0a\x00", b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\xff\xff", b"\x12\x01\x00"],
)
def test_bytes_that_are_no_frame_are_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a Frame"):
        Unpacker().feed(message)


def test_a_packet_that_never_ends_is_refused() -> None:
    unpacker = Unpacker(max_packet=1000)
    (part, *_) = pack([Call(1, "put", contract.raw(b"x" * 2 * frames.CHUNK))])
    with pytest.raises(ValueError, match="1,000 bytes"):
        unpacker.feed(part)


def test_arguments_of_an_older_client_get_the_defaults() -> None:
    put = contract.METHODS["put"]
    spec = JobSpec(queue=QUEUE, id="a", name="task", payload=b"\xff")
    arguments = put.read_arguments(frames.encode([[spec]]))
    assert arguments == put.arguments([spec], None, True)


def test_arguments_of_a_newer_client_are_read_as_far_as_they_are_known() -> None:
    put = contract.METHODS["put"]
    assert put.read_arguments(frames.encode([[], None, True, "new"])) == put.arguments([])


def test_replies_are_read_as_they_were_written() -> None:
    put = contract.METHODS["put"]
    results = [PutResult(id="a", life=0, state=State.WAITING)]
    assert put.read(put.write(results)) == results


def test_every_error_arrives_as_itself() -> None:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.JobqError) and name != "JobFailed":
            error = error_of(refusal_of(1, kind("what happened")))
            assert type(error) is kind
            assert str(error) == "what happened"


def test_a_full_queue_arrives_with_its_numbers() -> None:
    full = error_of(refusal_of(1, errors.QueueFull("full", "work", 10, refused=3)))
    assert isinstance(full, errors.QueueFull)
    assert (full.queue, full.max_waiting, full.refused) == ("work", 10, 3)


def test_an_error_of_a_newer_server_is_still_an_error_of_jobq() -> None:
    error = error_of(Refusal(1, "TooColdToday", "brr", {"celsius": -5}))
    assert type(error) is errors.JobqError
    assert str(error) == "brr"
