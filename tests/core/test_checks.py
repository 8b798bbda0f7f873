"""Bad input is refused before anything is stored, with a message that names the option and the
value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.values import checks
from jobq.core.values.checks import MAX_MS, MAX_PRIORITY, to_epoch_ms, to_ms
from jobq.errors import ConfigError, InvalidJob, PayloadTooLarge


@pytest.mark.parametrize(
    ("check", "value", "words"),
    [
        (checks.check_id, "", "id='' is empty"),
        (checks.check_id, "x" * 257, "too long: at most 256"),
        (checks.check_id, "a\nb", r"'\\n' at position 1"),
        (checks.check_id, "a{b}", "'{' at position 1"),
        (checks.check_id, "\ud800", "at position 0"),
        (checks.check_id, 7, "id=7 is not a string"),
        (checks.check_delay, -1, "delay=-1 is negative"),
        (checks.check_delay, -0.0001, "delay=-0.0001 is negative"),
        (checks.check_delay, float("nan"), "delay=nan is not a time"),
        (checks.check_delay, float("inf"), "delay=inf is not a time"),
        (checks.check_delay, True, "delay=True is not a time"),
        (checks.check_delay, "5", "delay='5' is not a time"),
        (checks.check_delay, 1e12, "more than a hundred years"),
        (checks.check_at, datetime(2030, 1, 1), "has no time zone"),
        (checks.check_at, 17, "at=17 is not a datetime"),
        (checks.check_at, datetime(1960, 1, 1, tzinfo=UTC), "before 1970"),
        (checks.check_priority, -1, "priority=-1 is out of range"),
        (checks.check_priority, MAX_PRIORITY + 1, f"from 0 to {MAX_PRIORITY}"),
        (checks.check_priority, True, "priority=True is not a whole number"),
        (checks.check_priority, 1.0, "priority=1.0 is not a whole number"),
        (checks.check_ttl, 0, "ttl=0 is not a time span"),
        (checks.check_ttl, -5, "ttl=-5 is negative"),
        (checks.check_ttl, 0.0005, "ttl=0.0005 is not a whole number of milliseconds"),
        (checks.check_ttl, timedelta(microseconds=1500), "not a whole number of milliseconds"),
        (checks.check_result_ttl, 0, "result_ttl=0"),
        (checks.check_result_ttl, None, "result_ttl=None is not a time"),
        (checks.check_result_ttl, 1.00005, "result_ttl=1.00005 is not a whole number"),
        (checks.check_timeout, 0, "timeout=0"),
        (checks.check_max_stalls, -1, "max_stalls=-1"),
        (checks.check_cost, 0, "cost=0 is out of range"),
        (checks.check_cost, False, "cost=False"),
        (checks.check_key, None, "key=None is not a string"),
        (checks.check_key, "a}b", "key='a}b'"),
        (checks.check_queue_name, "", "queue='' is empty"),
        (checks.check_queue_name, "q" * 129, "at most 128"),
        (checks.check_queue_name, "a{b", "queue='a{b'"),
        (checks.check_tenant, "a:b", "tenant='a:b' contains a colon"),
        (checks.check_tenant, "\x7f", "tenant="),
    ],
)
def test_bad_values_are_refused_by_name(
    check: Callable[[Any], Any], value: Any, words: str
) -> None:
    with pytest.raises(InvalidJob, match=words):
        check(value)


@pytest.mark.parametrize(
    ("check", "value", "checked"),
    [
        (checks.check_id, "x" * 256, "x" * 256),
        (checks.check_id, "órder/7:ü", "órder/7:ü"),
        (checks.check_delay, 0, 0),
        (checks.check_delay, 1.5, 1500),
        (checks.check_delay, timedelta(hours=1), 3_600_000),
        (checks.check_delay, 0.0001, 1),  # rounded up: never early
        (checks.check_at, datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000),
        (checks.check_priority, MAX_PRIORITY, MAX_PRIORITY),
        (checks.check_ttl, 0.001, 1),
        (checks.check_ttl, 1.001, 1001),  # 1000.9999999999999 in floats
        (checks.check_ttl, None, None),
        (checks.check_timeout, None, 0),
        (checks.check_timeout, 0.0001, 1),
        (checks.check_key, 7, "7"),
        (checks.check_key, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (checks.check_max_stalls, 0, 0),
    ],
)
def test_good_values_come_out_as_the_store_keeps_them(
    check: Callable[[Any], Any], value: Any, checked: Any
) -> None:
    assert check(value) == checked


@given(st.integers(0, MAX_MS))
def test_whole_milliseconds_survive_being_written_as_seconds(ms: int) -> None:
    assert to_ms(ms / 1000, "ttl", whole=True) == ms
    assert to_ms(timedelta(milliseconds=ms), "ttl", whole=True) == ms


@given(st.floats(0, 1e6))
def test_rounding_never_makes_a_time_earlier(seconds: float) -> None:
    ms = to_ms(seconds, "delay")
    assert ms >= seconds * 1000 - 1e-5
    assert ms < seconds * 1000 + 1


@given(st.integers(0, 4_000_000_000_000))
def test_a_moment_keeps_its_millisecond(ms: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert to_epoch_ms(moment, "at") == ms


@given(st.text(max_size=300))
def test_an_id_is_either_kept_as_it_is_or_refused(text: str) -> None:
    try:
        assert checks.check_id(text) == text
    except InvalidJob:
        unsafe = any(
            c in "{}" or ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000
            for c in text
        )
        assert unsafe or not 0 < len(text) <= 256


def test_the_caller_chooses_the_error_of_the_tree() -> None:
    with pytest.raises(ConfigError, match="Rate per"):
        to_ms(-1, "Rate per", error=ConfigError)


def test_a_payload_over_the_limit_names_size_and_limit() -> None:
    assert checks.check_payload(b"x" * 10, 10, "charge") == b"x" * 10
    with pytest.raises(
        PayloadTooLarge, match="charge take 1,025 bytes encoded, more than the 1,024 allowed"
    ):
        checks.check_payload(b"x" * 1025, 1024, "the arguments of charge take")


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidJob, match=r"unknown option 'prority' \(did you mean 'priority'\?\)"):
        checks.check_known({"delay": 1, "prority": 2}, ("delay", "priority"))


def test_a_long_or_hostile_value_is_shown_short() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert checks.shown(Hostile()) == "<Hostile>"
    assert len(checks.shown("x" * 10_000)) < 120
