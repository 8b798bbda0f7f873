"""What operators may do to single jobs. Records of the Store seam, like `records`."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from jobq.core.locks import never_started
from jobq.core.records import JobKey
from jobq.core.states import ENDED, PENDING, State

Altered = Literal["done", "late", "missing"]
"""What became of a command. `late`: the job exists and is not in a state for the command, so nothing changed. `missing`: there
is no such job."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do to one job. `late` below means that the store answers so, and changes nothing.

    `actor` is who gives the command, in the caller's words. It is recorded in the events that result for this job, and with
    `cascade` for those below it; for a running job that is asked to stop, in its later `cancelled` event."""

    job: JobKey
    actor: str | None = None


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    """Waiting, delayed, blocked: at once. Active: asked. `cascade`: the jobs it waits for as well, and the
    children it has added and does not wait for yet (those it has notes of, see core/waits.py)."""

    cascade: bool = False
    reason: str = "cancelled"


class Rerun(Command, frozen=True, kw_only=True, tag="rerun"):
    """From any ended state to waiting: life+1, failures and stalls 0, without what it had saved and the signals it had.
    `late` if it has not ended, or if another job holds its unique lock."""


class Promote(Command, frozen=True, kw_only=True, tag="promote"):
    """A delayed job becomes waiting now."""


class Reprioritise(Command, frozen=True, kw_only=True, tag="reprioritise"):
    """A job that has never started gets a new priority, behind those that have it already."""

    priority: int


class Reschedule(Command, frozen=True, kw_only=True, tag="reschedule"):
    """A waiting or delayed job becomes due at another time."""

    delay_ms: int = 0
    at_ms: int | None = None


class Update(Command, frozen=True, kw_only=True, tag="update"):
    """New arguments for a job that has never started (delayed, blocked or waiting)."""

    payload: bytes
    codec: str = "json"


class Remove(Command, frozen=True, kw_only=True, tag="remove"):
    """An ended job's record goes. An unfinished one is cancelled with reason `removed`; `late` if it is active."""


class SendSignal(Command, frozen=True, kw_only=True, tag="signal"):
    """Wakes `wait_for_signal(name)`; kept if the job is not waiting for it yet. `late` if the job has ended."""

    name: str
    value: bytes = b"null"


AnyCommand = Cancel | Rerun | Promote | Reprioritise | Reschedule | Update | Remove | SendSignal


class Applies(NamedTuple):
    """Which jobs a command is for."""

    states: frozenset[State]
    unstarted: bool = False  # only jobs that have never started


_UNFINISHED = PENDING | {State.ACTIVE}
APPLIES: dict[str, Applies] = {
    "cancel": Applies(_UNFINISHED),
    "rerun": Applies(ENDED),
    "promote": Applies(frozenset({State.DELAYED})),
    "reprioritise": Applies(PENDING, unstarted=True),
    "reschedule": Applies(frozenset({State.DELAYED, State.WAITING})),
    "update": Applies(PENDING, unstarted=True),
    "remove": Applies(PENDING | ENDED),
    "signal": Applies(_UNFINISHED),
}
"""By the tag of a command. The Lua library is built with this table."""


def applies(command: AnyCommand, state: State, attempt: int) -> bool:
    """Whether the job is in a state for the command. If it is not, the command is too late (or too early) and changes nothing."""
    rule = APPLIES[command.__struct_config__.tag]  # type: ignore[index]
    return state in rule.states and (not rule.unstarted or never_started(attempt))
