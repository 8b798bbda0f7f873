"""Unique locks: a digest of what makes two calls the same, and what a held lock means for a new
job.

The rules are tables. Stores look them up, and the Lua library is built with them
(stores/valkey/library.py).

- `simple` holds the lock until its job ends.
- `throttle` holds the lock for its period, whatever happens to the job, even if its record is
  removed. Only a cancel releases it earlier.
- `debounce` replaces the data of the job that holds the lock until that job first starts. After
  that, the started job keeps its own arguments, also while it is blocked, snoozed or waiting for a
  retry. A new job is accepted and takes the lock.
- `keep_last` does the same until the first start. While the started job has not ended, new jobs
  collapse into one follow-up with the newest data, which gets the lock when the started job ends.

A follow-up may also follow a job of another mode, for example after a deploy that changed the mode,
or a job whose lock has expired. `passes_on` unblocks it in every case, so that no follow-up stays
blocked forever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from jobq.core.policies import Unique
from jobq.core.records.jobs import UniqueMode, UniqueSpec
from jobq.core.records.states import State, never_started
from jobq.core.values.checks import did_you_mean, shown
from jobq.core.values.codec import JSON, Codec
from jobq.errors import InvalidJob

Standing = Literal["fresh", "started", "ended", "gone"]
"""The state of a lock's holder: never started · started · ended · without a record."""

OnHeldLock = Literal["duplicate", "replace", "follow", "accept"]
"""What happens to a new job whose lock is held.

`duplicate`: it is a duplicate of the holder. `replace`: it is a duplicate, and the holder gets its
data. `follow`: it is accepted and blocked until the holder ends; if there is a follow-up already,
that one gets its data. `accept`: it is accepted and takes the lock.
"""

ON_HELD_LOCK: dict[UniqueMode, dict[Standing, OnHeldLock]] = {
    "simple": {
        "fresh": "duplicate",
        "started": "duplicate",
        "ended": "duplicate",
        "gone": "accept",
    },
    "throttle": {
        "fresh": "duplicate",
        "started": "duplicate",
        "ended": "duplicate",
        "gone": "duplicate",
    },
    "debounce": {"fresh": "replace", "started": "accept", "ended": "accept", "gone": "accept"},
    "keep_last": {"fresh": "replace", "started": "follow", "ended": "duplicate", "gone": "accept"},
}


def standing(state: State | None, attempt: int) -> Standing:
    """The state of a lock's holder.

    `state` is None if its record is gone. Copied by lua/unique.lua.
    """
    if state is None:
        return "gone"
    if state.ended:
        return "ended"
    return "fresh" if never_started(attempt) and state is not State.ACTIVE else "started"


def on_held_lock(mode: UniqueMode, holder: Standing) -> OnHeldLock:
    """What happens to a new job of this mode."""
    return ON_HELD_LOCK[mode][holder]


def releases(mode: UniqueMode, end: State) -> bool:
    """Whether the end of a job releases its lock.

    A throttle keeps the lock unless the job was cancelled.
    """
    return mode != "throttle" or end is State.CANCELLED


def passes_on(holder: Standing | None) -> bool:
    """Whether the end of a job unblocks the follow-up of its lock. Copied by lua/unique.lua.

    `holder` is the state of the job that now holds the lock, or None. The follow-up stays blocked
    only if another unfinished job has taken the lock. If no job holds the lock, the follow-up takes
    it.
    """
    return holder not in ("fresh", "started")


def unique_spec(
    unique: Unique, task: str, bound: Mapping[str, Any], codec: Codec = JSON
) -> UniqueSpec:
    """The lock that a spec carries.

    `bound` has the arguments by name (`CallShape.bound`), so that f(1) and f(x=1) are the same.
    With debounce, the period delays the job (see `debounce_ms`), and the lock is held until the job
    starts.
    """
    ttl_ms = None if unique.mode == "debounce" else unique.period_ms
    return UniqueSpec(
        lock=unique_lock(unique.fields, task, bound, codec), mode=unique.mode, ttl_ms=ttl_ms
    )


def debounce_ms(unique: Unique) -> int:
    """How long a job waits for another one to replace it, unless it has a delay of its own."""
    return unique.period_ms or 0 if unique.mode == "debounce" else 0


def unique_lock(
    fields: tuple[str, ...], task: str, bound: Mapping[str, Any], codec: Codec = JSON
) -> str:
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
