"""Which jobs criteria mean, where a pass continues, and how fast it goes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobq.core.records.criteria import (
    Criteria,
    SelectionCursor,
    pack_cursor,
    pattern,
    pause_s,
    step_size,
    unpack_cursor,
)
from jobq.core.records.jobs import Failure, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.values.codec import JSON, MSGPACK
from jobq.errors import InvalidJob

QUEUE = QueueName("t", "q")
ERROR = Failure(reason="timeout", type="TimeoutError", message="took [5 s]", fingerprint="f00")


def job(**fields: object) -> JobRecord:
    """A failed job of the task `charge`."""
    whole = {
        "queue": QUEUE,
        "id": "j",
        "name": "charge",
        "state": State.FAILED,
        "payload": JSON.encode_call(["acme"], {"invoice": 7, "paid": True}),
        "created_ms": 1_000,
        "finished_ms": 2_000,
        "failure": ERROR,
        "meta": {"tenant": "acme"},
        **fields,
    }
    return JobRecord(**whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "same", "other"),
    [
        ("charge", ["charge"], ["charges", "Charge", ""]),
        ("charge*", ["charge", "charge.card"], ["recharge"]),
        ("*.card", ["charge.card", ".card"], ["charge.cards"]),
        ("a*b*c", ["abc", "a--b\n-c"], ["acb"]),
        ("[x]?*", ["[x]?", "[x]?y"], ["x", "xa"]),
        ("*", ["", "anything"], []),
        ("ab*ba", ["abba", "ab-ba"], ["aba"]),
        ("*a*a*", ["aa", "-a-a-"], ["a"]),
    ],
)
def test_only_the_star_of_a_pattern_stands_for_other_text(
    text: str, same: list[str], other: list[str]
) -> None:
    matches = pattern(text)
    assert [value for value in [*same, *other] if matches(value)] == same


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        (Criteria(), "match"),
        (Criteria(name="charge"), "match"),
        (Criteria(name="char*"), "match"),
        (Criteria(name="refund"), "other"),
        (Criteria(key="k"), "other"),
        (Criteria(error="TimeoutError"), "match"),
        (Criteria(error="timeout"), "match"),
        (Criteria(error="f00"), "match"),
        (Criteria(error="*took [5 s]"), "match"),
        (Criteria(error="Timeout"), "other"),
        (Criteria(meta={"tenant": "acme"}), "match"),
        (Criteria(meta={"tenant": "acme", "user": "x"}), "other"),
        (Criteria(arguments={"invoice": 7}), "match"),
        (Criteria(arguments={"invoice": 8}), "other"),
        (Criteria(arguments={"0": "acme"}), "match"),
        (Criteria(arguments={"customer": "acme"}), "match"),
        (Criteria(arguments={"paid": 1}), "other"),
        (Criteria(arguments={"nothing": None}), "other"),
        (Criteria(created_after_ms=1_000, created_before_ms=1_001), "match"),
        (Criteria(created_before_ms=1_000), "other"),
        (Criteria(ended_after_ms=2_001), "other"),
        (Criteria(name="charge", arguments={"invoice": 8}, error="timeout"), "other"),
    ],
)
def test_every_criterion_has_to_match(criteria: Criteria, expected: str) -> None:
    assert criteria.verdict(job(), ["customer"]) == expected


def test_a_job_that_has_not_failed_or_ended_matches_no_error_and_no_end() -> None:
    waiting = job(state=State.WAITING, failure=None, finished_ms=None)
    assert Criteria(error="*").verdict(waiting) == "other"
    assert Criteria(ended_before_ms=10**13).verdict(waiting) == "other"
    assert Criteria(created_before_ms=10**13).verdict(waiting) == "match"


def test_a_value_matches_as_each_codec_stores_it() -> None:
    at = datetime(2026, 3, 2, tzinfo=UTC)
    wanted = Criteria(arguments={"at": at})
    for codec in (JSON, MSGPACK):
        stored = job(payload=codec.encode_call([], {"at": at}), codec=codec.name)
        assert wanted.verdict(stored) == "match"


def test_arguments_that_cannot_be_decoded_are_neither_a_match_nor_a_mismatch() -> None:
    assert Criteria(arguments={"a": 1}).verdict(job(codec="unheard of")) == "unreadable"
    assert Criteria(name="other", arguments={"a": 1}).verdict(job(codec="unheard of")) == "other"
    assert Criteria(name="charge").verdict(job(codec="unheard of")) == "match"


def test_a_store_gets_exact_names_and_never_patterns() -> None:
    assert Criteria(name="charge").filter(QUEUE, State.FAILED).name == "charge"
    assert Criteria(name="charge*").filter(QUEUE, State.FAILED).name is None


def test_a_place_is_one_word_and_belongs_to_its_criteria() -> None:
    wanted = Criteria(states=(State.WAITING,), name="a")
    at = SelectionCursor(wanted.digest, 0, '[1, "key\t\n|/+=", 17]')
    word = pack_cursor(at)
    assert all(c.isalnum() or c in "-_." for c in word)
    assert unpack_cursor(word, wanted.digest, 1) == at
    assert unpack_cursor(None, wanted.digest, 1) == SelectionCursor(wanted.digest)
    for other in (Criteria(states=(State.WAITING,), name="b"), Criteria(name="a")):
        with pytest.raises(InvalidJob, match="another selection"):
            unpack_cursor(word, other.digest, 1)
    for bad in ("", "x", 'a"b', "ümlaut", "-_-_"):
        with pytest.raises(InvalidJob, match="not a cursor"):
            unpack_cursor(bad, wanted.digest, 1)


def test_a_pace_is_kept_on_average() -> None:
    assert (step_size(None), step_size(0.1), step_size(40), step_size(10**6)) == (500, 1, 10, 500)
    assert pause_s(0, 0.0, 5) == 0.0
    assert pause_s(10, 0.5, 5) == 1.5
    assert pause_s(10, 60.0, 5) == 0.0
    assert pause_s(10**6, 0.0, None) == 0.0
