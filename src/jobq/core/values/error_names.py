"""What records call jobq's own errors: `jobq.Reject`, whichever module defines it.

Modules may move, stored names never change. Records of older versions name the module too.
"""

from __future__ import annotations

import re

_MODULES = re.compile(r"jobq\.(?:[a-z_][a-z0-9_]*\.)+(?=[A-Z])")
_ONCE_IN = {
    "CommandFailed": "executors.command",
    "NotCommitted": "engine.completions",
    "NotHere": "core.codec",
    "ProcessCrashed": "core.decide",
    "RateLimited": "core.control",
    "Reject": "core.control",
    "RetryAfter": "core.control",
    "Snooze": "core.control",
    "UnknownTask": "core.decide",
}
"""The modules of errors that were not in `errors` when records named modules."""


def public_name(type: str) -> str:
    """The type of an error without the module, if it is jobq's own: `jobq.errors.LeaseLost` is
    `jobq.LeaseLost`."""
    found = _MODULES.match(type)
    return type if found is None else f"jobq.{type[found.end() :]}"


def former_name(type: str) -> str:
    """The name that older records have for a type. Patterns of users may contain it, and
    fingerprints are made from it, so that those of old and new failures are equal."""
    package, _, name = type.partition(".")
    if package != "jobq" or not name[:1].isupper():
        return type
    return f"jobq.{_ONCE_IN.get(name, 'errors')}.{name}"
