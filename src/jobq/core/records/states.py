"""The seven states and the one table of legal transitions. docs/states.md is generated from it.

                ┌───────── promoted ────────┐
accepted ──► delayed                        ▼
   ├───────► blocked ──── unblocked ───► waiting ── started ──► active ── completed ──► completed
   └────────────────────────────────────►   ▲                     │ ├──── failed ─────► failed
                                            └─ stalled, released, ┘ └──── cancelled ──► cancelled
                                               limited, retried, snoozed
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """The state of a job. The failed jobs of a queue are its dead letters."""

    DELAYED = "delayed"
    BLOCKED = "blocked"
    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Completed, failed or cancelled."""
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
PENDING = frozenset({State.DELAYED, State.BLOCKED, State.WAITING})
SHOWN = (
    State.WAITING,
    State.ACTIVE,
    State.DELAYED,
    State.BLOCKED,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
)
"""The order in which people read counts: what runs next comes first, and what has ended last."""


class Kind(StrEnum):
    """What happened to a job: the kind of a lifecycle event."""

    ACCEPTED = "accepted"
    PROMOTED = "promoted"
    UNBLOCKED = "unblocked"
    STARTED = "started"
    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    STALLED = "stalled"
    RELEASED = "released"
    LIMITED = "limited"
    BLOCKED = "blocked"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RERUN = "rerun"
    CHANGED = "changed"


BIRTHS = frozenset({Kind.ACCEPTED, Kind.RERUN})
"""Kinds that start a life of a job. `rerun` is the only one that raises `life`, by one; a new job
under the id of an ended one has the next life too, or 0 if the store no longer knew the id.
`started` is the only kind that raises `attempt`, by one."""


class QueueKind(StrEnum):
    """What was done to a queue: the kind of an event that has no job. `reason` has the details."""

    PAUSED = "paused"
    RESUMED = "resumed"
    LIMITS = "limits"
    HELD = "held"
    RELEASED_HOLD = "released_hold"
    CLEARED = "cleared"
    PURGED = "purged"
    SCHEDULE = "schedule"
    MISSED = "missed"
    OBLITERATED = "obliterated"
    RELEASED_LOCK = "released_lock"


class Transition(NamedTuple):
    """One legal step. `previous` is None for a job that did not exist."""

    kind: Kind
    previous: State | None
    state: State
    when: str


_S, _K = State, Kind

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_K.ACCEPTED, None, _S.WAITING, "enqueued, due now"),
    Transition(_K.ACCEPTED, None, _S.DELAYED, "enqueued with a delay or a time"),
    Transition(
        _K.ACCEPTED,
        None,
        _S.BLOCKED,
        "enqueued with jobs it depends on, or as the follow-up of a running unique job",
    ),
    Transition(_K.PROMOTED, _S.DELAYED, _S.WAITING, "it is due, or an operator promoted it"),
    Transition(
        _K.UNBLOCKED,
        _S.BLOCKED,
        _S.WAITING,
        "the last job it waited for ended, or its signal arrived",
    ),
    Transition(
        _K.UNBLOCKED, _S.BLOCKED, _S.DELAYED, "the same, for a job with a delay, which starts now"
    ),
    Transition(_K.STARTED, _S.WAITING, _S.ACTIVE, "claimed by a worker; attempt+1"),
    Transition(_K.COMPLETED, _S.ACTIVE, _S.COMPLETED, "the handler returned"),
    Transition(
        _K.RETRIED, _S.ACTIVE, _S.DELAYED, "the handler failed with retries left; failures+1"
    ),
    Transition(_K.RETRIED, _S.ACTIVE, _S.WAITING, "the same without a delay"),
    Transition(
        _K.SNOOZED,
        _S.ACTIVE,
        _S.DELAYED,
        "the handler snoozed it, or the worker does not know the task (unknown), or the arguments "
        "do not fit it (unfit)",
    ),
    Transition(
        _K.SNOOZED,
        _S.ACTIVE,
        _S.WAITING,
        "the same without a delay; in a keyed queue a job that no worker can run holds its key",
    ),
    Transition(
        _K.STALLED, _S.ACTIVE, _S.WAITING, "its lease expired; stalls+1; it returns to the front"
    ),
    Transition(
        _K.RELEASED,
        _S.ACTIVE,
        _S.WAITING,
        "a stopping worker released it; it returns to the front",
    ),
    Transition(
        _K.LIMITED, _S.ACTIVE, _S.WAITING, "the handler met a rate limit; it returns to the front"
    ),
    Transition(_K.BLOCKED, _S.ACTIVE, _S.BLOCKED, "the handler waits for children or for a signal"),
    Transition(
        _K.FAILED,
        _S.ACTIVE,
        _S.FAILED,
        "no retries left, rejected, or past max_stalls; failures+1 unless stalled",
    ),
    Transition(_K.FAILED, _S.WAITING, _S.FAILED, "not started within its ttl (expired)"),
    Transition(
        _K.FAILED, _S.BLOCKED, _S.FAILED, "a job it depends on failed and the policy is `fail`"
    ),
    Transition(
        _K.CANCELLED, _S.DELAYED, _S.CANCELLED, "cancelled, removed or replaced before it ran"
    ),
    Transition(_K.CANCELLED, _S.BLOCKED, _S.CANCELLED, "cancelled or removed before it ran"),
    Transition(_K.CANCELLED, _S.WAITING, _S.CANCELLED, "cancelled or removed before it ran"),
    Transition(
        _K.CANCELLED, _S.ACTIVE, _S.CANCELLED, "asked to stop while it ran, and did not succeed"
    ),
    Transition(_K.RERUN, _S.COMPLETED, _S.WAITING, "an operator ran it again; life+1"),
    Transition(_K.RERUN, _S.FAILED, _S.WAITING, "an operator ran it again; life+1"),
    Transition(_K.RERUN, _S.CANCELLED, _S.WAITING, "an operator ran it again; life+1"),
    Transition(
        _K.RERUN,
        _S.FAILED,
        _S.BLOCKED,
        "its flow was rerun, and it waits for other members again; life+1",
    ),
    Transition(_K.RERUN, _S.CANCELLED, _S.BLOCKED, "the same for a cancelled member"),
    Transition(_K.CHANGED, _S.DELAYED, _S.DELAYED, "new arguments, priority or time"),
    Transition(_K.CHANGED, _S.BLOCKED, _S.BLOCKED, "new arguments or priority"),
    Transition(_K.CHANGED, _S.WAITING, _S.WAITING, "new arguments or priority"),
    Transition(_K.CHANGED, _S.WAITING, _S.DELAYED, "rescheduled to a later time"),
)

_LEGAL = frozenset((t.kind, t.previous, t.state) for t in TRANSITIONS)


def legal(kind: Kind, previous: State | None, state: State) -> bool:
    """Whether `kind` may take a job from `previous` to `state`."""
    return (kind, previous, state) in _LEGAL


def never_started(attempt: int) -> bool:
    """Whether a job has never started. Only then may others change what it will do.

    `attempt` does not count attempts that were deferred (`deferral.starts`).
    """
    return attempt == 0
