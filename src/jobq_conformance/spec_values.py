"""Values for every field of a new job: wrong ones, boundaries, and subclasses of the right type.

The tests of ways to store a job go through them. A field without values here fails a test.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from jobq.core.records.jobs import (
    Edge,
    JobKey,
    JobRecord,
    JobSpec,
    QueueName,
    RetryData,
    UniqueSpec,
)
from jobq.core.rules.new_jobs import MAX_SCHEDULE_ID, check_spec
from jobq.core.rules.options import MAX_CODEC, MAX_DELAYS, MAX_ORIGIN, Option
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_ID_LENGTH,
    MAX_MS,
    MAX_NAME_LENGTH,
    MAX_PRIORITY,
)
from jobq.core.values.meta import MAX_BYTES
from jobq.core.values.meta import MAX_NAME as MAX_META_NAME
from jobq.errors import InvalidJob


class Text(str):
    """A str that no encoder takes for one, like Django's SafeString and numpy.str_."""

    __slots__ = ()


class Number(int):
    """An int subclass."""


class Level(enum.IntEnum):
    """Numbers with names."""

    NONE = 0
    ONE = 1
    FIVE = 5


class Word(enum.StrEnum):
    """Texts with names."""

    IGNORE = "ignore"
    DEBOUNCE = "debounce"
    X = "x"


class Map(dict[Any, Any]):
    """A dict subclass."""


class Data(bytes):
    """A bytes subclass."""


class Thing:
    """Nothing that a spec has."""

    def __repr__(self) -> str:
        return "a thing"


class Rude:
    """Breaks code that shows, compares or counts it."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


class Case(NamedTuple):
    """A value for one field of a spec. Fields of its parts are written with a dot."""

    field: str
    value: Any

    def __repr__(self) -> str:
        try:
            text = repr(self.value)
        except RuntimeError:
            text = "a value without a repr"
        kind = type(self.value).__name__
        return f"{self.field}={text if len(text) < 60 else text[:60] + '…'} ({kind})"


ANYTHING: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 10**5000,
    0.0, 1.0, 1.5, math.nan, math.inf, -math.inf, Decimal(1), UUID(int=7),
    Number(1), Number(5), Level.NONE, Level.ONE, Level.FIVE,
    "", "x", "7", Text("x"), Text(""), Word.X, "\ud800", "a\x00b", "a\nb", "\x1b[2J", "\x85", "{x}",
    "日本", b"", b"x", Data(b"x"), bytearray(b"x"), [], [1], (), (1,), {}, {"a": 1}, Map(a="b"),
    Thing(), Rude(),
)  # fmt: skip
"""What people and programs pass for any field."""


def _texts(longest: int) -> tuple[Any, ...]:
    return "x" * longest, "x" * (longest + 1), "é" * longest, Text("y" * longest)


def _numbers(low: int, high: int) -> tuple[Any, ...]:
    return low - 1, low, low + 1, high - 1, high, high + 1, Number(high), Number(high + 1)


_SPAN = _numbers(0, MAX_MS)
_POSITIVE = _numbers(1, MAX_MS)
_ID = _texts(MAX_ID_LENGTH)
_NAME = _texts(MAX_NAME_LENGTH)
FIELDS: dict[type, dict[str, tuple[Any, ...]]] = {
    JobSpec: {
        "queue": (("a", "b"), QueueName(Text("a"), "b"), ("a",), ("a", "b", "c")),
        "id": _ID,
        "name": _ID,
        "payload": (b"[[],{}]", Data(b"[[],{}]"), memoryview(b"[[],{}]"), "[[],{}]"),
        "codec": ("json", "msgpack", Text("json"), *_texts(MAX_CODEC)),
        "given_id": (),
        "priority": _numbers(0, MAX_PRIORITY),
        "lifo": (),
        "delay_ms": _SPAN,
        "at_ms": _numbers(0, MAX_EPOCH_MS),
        "ttl_ms": _POSITIVE,
        "result_ttl_ms": _POSITIVE,
        "retry": (RetryData(), RetryData(max_retries=True), 3),
        "timeout_ms": _SPAN,
        "max_stalls": _numbers(0, MAX_COUNT),
        "key": _ID,
        "cost": _numbers(1, MAX_COUNT),
        "unique": (UniqueSpec(lock=Text("l")), True, "l"),
        "after": ([], ["there"], (None,), {"there": 1}, "there"),
        "on_child_failure": ("fail", "ignore", "continue", "Fail", Text("ignore"), Word.IGNORE),
        "reserved": (),
        "schedule": _ID,
        "origin": ("queue/id", *_texts(MAX_ORIGIN)),
        "meta": (
            {"m": "v"}, {"m": Text("v")}, {Text("m"): "v"}, {Text("m"): Word.X}, Map(m="v"),
            {"m": 1}, {"m": None}, {1: "v"}, {"": "v"}, {"m": ""}, {"m": "\ud800"}, {"\ud800": "v"},
            {"m": "a\x00\n"}, {"a\n": "v"}, {"{": "v"}, {"x" * MAX_META_NAME: "v"},
            {"x" * (MAX_META_NAME + 1): "v"}, {"m": "x" * (MAX_BYTES - 1)}, {"m": "x" * MAX_BYTES},
            {str(n): "" for n in range(100)},
        ),
    },
    RetryData: {
        "max_retries": _numbers(0, MAX_COUNT),
        "base_ms": (*_SPAN, 3_600_000, 3_600_001),
        "factor": (0.99, 1, 2, 1e308, 10**300, Number(2), Level.FIVE, "2"),
        "cap_ms": (*_POSITIVE, 999, 1000),
        "jitter": (0, 1, 1.0001, -0.1, 1e-300, Level.ONE),
        "delays_ms": (
            (0,), (1, 2), [1, 2], (1, -1), (MAX_MS,), (MAX_MS + 1,), (True,), (1.0,), (math.nan,),
            (Number(3), Level.FIVE), ("1",), (1,) * MAX_DELAYS, (1,) * (MAX_DELAYS + 1), "12",
        ),
    },
    UniqueSpec: {
        "lock": _ID,
        "mode": (
            "simple", "throttle", "debounce", "keep_last", "Simple", Text("debounce"),
            Word.DEBOUNCE,
        ),
        "ttl_ms": _POSITIVE,
    },
    Edge: {
        "job": (("q", "i"), "there"),
        "data": (),
    },
    JobKey: {
        "queue": (("t", "q"), ("t",)),
        "id": ("itself", "missing", Text("there"), *_ID),
    },
    QueueName: {
        "tenant": ("elsewhere", "a:b", *_NAME),
        "queue": ("unknown", *_NAME),
    },
}  # fmt: skip
"""Boundaries of each field, by record. `itself` is the job's own id, `elsewhere` another tenant,
and `there` a job that exists."""

SCHEDULES: dict[str, tuple[Any, ...]] = {
    "queue": (QueueName("t", "other"),),
    "id": _texts(MAX_SCHEDULE_ID),
    "template": (),
    "cron": ("* * * * *", Text("@daily"), "x", "99 * * * *", "0 0 30 2 *"),
    "tz": ("UTC", Text("Europe/Zurich"), "Mars/Base", "../etc/passwd"),
    "every_ms": _POSITIVE,
    "after_complete": (),
    "start_ms": _numbers(0, MAX_EPOCH_MS),
    "end_ms": _numbers(0, MAX_EPOCH_MS),
    "limit": _numbers(1, MAX_COUNT),
    "catch_up": ("skip", "one", "all", "All", Text("one")),
}
"""Boundaries of each field of a schedule."""

PARTS = {
    "retry": RetryData,
    "unique": UniqueSpec,
    "after": Edge,
    "after.job": JobKey,
    "after.job.queue": QueueName,
    "queue": QueueName,
}
"""The fields of a spec that have fields. `after` stands for its first edge."""


def cases() -> Iterator[Case]:
    """All values for all fields."""
    for prefix, record in (("", JobSpec), *((f"{part}.", kind) for part, kind in PARTS.items())):
        for field, values in FIELDS[record].items():
            for value in (*ANYTHING, *values):
                yield Case(prefix + field, value)


def example(option: Option) -> Any:
    """A value of an option that is valid, and neither its default nor 0."""
    for value in (*FIELDS[JobSpec][option.field], *ANYTHING):
        try:
            plain = option.check(value)
        except InvalidJob:
            continue
        if plain and plain != option.default:
            return plain
    raise AssertionError(f"FIELDS has no such value of {option.field}")


def field_names(record: type) -> tuple[str, ...]:
    """The fields of a record."""
    if issubclass(record, msgspec.Struct):
        return tuple(field.name for field in msgspec.structs.fields(record))
    return record._fields  # type: ignore[attr-defined, no-any-return]  # a NamedTuple


def base(queue: QueueName, id: str, field: str) -> JobSpec:
    """A valid spec that has the part which the field belongs to."""
    spec = JobSpec(queue=queue, id=id, name="step", payload=b"[[],{}]")
    if field.startswith("retry."):
        return replace(spec, retry=RetryData())
    if field.startswith("unique."):
        return replace(spec, unique=UniqueSpec(lock=f"lock of {id}", ttl_ms=60_000))
    if field.startswith("after."):
        return replace(spec, after=(Edge(JobKey(queue, "there")),))
    return spec


def with_value(spec: JobSpec, case: Case) -> JobSpec:
    """The spec with the value in the field."""
    itself = isinstance(case.value, str) and (case.field, case.value) == ("after.job.id", "itself")
    changed: JobSpec = _set(spec, case.field.split("."), spec.id if itself else case.value)
    return changed


def _set(record: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        inner = getattr(record, name)
        value = (_set(inner[0], rest, value),) if name == "after" else _set(inner, rest, value)
    if isinstance(record, msgspec.Struct):
        return replace(record, **{name: value})
    return record._replace(**{name: value})


# ── what must become of them ──────────────────────────────────────────────────────────────────────

UNREAD = frozenset({"reserved", "after.data"})
"""Fields that no record shows."""


def rule(spec: JobSpec) -> JobSpec | str:
    """The spec as it is to be stored, or the words with which it is refused."""
    try:
        return check_spec(spec)
    except InvalidJob as error:
        return str(error)


def fits(spec: JobSpec) -> bool:
    """Whether the store itself has nothing against a spec that passes the rule."""
    return not spec.after or (
        spec.after[0].job.id == "there" and spec.after[0].job.queue == spec.queue
    )


def seen(record: JobRecord, field: str) -> Any:
    """The field of a stored job."""
    name, *rest = field.split(".")
    if name == "after":
        return record.children
    return _part(record.options if name in record.options.__struct_fields__ else record, name, rest)


def given(spec: JobSpec, field: str) -> Any:
    """The same field of the spec."""
    name, *rest = field.split(".")
    return tuple(edge.job for edge in spec.after) if name == "after" else _part(spec, name, rest)


def _part(record: Any, name: str, rest: list[str]) -> Any:
    value = getattr(record, name)
    return value if not rest or value is None else getattr(value, rest[0])
