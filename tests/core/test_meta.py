"""meta: what is refused, what a child inherits, what events tell."""

from __future__ import annotations

import pytest

from jobq.core.values.meta import (
    MAX_BYTES,
    check_event_names,
    check_meta,
    event_meta,
    inherited,
)
from jobq.errors import ConfigError, InvalidJob


def test_a_map_of_strings_is_copied() -> None:
    given = {"trace": "00-4bf9", "empty": ""}
    checked = check_meta(given)
    given["trace"] = "changed"
    assert checked == {"trace": "00-4bf9", "empty": ""}
    assert check_meta({}) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("trace=1", "meta='trace=1' is not a map of strings"),
        ([("a", "b")], "is not a map of strings"),
        (None, "meta=None is not a map of strings"),
        ({"a": 1}, r"meta\['a'\]=1 is not a string"),
        ({"a": None}, r"meta\['a'\]=None is not a string"),
        ({1: "a"}, "meta name=1 is not a string"),
        ({"": "a"}, "meta name='' is empty"),
        ({"n" * 65: "a"}, "meta name=.* is too long: at most 64 characters"),
        ({"a\n": "b"}, "control characters"),
        ({"a": "\ud800"}, r"meta\['a'\]=.* cannot be encoded as UTF-8"),
        ({"a": "x" * MAX_BYTES}, "meta takes 4,097 bytes, more than the 4,096 allowed"),
        ({"a": "☃" * 1400}, "meta takes 4,201 bytes"),
    ],
)
def test_anything_else_is_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        check_meta(value)


def test_the_largest_meta_is_accepted() -> None:
    assert check_meta({"n" * 64: "x" * (MAX_BYTES - 64)}) is not None


def test_a_child_inherits_and_its_own_names_win() -> None:
    assert inherited(None, None) is None
    assert inherited({"a": "1"}, None) == {"a": "1"}
    assert inherited(None, {"a": "1"}) == {"a": "1"}
    assert inherited({"a": "1", "b": "1"}, {"b": "2"}) == {"a": "1", "b": "2"}
    with pytest.raises(
        InvalidJob, match=r"meta \(with what the child inherits from its parent\) takes 6,002 bytes"
    ):
        inherited({"a": "x" * 3000}, {"b": "x" * 3000})


def test_events_tell_allowed_names_only() -> None:
    assert event_meta({"a": "1", "b": "2"}, ("b", "c")) == {"b": "2"}
    assert event_meta({"a": "1"}, ("b",)) is None
    assert event_meta(None, ("b",)) is None


@pytest.mark.parametrize(
    "value", ["trace", 7, ["a", 1], [""], ["n" * 65], [str(n) for n in range(17)]]
)
def test_names_for_events_are_checked(value: object) -> None:
    with pytest.raises(ConfigError, match="event_meta"):
        check_event_names(value)


def test_names_for_events_count_once() -> None:
    assert check_event_names(["b", "a", "b"]) == ("b", "a")
