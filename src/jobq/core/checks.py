"""Checks of what users hand in: a value goes in, the checked value comes out, or InvalidJob names the option and the value.

Nothing is stored before it went through here. Times are seconds (or timedelta) outside and whole milliseconds inside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches
from uuid import UUID

from jobq.core.records import MAX_ID_LENGTH, MAX_PRIORITY
from jobq.errors import InvalidJob, JobqError, PayloadTooLarge

Seconds = float | timedelta
"""A time span as users write it: a plain number is seconds."""

MAX_NAME_LENGTH = 128
MAX_ACTOR_LENGTH = 256
MAX_MS = (
    100 * 366 * 86_400_000
)  # a century: above it a time is surely a mistake, and sums stay far below 2^53
MAX_EPOCH_MS = 253_402_214_400_000
"""The last day of the year 9999: what lies beyond it, no datetime can show."""
MAX_COST = 2**31 - 1
_SHOWN = 80

# Control characters break terminals and logs; braces would move a key to another slot of a cluster (hash tags).
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f{}\ud800-\udfff]")

Refusal = type[JobqError]


def shown(value: object) -> str:
    """The value as an error message shows it: its repr, cut when long."""
    try:
        text = repr(value)
    except Exception:  # a user's own __repr__ may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


# ── times ─────────────────────────────────────────────────────────────────────────────────────────


def to_ms(
    value: object,
    option: str,
    *,
    positive: bool = False,
    whole: bool = False,
    error: Refusal = InvalidJob,
) -> int:
    """Seconds (or timedelta) as milliseconds, rounded up so that nothing happens early.

    `positive` refuses 0; `whole` refuses fractions of a millisecond instead of rounding them.
    """
    if type(value) is int:
        ms = value * 1000
    elif isinstance(value, timedelta):
        ms = _whole(value / timedelta(milliseconds=1), value, option, whole, error)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not _finite(value * 1000):
            raise error(f"{option}={shown(value)} is not a time: give seconds or a timedelta")
        ms = _whole(value * 1000, value, option, whole, error)
    else:
        raise error(f"{option}={shown(value)} is not a time: give seconds or a timedelta")
    if ms < 0:
        raise error(f"{option}={shown(value)} is negative")
    if ms == 0 and positive:
        raise error(f"{option}={shown(value)} is not a time span: it must be above 0")
    if ms > MAX_MS:
        raise error(f"{option}={shown(value)} is more than a hundred years: times are in seconds")
    return ms


def _whole(ms: float, value: object, option: str, whole: bool, error: Refusal) -> int:
    nearest = round(ms)
    if (
        abs(ms - nearest) <= 1e-6 + abs(ms) * 1e-15
    ):  # 1.001 s is 1000.9999999999999 ms in floats, whose error is relative
        return nearest
    if whole:
        raise error(f"{option}={shown(value)} is not a whole number of milliseconds")
    return math.ceil(ms) if ms > 0 else math.floor(ms)  # a trifle below 0 is below 0


def to_epoch_ms(value: object, option: str, *, error: Refusal = InvalidJob) -> int:
    """An aware datetime as milliseconds since the epoch. A naive one is refused: nobody knows which zone it means."""
    if not isinstance(value, datetime):
        raise error(f"{option}={shown(value)} is not a datetime")
    if value.utcoffset() is None:
        raise error(
            f"{option}={shown(value)} has no time zone: use datetime.now(timezone.utc) or .astimezone()"
        )
    try:
        ms = math.ceil(value.timestamp() * 1000 - 1e-3)
    except (OverflowError, ValueError):  # its zone takes it out of the calendar
        ms = MAX_EPOCH_MS + 1 if value.year > 1970 else -1
    if ms < 0:
        raise error(f"{option}={shown(value)} is before 1970")
    if ms > MAX_EPOCH_MS:
        raise error(
            f"{option}={shown(value)} is too late: the last day that can be given is 9999-12-30"
        )
    return ms


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────


def check_int(
    value: object,
    option: str,
    *,
    low: int = 0,
    high: int | None = None,
    error: Refusal = InvalidJob,
) -> int:
    """A whole number from `low` to `high`. True and 1.0 are not whole numbers."""
    if type(value) is not int:
        raise error(f"{option}={shown(value)} is not a whole number")
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise error(f"{option}={value} is out of range: it must be {bounds}")
    return value


def check_number(
    value: object,
    option: str,
    *,
    low: float = 0.0,
    high: float = math.inf,
    error: Refusal = InvalidJob,
) -> float:
    """A finite number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        raise error(f"{option}={shown(value)} is not a number")
    if not low <= value <= high:
        bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise error(f"{option}={shown(value)} is out of range: it must be {bounds}")
    return float(value)


def check_bool(value: object, option: str, *, error: Refusal = InvalidJob) -> bool:
    """True or False, nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise error(f"{option}={shown(value)} is neither True nor False")
    return value


def check_choice(
    value: object, option: str, choices: Iterable[str], *, error: Refusal = InvalidJob
) -> str:
    """One of a few words."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise error(
            f"{option}={shown(value)} is not one of {', '.join(known)}{did_you_mean(value, known)}"
        )
    return str.__str__(value)  # of a subclass of str, the plain string


def check_priority(value: object) -> int:
    """0 … 2^21−1; higher runs first."""
    return check_int(value, "priority", high=MAX_PRIORITY)


def check_max_stalls(value: object) -> int:
    """How often a lease may be lost: 0 or more."""
    return check_int(value, "max_stalls", high=2**31 - 1)


def check_cost(value: object) -> int:
    """What a start takes from a token bucket: 1 or more."""
    return check_int(value, "cost", low=1, high=MAX_COST)


# ── spans of a job ────────────────────────────────────────────────────────────────────────────────


def check_delay(value: object) -> int:
    """From now, in ms; 0 is now."""
    return to_ms(value, "delay")


def check_at(value: object) -> int:
    """A moment, in ms since the epoch."""
    return to_epoch_ms(value, "at")


def check_ttl(value: object, option: str = "ttl") -> int | None:
    """A positive span of whole milliseconds; None: none."""
    return None if value is None else to_ms(value, option, positive=True, whole=True)


def check_result_ttl(value: object) -> int:
    """How long the record is kept after its end: a positive span of whole milliseconds."""
    return to_ms(value, "result_ttl", positive=True, whole=True)


def check_timeout(value: object) -> int:
    """How long a run may take, in ms. None is none, which a spec writes as 0; a timeout of 0 would fail every run."""
    return 0 if value is None else to_ms(value, "timeout", positive=True)


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def check_id(value: object, option: str = "id") -> str:
    """1 to 256 characters, without control characters and braces."""
    return _name(value, option, MAX_ID_LENGTH, InvalidJob)


def check_signal(value: object) -> str:
    """A signal's name: like an id, and none of those that jobq uses itself."""
    name = check_id(value, "signal")
    if name.startswith("$jobq."):
        raise InvalidJob(f"signal={name!r}: names that begin with $jobq. are jobq's own")
    return name


def check_key(value: object) -> str:
    """An ordering key: like an id. A whole number or a UUID counts as its text."""
    if isinstance(value, (int, UUID)) and not isinstance(value, bool):
        value = str(value)
    return _name(value, "key", MAX_ID_LENGTH, InvalidJob)


def check_task_name(value: object, *, error: Refusal = InvalidJob) -> str:
    """A task's name: like an id."""
    return _name(value, "name", MAX_ID_LENGTH, error)


def check_queue_name(value: object, option: str = "queue", *, error: Refusal = InvalidJob) -> str:
    """1 to 128 characters, without control characters and braces."""
    return _name(value, option, MAX_NAME_LENGTH, error)


def check_tenant(value: object, *, error: Refusal = InvalidJob) -> str:
    """Like a queue's name, and without a colon, which parts tenant and queue in keys."""
    tenant = _name(value, "tenant", MAX_NAME_LENGTH, error)
    if ":" in tenant:
        raise error(f"tenant={shown(tenant)} has a colon in it")
    return tenant


def check_actor(value: object, *, error: Refusal = InvalidJob) -> str:
    """Who gives a command: any name of up to 256 characters."""
    return _name(value, "actor", MAX_ACTOR_LENGTH, error)


def check_short_name(
    value: object, option: str, longest: int, *, error: Refusal = InvalidJob
) -> str:
    """A name of at most `longest` characters, without control characters and braces."""
    return _name(value, option, longest, error)


def as_actor(text: str) -> str:
    """A name that `check_actor` accepts, as near to the text as can be."""
    return _UNSAFE.sub("?", text)[:MAX_ACTOR_LENGTH] or "unknown"


def _name(value: object, option: str, longest: int, error: Refusal) -> str:
    if not isinstance(value, str):
        raise error(f"{option}={shown(value)} is not a string")
    if not value:
        raise error(f"{option}='' is empty")
    if len(value) > longest:
        raise error(f"{option}={shown(value)} is too long: at most {longest} characters")
    if bad := _UNSAFE.search(value):
        where = f"{bad[0]!r} at position {bad.start()}"
        raise error(
            f"{option}={shown(value)} has {where}: control characters and braces are not allowed"
        )
    return str.__str__(
        value
    )  # of a subclass (numpy.str_, an enum's member) the plain string: no store can encode the others


# ── payloads and option names ─────────────────────────────────────────────────────────────────────


def check_payload(payload: bytes, limit: int, what: str) -> bytes:
    """Encoded arguments or a result, if they are not larger than `limit` bytes. `what` begins the message."""
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"{what} {len(payload):,} bytes encoded, more than the {limit:,} allowed: "
            "store them elsewhere and pass a reference, or raise Queue(max_payload=…)"
        )
    return payload


ELSEWHERE = {
    "bind": ": call jobq.current_job() inside the function to get the running job",
    "countdown": ": use delay=",
    "eta": ": use at=",
    "max_retries": ": use retry=",
    "expires": ": use ttl=",
    "rate_limit": ": use Queue(rate=Rate(…))",
}
"""What options of other job queues are called here."""


def check_known(names: Iterable[str], known: Iterable[str], what: str = "option") -> None:
    """Refuse names that are not known, with the nearest one that is."""
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InvalidJob(
                f"unknown {what} {name!r}{ELSEWHERE.get(name) or did_you_mean(name, known)}"
            )


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing."""
    near = get_close_matches(value, tuple(known), n=1) if isinstance(value, str) else []
    return f" (did you mean {near[0]!r}?)" if near else ""
