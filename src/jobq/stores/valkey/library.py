"""The function library: the Lua files with core's constants, under a name that contains its
version.

Lua files use the names of these constants and do not repeat the values. A change in core reaches
the server with the next library.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from jobq.core.records import defaults
from jobq.core.records.commands import APPLIES
from jobq.core.records.event_log import KIND_CODES, STATE_CODES
from jobq.core.records.failures import MAX_ERRORS, MAX_MESSAGE
from jobq.core.records.jobs import MAX_AFTER
from jobq.core.rules import clock, limits, locks, outcomes
from jobq.core.rules.options import KEPT, LETTER
from jobq.core.rules.outcomes import DEFAULT_MAX_STALLS, EFFECTS
from jobq.core.values.checks import MAX_ID_LENGTH
from jobq.stores.valkey.keys import LUA, with_values

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
    "stalled": outcomes.STALLED_TEXT,
    "expired": outcomes.EXPIRED_TEXT,
    "child_failed": outcomes.CHILD_FAILED_TEXT,
    "child_cancelled": outcomes.CHILD_CANCELLED_TEXT,
    "child_gone": outcomes.CHILD_GONE_TEXT,
    "unreadable": outcomes.UNREADABLE_TEXT,
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
    """The Lua statements that define core's constants."""
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


# Releases with different versions use functions of different names and can run side by side. Every
# edit of the library changes DIGEST, which a test compares with a checked-in one. So an edit forces
# a decision: if the new library does not understand data of the old one, raise VERSION.

VERSION = "jobq_v2"

FILES = (
    "bytes",
    "commands",
    "context",
    "clock",
    "counters",
    "log",
    "record",
    "stalls",
    "unknown",
    "verdicts",
    "waiting",
    "keyed",
    "holds",
    "rates",
    "move",
    "unique",
    "bounds",
    "signals",
    "upkeep",
    "claim",
    "flow",
    "dead_letters",
    "staging",
    "put",
    "uniform",
    "restore",
    "completions",
    "settle",
    "leases",
    "alter",
    "reads",
    "readers",
    "queues",
    "purges",
    "schedules",
    "presence",
    "manifest",
)
_SHARED = """local J = {}
local call, mpack, munpack = redis.call, cmsgpack.pack, cmsgpack.unpack
local spack, sunpack, null = struct.pack, struct.unpack, cjson.null
"""


def _text() -> tuple[str, str]:
    blocks = "".join(f"do\n{_read(name)}end\n" for name in FILES)
    body = (
        f"local function build()\n{_SHARED}{constants()}{blocks}return J\nend\n{_read('register')}"
    )
    digest = sha256(body.encode()).hexdigest()[:16]
    return f'#!lua name={VERSION}\nlocal VERSION, DIGEST = "{VERSION}", "{digest}"\n{body}', digest


def _read(name: str) -> str:
    return with_values((LUA / f"{name}.lua").read_text())


LIBRARY, DIGEST = _text()


def function(name: str) -> bytes:
    """The full name of a function, as FCALL takes it."""
    return f"{VERSION}_{name}".encode()
