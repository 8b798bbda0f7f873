"""Which jobs an operator means: by state, task, key, error, meta, arguments and time; and the pace
of a pass over them. Pure.

A store narrows a listing by state, exact task name and key. The rest is decided here, on the
records of each page, so every store gives the same answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec

from jobq.core.records.jobs import Failure, Filter, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.values.checks import shown
from jobq.core.values.codec import JSON, get_codec
from jobq.core.values.error_names import former_name
from jobq.errors import InvalidJob, JobqError

Verdict = Literal["match", "other", "unreadable"]
"""Whether a job is meant. `unreadable`: its arguments cannot be decoded here, so nobody knows."""

ANY = "*"
"""Stands for any text in a pattern. All other characters stand for themselves."""


class Criteria(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Which jobs of a queue are meant. A field that is None or empty excludes no job.

    Times are in ms: a job matches from `after` on, and before `before`. A job that has not ended
    matches no time of its end.
    """

    states: tuple[State, ...] = ()
    name: str | None = None  # the task's name; `*` stands for any text
    key: str | None = None
    error: str | None = None  # see `error_texts`; `*` stands for any text
    meta: Mapping[str, str] = {}
    arguments: Mapping[str, Any] = {}  # by name, or by position: "0"
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    ended_after_ms: int | None = None
    ended_before_ms: int | None = None

    def filter(
        self, queue: QueueName, state: State | None, *, oldest_first: bool = False
    ) -> Filter:
        """The part that a store can apply to the jobs of one state, or of all."""
        exact = None if self.name is None or ANY in self.name else self.name
        return Filter(queue=queue, state=state, name=exact, key=self.key, oldest_first=oldest_first)

    @property
    def by_state_only(self) -> bool:
        """Whether all jobs of the states match, so that a store's counters tell how many."""
        return msgspec.structs.replace(self, states=()) == Criteria()

    @property
    def compared_here(self) -> bool:
        """Whether a page of a store may have jobs that do not match."""
        exact = None if self.name is None or ANY in self.name else self.name
        by_store = msgspec.structs.replace(self, states=(), key=None, name=None)
        return self.name != exact or by_store != Criteria()

    @cached_property
    def digest(self) -> str:
        """A short name of these criteria, which their cursors carry.

        Times are left out: an age such as "2 hours" is another time whenever it is given.
        """
        fields = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if not name.endswith("_ms")
        }
        return hashlib.blake2b(JSON.digestible(fields), digest_size=6).hexdigest()

    def verdict(self, record: JobRecord, parameters: Sequence[str] = ()) -> Verdict:
        """Whether a job matches.

        `parameters` are the names of the task's positional parameters, if this process has its
        function. Without them, a positional argument is known by its position only.
        """
        if not (
            (self.name is None or self._name(record.name))
            and (self.key is None or record.key == self.key)
            and self._meta(record.meta or {})
            and (self.error is None or self._failure(record.failure))
            and _within(record.created_ms, self.created_after_ms, self.created_before_ms)
            and _within(record.finished_ms, self.ended_after_ms, self.ended_before_ms)
        ):
            return "other"
        return self._call(record, parameters) if self.arguments else "match"

    @cached_property
    def _name(self) -> Callable[[str], bool]:
        return pattern(self.name or ANY)

    @cached_property
    def _error(self) -> Callable[[str], bool]:
        return pattern(self.error or ANY)

    def _failure(self, failure: Failure | None) -> bool:
        return failure is not None and any(map(self._error, error_texts(failure)))

    def _meta(self, meta: Mapping[str, str]) -> bool:
        return all(meta.get(name) == text for name, text in self.meta.items())

    @cached_property
    def _wanted(self) -> dict[str, tuple[Any, ...]]:
        """Each wanted value as it was given and as JSON stores it, e.g. a datetime as text."""
        return {
            name: (value, JSON.decode(JSON.encode(value))) for name, value in self.arguments.items()
        }

    def _call(self, record: JobRecord, parameters: Sequence[str]) -> Verdict:
        try:
            codec = get_codec(record.codec).for_task(record.name)
            args, kwargs = codec.decode_call(record.payload)
        except JobqError:
            return "unreadable"
        given = {
            **{str(index): value for index, value in enumerate(args)},
            **dict(zip(parameters, args, strict=False)),
            **kwargs,
        }
        found = all(
            name in given and any(_same(given[name], value) for value in values)
            for name, values in self._wanted.items()
        )
        return "match" if found else "other"


def pattern(text: str) -> Callable[[str], bool]:
    """Whether a text matches a pattern as a whole. `*` stands for any text, also for none."""
    if ANY not in text:
        return text.__eq__
    first, *inner, last = text.split(ANY)

    def matches(value: str) -> bool:
        # Not a regular expression: with many `*`, those take longer than anybody waits.
        if not (value.startswith(first) and value.endswith(last)):
            return False
        at, end = len(first), len(value) - len(last)
        for part in inner:
            found = value.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return at <= end

    return matches


def error_names(failure: Failure) -> tuple[str, ...]:
    """What a failure is called. It tells nothing of the failure's message."""
    return failure.type, former_name(failure.type), failure.reason, failure.fingerprint or ""


def error_texts(failure: Failure) -> tuple[str, ...]:
    """What a pattern for errors is compared with: one of these has to match."""
    named = (f"{type}: {failure.message}" for type in (failure.type, former_name(failure.type)))
    return *error_names(failure), *named


def _within(at_ms: int | None, after_ms: int | None, before_ms: int | None) -> bool:
    if after_ms is None and before_ms is None:
        return True
    if at_ms is None:
        return False
    return (after_ms is None or at_ms >= after_ms) and (before_ms is None or at_ms < before_ms)


def _same(one: Any, other: Any) -> bool:
    """Equality without Python's True == 1, which JSON does not know."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


# ── where a pass over the jobs continues ──────────────────────────────────────────────────────────


class SelectionCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a pass over the states of some criteria continues."""

    digest: str
    state: int = 0  # a position in the list of states
    cursor: str | None = None  # of the store, inside that state
    began_ms: int | None = None  # when the operation began, of a bulk operation


def pack_cursor(at: SelectionCursor) -> str:
    """The cursor as one word that can be copied from a terminal."""
    return msgspec.json.encode(msgspec.msgpack.encode(at)).decode().strip('"').translate(_SAFE)


def unpack_cursor(text: str | None, digest: str, states: int) -> SelectionCursor:
    """The cursor in a text, or the beginning. InvalidJob if it is not one of these criteria."""
    if text is None:
        return SelectionCursor(digest)
    try:
        quoted = f'"{text.translate(_UNSAFE)}"'
        packed = msgspec.json.decode(quoted, type=bytes)
        at = msgspec.msgpack.decode(packed, type=SelectionCursor)
    except (msgspec.MsgspecError, ValueError):
        raise InvalidJob(f"cursor={shown(text)} is not a cursor") from None
    if at.digest != digest or not 0 <= at.state < states:
        raise InvalidJob(
            f"cursor={shown(text)} belongs to another selection of jobs: "
            "use the same states and criteria as in the call that it came from"
        )
    return at


_SAFE = str.maketrans("+/=", "-_.")
_UNSAFE = str.maketrans("-_.", "+/=")
"""msgspec writes bytes as base64. These characters need no quotes in a shell."""


# ── pace ──────────────────────────────────────────────────────────────────────────────────────────

MAX_STEP = 500
"""Jobs per store call: enough that the cost of a call does not matter, few enough that workers do
not wait long."""
_STEP_S = 0.25
"""Seconds between two calls at a pace, at which a progress bar still moves smoothly."""


def step_size(pace: float | None) -> int:
    """How many jobs one call changes at a pace of so many jobs per second."""
    return MAX_STEP if pace is None else max(1, min(MAX_STEP, int(pace * _STEP_S)))


def pause_s(done: int, elapsed_s: float, pace: float | None) -> float:
    """How long to wait before the next call, if `done` jobs were changed in the elapsed time."""
    return 0.0 if pace is None else max(0.0, done / pace - elapsed_s)
