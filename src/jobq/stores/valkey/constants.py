"""Codes, defaults, tables and words of `jobq.core`, written as Lua when the library is built.

Lua files use these names and do not repeat the values. A change in core reaches the server with the
next library.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobq.core import clock, defaults, limits, locks, verdicts
from jobq.core.commands import APPLIES
from jobq.core.event_log import KIND_CODES, STATE_CODES
from jobq.core.failures import MAX_ERRORS, MAX_MESSAGE
from jobq.core.options import KEPT, LETTER
from jobq.core.outcomes import EFFECTS
from jobq.core.records import MAX_AFTER, MAX_ID_LENGTH
from jobq.core.stalls import DEFAULT_MAX_STALLS

_DEFAULTS = {
    "completed_ms": defaults.COMPLETED_MS,
    "failed_ms": defaults.FAILED_MS,
    "cancelled_ms": defaults.CANCELLED_MS,
    "kept": defaults.KEPT_JOBS,
    "watched_ms": defaults.WATCHED_MS,
    "max_stalls": DEFAULT_MAX_STALLS,
    "errors": MAX_ERRORS,
    "key_limit": defaults.KEY_LIMIT,
    "lines": defaults.LOG_LINES,
    "signals": defaults.MAX_SIGNALS,
    "children": MAX_AFTER,
    "error_length": defaults.ERROR_LENGTH,
    "log_events": defaults.LOG_EVENTS["valkey"],
    "log_cap": defaults.LOG_CAP["valkey"],
    "message_length": MAX_MESSAGE,
    "id_length": MAX_ID_LENGTH,
}
_RATES = {
    "epsilon": limits.EPSILON,
    # How much longer than it matters the state of a key's rate limit is stored.
    "margin_ms": defaults.MINUTE_MS,
}
_WORDS = {
    "stalled": verdicts.STALLED,
    "expired": verdicts.EXPIRED,
    "child_failed": verdicts.CHILD_FAILED,
    "child_cancelled": verdicts.CHILD_CANCELLED,
    "child_gone": verdicts.CHILD_GONE,
    "unreadable": verdicts.UNREADABLE,
}
_EFFECTS = {
    tag: {
        "kind": effect.kind.value,
        "state": STATE_CODES[effect.state],
        "failed": effect.failed,
        "returns": effect.returns,
    }
    for tag, effect in EFFECTS.items()
}
_APPLIES = {
    tag: {state.value: state in rule.states for state in STATE_CODES}
    | {"unstarted": rule.unstarted}
    for tag, rule in APPLIES.items()
}


def constants() -> str:
    """The Lua statements that define them."""
    tables: dict[str, object] = {
        "STATE": STATE_CODES,
        "KIND": KIND_CODES,
        "DEFAULT": _DEFAULTS,
        "RATES": _RATES,
        "CLOCK": {"jitter_ms": clock.JITTER_MS, "full_speed_ms": clock.FULL_SPEED_MS},
        "WORDS": _WORDS,
        "ON_HELD_LOCK": locks.ON_HELD_LOCK,
        "KEPT_WHEN_REPLACED": tuple(each.recorded for each in KEPT),
        "LETTER": tuple(each.recorded for each in LETTER),
        "EFFECTS": _EFFECTS,
        "APPLIES": _APPLIES,
    }
    return "".join(f"J.{name} = {_lua(value)}\n" for name, value in tables.items())


def _lua(value: object) -> str:
    """A value as a Lua expression."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_lua(each)}" for name, each in value.items()) + " }"
    if isinstance(value, tuple):
        return "{ " + ", ".join(map(_lua, value)) + " }"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
