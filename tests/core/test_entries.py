"""Entries of the event log: a damaged one is a gap, one of a newer jobq is not passed over."""

from __future__ import annotations

import msgspec
import pytest

from jobq.core.records.event_log import FORMAT, incarnation_of, pack, unpack
from jobq.core.records.jobs import QueueName
from jobq.errors import ConfigError

QUEUE = QueueName("default", "work")

DAMAGED: list[object] = [
    None,
    5,
    "text",
    b"bytes",
    {},
    {"a": 1},
    [],
    [FORMAT],
    [FORMAT, 1],
    [1],
    [0, 0, None, []],
    ["2", 1],
    [FORMAT, 1, "i", 0, None, 5],
    [FORMAT, 1, "i", 0, None, []],
    [FORMAT, 1, "i", 0, None, "accepted", "task"],
    [FORMAT, 1, "i", 0, None, [[1, 2]]],
    [FORMAT, "1", "i", 0, None, [[0] * 17]],
    [FORMAT, 1, "i", 0, None, [[999] * 17]],
]


@pytest.mark.parametrize("content", DAMAGED, ids=str)
def test_a_damaged_entry_is_a_gap(content: object) -> None:
    (event,) = unpack("log", "3", QUEUE, msgspec.msgpack.encode(content), shard=2)
    assert (event.kind, event.shard, event.number, event.id) == ("gap", 2, 0, "log-3-0-unreadable")


@pytest.mark.parametrize("content", DAMAGED, ids=str)
def test_the_incarnation_of_a_damaged_entry_can_be_asked_for(content: object) -> None:
    assert isinstance(incarnation_of(msgspec.msgpack.encode(content)), str)


def test_bytes_that_are_no_entry_at_all_are_a_gap_in_no_incarnation() -> None:
    assert [event.kind for event in unpack("log", "3", QUEUE, b"\x93\xff")] == ["gap"]
    assert incarnation_of(b"\x93\xff") == "unreadable"


def test_an_entry_that_a_newer_jobq_wrote_is_refused() -> None:
    newer = msgspec.msgpack.encode([FORMAT + 1, 1, "i", 0, None, []])
    with pytest.raises(ConfigError, match=f"format {FORMAT + 1}.*upgrade jobq"):
        unpack("log", "3", QUEUE, newer)


def test_the_incarnation_of_a_good_entry_is_the_one_it_was_written_in() -> None:
    assert incarnation_of(pack(1, "9f31c07a", 0, None, [])) == "9f31c07a"
    assert incarnation_of(msgspec.msgpack.encode([1, 0, None, []])) == ""
