"""The values of fuzzed calls: what people and programs pass by mistake, and some valid ones."""

from __future__ import annotations

import decimal
import enum
import math
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from random import Random
from typing import Any

from jobq import Bucket, Cron, Every, Rate, Retention, Retry, Unique


class Text(str):
    """A str subclass, as numpy.str_ is one."""

    __slots__ = ()


class Number(int):
    """An int subclass."""


class Colour(enum.StrEnum):
    RED = "red"


class Rude:
    """Breaks whoever shows, compares or counts it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


TEXTS: tuple[Any, ...] = (
    "",
    "a",
    "job-1",
    "x" * 256,
    "x" * 257,
    "x" * 100_000,
    "\x00",
    "a\nb",
    "\x1b[2J",
    "\x85",
    "{tag}",
    "ünïcödé",
    "日本",
    "\ud800",
    "a\udfffb",
    "😀" * 50,
    "null",
    "0",
    "-1",
    "../..",
    "a:b",
    "a|b",
    "a\tb",
    "$jobq.child 0",
    "%00",
    "*",
    "key[",
    " ",
    Text("sub"),
    Colour.RED,
)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    5,
    3.5,
    2**21 - 1,
    2**21,
    2**31,
    2**53,
    2**63,
    2**64,
    10**400,
    -(10**400),
    1e308,
    -1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    Number(3),
    decimal.Decimal("1.5"),
    decimal.Decimal("NaN"),
    1j,
)
TIMES: tuple[Any, ...] = (
    timedelta(seconds=1),
    timedelta(0),
    timedelta(-1),
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=1),
    datetime.max,
    datetime.min,
    datetime.max.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime(2030, 1, 1, tzinfo=UTC),
    datetime(2030, 1, 1),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    date(2030, 1, 1),
)
OTHERS: tuple[Any, ...] = (
    None,
    b"bytes",
    bytearray(b"x"),
    [],
    {},
    (),
    set(),
    {"a": 1},
    {1: 2},
    [1, 2],
    ("a", "b"),
    {"ü": ["\ud800"]},
    [math.nan],
    uuid.UUID(int=0),
    object,
    object(),
    Rude(),
    lambda: None,
    len,
    Retry(2),
    Retry(0),
    Unique("n"),
    Unique("none"),
    Unique(),
    Rate(1, per=1),
    Bucket(5, refill=1),
    Every(60),
    Cron("* * * * *"),
    Retention(completed=0),
    ValueError("x"),
    range(3),
    iter(()),
    nested(50),
    nested(5_000),
    nested(100_000),
    circle(),
    memoryview(b"m"),
    ...,
)
KINDS = (TEXTS, NUMBERS, TIMES, OTHERS)

Make = Callable[[Random], Any]


def anything(random: Random) -> Any:
    """Any of them."""
    return random.choice(random.choice(KINDS))


def mostly(*good: Any) -> Make:
    """One of these as a rule, anything now and then."""
    return lambda random: random.choice(good) if random.random() < 0.6 else anything(random)
