"""The lock of a unique job: a digest of what makes two calls the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from jobq.core.checks import did_you_mean, shown
from jobq.core.codec import JSON, Codec
from jobq.core.policies import Unique
from jobq.core.records import UniqueSpec
from jobq.errors import InvalidJob


def unique_spec(
    unique: Unique, task: str, bound: Mapping[str, Any], codec: Codec = JSON
) -> UniqueSpec:
    """The lock that a spec carries.

    `bound` has the arguments by name (`CallShape.bound`), so that f(1) and f(x=1) are the same.
    With debounce, the period delays the job (see `debounce_ms`), and the lock is held until the job
    starts.
    """
    ttl_ms = None if unique.mode == "debounce" else unique.period_ms
    return UniqueSpec(lock=lock(unique.fields, task, bound, codec), mode=unique.mode, ttl_ms=ttl_ms)


def debounce_ms(unique: Unique) -> int:
    """How long a job waits for another one to replace it, unless it has a delay of its own."""
    return unique.period_ms or 0 if unique.mode == "debounce" else 0


def lock(fields: tuple[str, ...], task: str, bound: Mapping[str, Any], codec: Codec = JSON) -> str:
    """The digest of the task's name and the chosen arguments, in any order.

    If no fields are chosen, all arguments count.
    """
    for field in fields:
        if field not in bound:
            raise InvalidJob(
                f"Unique field {shown(field)} is not an argument of {task}"
                f"{did_you_mean(field, bound)}"
            )
    chosen = [[name, bound[name]] for name in sorted(fields or bound)]
    return hashlib.blake2b(codec.digestible([task, chosen]), digest_size=16).hexdigest()
