"""What is kept of an exception."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from jobq.core.records.failures import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    ReportedError,
    describe,
    fingerprint,
    fingerprint_of,
    normalised,
)


def caught(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def refuse(text: str) -> None:
    raise ValueError(text)


def elsewhere(text: str) -> None:
    raise ValueError(text)


def test_a_failure_names_the_type_with_its_module() -> None:
    assert describe(ValueError("x")).type == "ValueError"
    assert describe(json.JSONDecodeError("x", "", 0)).type == "json.decoder.JSONDecodeError"


def test_a_long_message_is_cut() -> None:
    message = describe(ValueError("x" * 100_000)).message
    assert len(message) == MAX_MESSAGE
    assert message.endswith("…")


def test_a_long_traceback_keeps_its_last_frames() -> None:
    def deep(n: int) -> None:
        if n == 0:
            refuse("the bottom " + "y" * 6000)
        deep(n - 1)

    found = describe(caught(lambda: deep(500))).traceback
    assert found is not None
    assert len(found.encode()) <= MAX_TRACEBACK
    assert "in refuse" in found
    assert "the bottom" in found


def test_a_traceback_is_bounded_in_bytes() -> None:
    def act() -> None:
        error = ValueError("☃" * 3000)
        for _ in range(20):
            cause, error = error, ValueError("☃" * 3000)
            error.__cause__ = cause
        raise error

    found = describe(caught(act)).traceback
    assert found is not None
    assert MAX_TRACEBACK - 100 < len(found.encode()) <= MAX_TRACEBACK
    assert found.startswith("…")
    assert "in act" in found
    assert "ValueError: ☃☃☃" in found


def test_the_cause_is_in_the_traceback() -> None:
    def act() -> None:
        try:
            refuse("first")
        except ValueError as error:
            raise RuntimeError("second") from error

    found = describe(caught(act)).traceback
    assert found is not None
    assert "first" in found
    assert "direct cause" in found


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert describe(ValueError("x")).traceback is None


def test_an_exception_that_cannot_be_read_is_described_all_the_same() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    found = describe(caught(lambda: (_ for _ in ()).throw(Hostile())))
    assert "could not be read" in found.message


def test_what_utf8_cannot_say_does_not_get_into_the_record() -> None:
    found = describe(caught(lambda: refuse("\ud800")))
    found.message.encode()
    assert found.traceback is not None
    found.traceback.encode()


def test_failures_of_one_cause_share_a_fingerprint() -> None:
    one = caught(lambda: refuse("order 17 of 'acme' at 0x7f00 is gone"))
    other = caught(lambda: refuse("order 23581 of 'globex' at 0x9999 is gone"))
    assert fingerprint(one) == fingerprint(other)
    assert len(fingerprint(one)) == 12


def test_line_numbers_do_not_count() -> None:
    def twice(first: bool) -> None:
        if first:
            raise ValueError("x")
        raise ValueError("x")

    assert fingerprint(caught(lambda: twice(True))) == fingerprint(caught(lambda: twice(False)))


def test_another_type_message_or_function_is_another_cause() -> None:
    def act() -> None:
        raise KeyError("gone")

    prints = {
        fingerprint(caught(lambda: refuse("gone"))),
        fingerprint(caught(lambda: refuse("full"))),
        fingerprint(caught(lambda: elsewhere("gone"))),
        fingerprint(caught(act)),
    }
    assert len(prints) == 4


def test_the_innermost_frame_of_the_users_own_code_counts_and_not_the_librarys() -> None:
    def load(text: str) -> object:
        return json.loads(text)

    short, long = caught(lambda: load("{")), caught(lambda: load('{"a": {"b":'))
    assert short.__traceback__ is not None
    assert normalised(str(short)) != normalised(str(long)) or fingerprint(short) == fingerprint(
        long
    )
    assert fingerprint(caught(lambda: load("[1,,"))) == fingerprint(caught(lambda: load("[1, 2,,")))


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("took 1.5 s", "took · s"),
        ("no user 'bob' or \"eve\"", "no user · or ·"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id ·"),
        ("digest deadbeef01234567", "digest ·"),
        ("a feedback", "a feedback"),
    ],
)
def test_what_varies_is_taken_out_of_messages(message: str, plain: str) -> None:
    assert normalised(message) == plain


def test_a_reported_error_is_described_in_the_words_of_its_worker() -> None:
    error = ReportedError("TypeError", "x is not a function", "at run (worker.js:7)")
    assert describe(error) == ("TypeError", "x is not a function", "at run (worker.js:7)")
    assert describe(ReportedError("", "")) == ("Error", "", None)


def test_a_reported_error_is_bounded() -> None:
    described = describe(ReportedError("T" * 9_999, "m" * 9_999, "first\n" + "t" * 9_999 + "last"))
    assert len(described.type) == 256
    assert len(described.message) == MAX_MESSAGE
    assert described.traceback is not None
    assert len(described.traceback.encode()) <= MAX_TRACEBACK
    assert described.traceback.endswith("last")


def test_reported_errors_of_one_cause_have_one_fingerprint() -> None:
    first, second, other = (
        ReportedError("Timeout", "no reply within 30 s"),
        ReportedError("Timeout", "no reply within 45 s"),
        ReportedError("Refused", "no reply within 30 s"),
    )
    assert fingerprint_of(first, describe(first)) == fingerprint_of(second, describe(second))
    assert fingerprint_of(first, describe(first)) != fingerprint_of(other, describe(other))
