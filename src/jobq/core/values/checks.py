"""Checks of values that users pass in.

Each returns the checked value, or raises InvalidJob that names the option and the value. Nothing is
stored before it has been checked here. Times are seconds (or timedelta) in the public API and whole
milliseconds everywhere else.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from jobq.core.values.units import parse_size
from jobq.errors import ConfigError, InvalidJob, JobqError, PayloadTooLarge

Seconds = float | timedelta
"""A time span as users write it. A plain number is seconds."""

MAX_NAME_LENGTH = 128
MAX_ID_LENGTH = 256
MAX_PRIORITY = 2**21 - 1
MAX_ACTOR_LENGTH = 256
MAX_MS = 100 * 366 * 86_400_000
"""A century. A longer span is surely a mistake, and sums of spans stay far below 2^53."""
MAX_EPOCH_MS = 253_402_214_400_000
"""The last day of the year 9999. No datetime can represent a later time."""
MAX_COUNT = 2**31 - 1
"""Stores keep counts as signed numbers of 32 bits."""
MAX_STEPS = 1_000
"""Steps that a job may record in one life. Every claim of the job reads all of them."""
MAX_STEPS_BYTES = 2**20
"""Bytes of the names and records of all steps of a job together: 1 MiB, for the same reason."""
_MAX_SHOWN = 80
"""Characters of a value in an error message."""

# Control characters break terminals and logs. Braces are hash tags in a Valkey cluster.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f{}\ud800-\udfff]")

Refusal = type[JobqError]


def shown(value: object) -> str:
    """The value as error messages show it: its repr, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # a user's __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


# ── times ─────────────────────────────────────────────────────────────────────────────────────────


def to_ms(
    value: object,
    option: str,
    *,
    positive: bool = False,
    whole: bool = False,
    error: Refusal = InvalidJob,
) -> int:
    """Seconds (or a timedelta) as milliseconds, rounded up so that nothing happens early.

    `positive` refuses 0. `whole` refuses fractions of a millisecond instead of rounding them.
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
    # In floats 1.001 s is 1000.9999999999999 ms. The error grows with the value.
    if abs(ms - nearest) <= 1e-6 + abs(ms) * 1e-15:
        return nearest
    if whole:
        raise error(f"{option}={shown(value)} is not a whole number of milliseconds")
    return math.ceil(ms) if ms > 0 else math.floor(ms)  # slightly negative stays negative


def to_epoch_ms(value: object, option: str, *, error: Refusal = InvalidJob) -> int:
    """An aware datetime as milliseconds since the epoch.

    A naive one is refused, because its zone is unknown.
    """
    if not isinstance(value, datetime):
        raise error(f"{option}={shown(value)} is not a datetime")
    if value.utcoffset() is None:
        raise error(
            f"{option}={shown(value)} has no time zone: "
            "use datetime.now(timezone.utc) or .astimezone()"
        )
    try:
        ms = math.ceil(value.timestamp() * 1000 - 1e-3)
    except (OverflowError, ValueError):  # in UTC it is outside the calendar
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
    """A whole number from `low` to `high`. True and 1.0 are not whole numbers; an IntEnum is one.

    The result is a plain int.
    """
    if type(value) is not int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise error(f"{option}={shown(value)} is not a whole number")
        value = int.__int__(value)
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise error(f"{option}={shown(value)} is out of range: it must be {bounds}")
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
    """True or False, and nothing that is merely truthy."""
    if not isinstance(value, bool):
        raise error(f"{option}={shown(value)} is neither True nor False")
    return value


def check_choice(
    value: object, option: str, choices: Iterable[str], *, error: Refusal = InvalidJob
) -> str:
    """One of the given words."""
    known = tuple(choices)
    if isinstance(value, str):
        value = str.__str__(value)  # a plain str, also of a subclass
    if not isinstance(value, str) or value not in known:
        raise error(
            f"{option}={shown(value)} is not one of {', '.join(known)}{did_you_mean(value, known)}"
        )
    return value


def check_priority(value: object) -> int:
    """0 to 2^21−1. A higher priority runs first."""
    return check_int(value, "priority", high=MAX_PRIORITY)


def check_max_stalls(value: object) -> int:
    """How many times a job may lose its lease: 0 or more."""
    return check_int(value, "max_stalls", high=MAX_COUNT)


def check_cost(value: object) -> int:
    """How many tokens a start takes from a bucket: 1 or more."""
    return check_int(value, "cost", low=1, high=MAX_COUNT)


# ── spans of a job ────────────────────────────────────────────────────────────────────────────────


def check_delay(value: object) -> int:
    """A delay from now, in ms. 0 is now."""
    return to_ms(value, "delay")


def check_at(value: object) -> int:
    """A point in time, in ms since the epoch."""
    return to_epoch_ms(value, "at")


def check_ttl(value: object, option: str = "ttl") -> int | None:
    """A positive span of whole milliseconds, or None."""
    return None if value is None else to_ms(value, option, positive=True, whole=True)


def check_result_ttl(value: object) -> int:
    """How long a record is kept after the job ends: a positive span of whole milliseconds."""
    return to_ms(value, "result_ttl", positive=True, whole=True)


def check_timeout(value: object) -> int:
    """How long a run may take, in ms. None means no timeout, which a spec stores as 0.

    A timeout of 0 is refused, because it would fail every run.
    """
    return 0 if value is None else to_ms(value, "timeout", positive=True)


def check_grace(value: object) -> int | None:
    """How long a run may take to stop, in ms. None: the worker's setting."""
    return None if value is None else to_ms(value, "grace", error=ConfigError)


def check_bytes(value: object, option: str) -> int:
    """A size in bytes, given as a number or as "512M"."""
    if type(value) is int and value > 0:
        return value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return parse_size(value)
    raise ConfigError(f'{option}={shown(value)} is not a size: give bytes, or "512M"')


# ── names ─────────────────────────────────────────────────────────────────────────────────────────


def check_id(value: object, option: str = "id") -> str:
    """1 to 256 characters, without control characters and braces."""
    return _name(value, option, MAX_ID_LENGTH, InvalidJob)


def check_signal(value: object) -> str:
    """A signal's name: like an id, and not one that jobq reserves."""
    name = check_id(value, "signal")
    if name.startswith("$jobq."):
        raise InvalidJob(f"signal={name!r}: names that begin with $jobq. are reserved")
    return name


def check_step(value: object) -> str:
    """A step's name: like an id."""
    return check_id(value, "step")


def check_steps(steps: Iterable[tuple[str, bytes]]) -> None:
    """Check the names and sizes of records of steps, as a store receives them."""
    for name, data in steps:
        check_step(name)
        check_step_size(name, len(name.encode()) + len(data))


def check_step_size(name: str, size: int) -> None:
    """Raise PayloadTooLarge if all steps of a job, `name` being the last, take `size` bytes."""
    if size > MAX_STEPS_BYTES:
        raise PayloadTooLarge(
            f"step {shown(name)} cannot be recorded: the steps of the job take {size:,} bytes, "
            f"more than the {MAX_STEPS_BYTES:,} allowed. Let steps return references to what they "
            "have stored elsewhere"
        )


def check_key(value: object) -> str:
    """An ordering key: like an id. Whole numbers and UUIDs are converted to text."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 8 * MAX_ID_LENGTH:  # Python converts no longer numbers to text
            raise InvalidJob(f"key={shown(value)} is too long: at most {MAX_ID_LENGTH} characters")
        value = int.__repr__(value)  # an IntEnum has a repr of its own
    elif isinstance(value, UUID):
        value = str(value)
    return _name(value, "key", MAX_ID_LENGTH, InvalidJob)


def check_task_name(value: object, *, error: Refusal = InvalidJob) -> str:
    """A task's name: like an id."""
    return _name(value, "name", MAX_ID_LENGTH, error)


def check_queue_name(value: object, option: str = "queue", *, error: Refusal = InvalidJob) -> str:
    """1 to 128 characters, without control characters and braces."""
    return _name(value, option, MAX_NAME_LENGTH, error)


def check_tenant(value: object, *, error: Refusal = InvalidJob) -> str:
    """Like a queue's name, without colons: a colon separates tenant and queue in keys."""
    tenant = _name(value, "tenant", MAX_NAME_LENGTH, error)
    if ":" in tenant:
        raise error(f"tenant={shown(tenant)} contains a colon, which is not allowed")
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
    """The text as a name that `check_actor` accepts. Characters that are not allowed become "?"."""
    return _UNSAFE.sub("?", text)[:MAX_ACTOR_LENGTH] or "unknown"


def _name(value: object, option: str, longest: int, error: Refusal) -> str:
    if not isinstance(value, str):
        raise error(f"{option}={shown(value)} is not a string")
    # A plain str, also of a subclass (numpy.str_, a member of an enum): no store encodes those.
    value = str.__str__(value)
    if not value:
        raise error(f"{option}='' is empty")
    if len(value) > longest:
        raise error(f"{option}={shown(value)} is too long: at most {longest} characters")
    if bad := _UNSAFE.search(value):
        where = f"{bad[0]!r} at position {bad.start()}"
        raise error(
            f"{option}={shown(value)} has {where}: control characters and braces are not allowed"
        )
    return value


# ── payloads and option names ─────────────────────────────────────────────────────────────────────


def check_bytes_like(value: object, option: str) -> bytes:
    """Encoded data. The result is plain bytes, which nobody can change."""
    if type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(memoryview(value))
    raise InvalidJob(f"{option}={shown(value)} is not bytes")


def check_payload(payload: bytes, limit: int, what: str) -> bytes:
    """Encoded arguments or an encoded result of at most `limit` bytes.

    `what` begins the message of PayloadTooLarge.
    """
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
"""Options of other job queues, with what to use instead."""


def check_known(names: Iterable[str], known: Iterable[str], what: str = "option") -> None:
    """Raise InvalidJob for a name that is not known, with the closest one that is."""
    known = tuple(known)
    for name in names:
        if name not in known:
            raise InvalidJob(
                f"unknown {what} {name!r}{ELSEWHERE.get(name) or did_you_mean(name, known)}"
            )


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or an empty string."""
    from difflib import get_close_matches  # 1 ms, and only a mistake needs it

    near = get_close_matches(value, tuple(known), n=1) if isinstance(value, str) else []
    return f" (did you mean {near[0]!r}?)" if near else ""
