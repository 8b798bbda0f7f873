"""What the Lua library knows of `jobq.core`: codes, defaults and words, written as Lua when the library is built.

Lua files use these names and state none of the values again, so a change in core reaches the server with the next library.
"""

from __future__ import annotations

from collections.abc import Mapping

from jobq.core import defaults, limits
from jobq.core.events import KIND_CODES, STATE_CODES

_DEFAULTS = {
    "completed_ms": defaults.COMPLETED_MS,
    "failed_ms": defaults.FAILED_MS,
    "cancelled_ms": defaults.CANCELLED_MS,
    "kept": defaults.KEPT,
    "watched_ms": defaults.WATCHED_MS,
    "max_stalls": defaults.MAX_STALLS,
    "key_limit": defaults.KEY_LIMIT,
    "lines": defaults.LINES,
    "error_length": defaults.ERROR_LENGTH,
}
_RATES = {
    "epsilon": limits.EPSILON,
    "margin_ms": defaults.MINUTE_MS,  # the server forgets the state of a key's limit this long after it has stopped to matter
}


def constants() -> str:
    """The Lua statements, in a block of their own."""
    tables: dict[str, Mapping[str, float | str]] = {
        "STATE": {state.value: code for state, code in STATE_CODES.items()},
        "KIND": {kind.value: code for kind, code in KIND_CODES.items()},
        "DEFAULT": _DEFAULTS,
        "RATES": _RATES,
    }
    return "".join(f"J.{name} = {_table(values)}\n" for name, values in tables.items())


def _table(values: Mapping[str, float | str]) -> str:
    return "{ " + ", ".join(f"{name} = {_value(value)}" for name, value in values.items()) + " }"


def _value(value: float | str) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return repr(value)
