"""What a held unique lock means for a new job, and when a lock is released.

The rules are tables: stores look them up, and the Lua library is built with them (stores/valkey/constants.py).

- `simple` holds the lock until its job ends.
- `throttle` holds it for its ttl, whatever happens to the job meanwhile, even when its record is gone. A cancel releases it.
- `debounce` replaces the data of the job that holds the lock until that job starts for the first time. From then on the started
  job goes on with its own arguments, also while it is blocked, snoozed or waiting for a retry; a new job is accepted and takes
  the lock over.
- `keep_last` does the same until the first start. While the started job has not ended, new jobs collapse into one follow-up with
  the newest data, which gets the lock when the started job ends.

A follow-up may also follow a job of another mode, for example after a deploy that changed the mode, or one whose lock has
outlived its ttl. `passes_on` lets it go on in every case, so that no follow-up stays blocked for ever.
"""

from __future__ import annotations

from typing import Literal

from jobq.core.records import UniqueMode
from jobq.core.states import State

Standing = Literal["fresh", "started", "ended", "gone"]
"""How the holder of a lock stands: never started · started and not ended · ended · without a record."""

OnHeldLock = Literal["duplicate", "replace", "follow", "accept"]
"""What becomes of a new job whose lock is held: it is a duplicate of the holder · it is one, and the holder gets its data · it is
accepted and blocked until the holder ends (or, if the holder has a follow-up already, replaces that one's data) · it is accepted
and takes the lock."""

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

KEPT_WHEN_REPLACED = ("priority", "policy", "schedule", "origin")
"""Options that a replaced job keeps, beside its id, name and key. All others are the new job's."""


def never_started(attempt: int) -> bool:
    """Whether a job has never started: only then may others change what it will do. `attempt` leaves out those that were put off
    (`unknown.starts`)."""
    return attempt == 0


def standing(state: State | None, attempt: int) -> Standing:
    """How the holder of a lock stands; `state` None: its record is gone. Copied by lua/unique.lua."""
    if state is None:
        return "gone"
    if state.ended:
        return "ended"
    return "fresh" if never_started(attempt) and state is not State.ACTIVE else "started"


def on_held_lock(mode: UniqueMode, holder: Standing) -> OnHeldLock:
    """What becomes of a new job of this mode."""
    return ON_HELD_LOCK[mode][holder]


def releases(mode: UniqueMode, end: State) -> bool:
    """Whether the end of its job releases a lock. A throttle holds on for its ttl, unless the job was cancelled."""
    return mode != "throttle" or end is State.CANCELLED


def passes_on(holder: Standing | None) -> bool:
    """Whether the end of a job lets the follow-up of its lock go on; `holder`: who holds the lock then, None if nobody does.
    It waits on only if another unfinished job has taken the lock over. If nobody holds the lock, the follow-up takes it.
    Copied by lua/unique.lua."""
    return holder not in ("fresh", "started")
