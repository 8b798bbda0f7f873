"""Commands that operators give on single jobs. Part of the Store contract."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from jobq.core.records.jobs import JobKey
from jobq.core.records.states import ENDED, PENDING, State, never_started

Altered = Literal["done", "late", "missing"]
"""The result of a command.

`done`: the command was carried out. `late`: the job is not in a state for the command, or not in
the life that the command names, so nothing changed. `missing`: there is no such job, or its
retention has passed.
"""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command on one job. Where a docstring says `late`, the command changes nothing.

    `actor` is who gives the command. It is recorded in the events of this job, and with `cascade`
    in those of the jobs it depends on. For a running job that is asked to stop, it is recorded in
    the later `cancelled` event.

    `life` is the life of the job that the command is for. If the job is in another life by now, the
    command is `late`. None: whichever life the job is in.
    """

    job: JobKey
    actor: str | None = None
    life: int | None = None


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    """Cancel a job.

    A waiting, delayed or blocked job is cancelled at once; an active one is asked to stop.
    `cascade` also cancels the jobs it waits for, and the children that it has added and does not
    wait for yet (see core/rules/waits.py).
    """

    cascade: bool = False
    reason: str = "cancelled"


class Rerun(Command, frozen=True, kw_only=True, tag="rerun"):
    """Run an ended job again: it is waiting with life+1, and failures and stalls are 0.

    What the job had saved and the signals it had received are removed. `late` if the job has not
    ended, or if another job holds its unique lock.
    """


class Revive(Command, frozen=True, kw_only=True, tag="revive"):
    """Run a failed or cancelled member of a flow again, and keep what is finished.

    Like `Rerun`, but what the job had saved, its steps, its signals, its children and the results
    that it has received stay. The job is blocked until the jobs end that it waits for and whose
    results it does not have; it is waiting if there are none. If such a job has ended without
    completing, or is gone, the policy `fail` fails this job again at once. So revive the jobs that
    it waits for first (core/rules/flows.py: `revivals`).
    """


class Promote(Command, frozen=True, kw_only=True, tag="promote"):
    """Make a delayed job waiting now."""


class Reprioritise(Command, frozen=True, kw_only=True, tag="reprioritise"):
    """Change the priority of a job that has never started.

    It goes behind the jobs that already have it.
    """

    priority: int


class Reschedule(Command, frozen=True, kw_only=True, tag="reschedule"):
    """Change when a waiting or delayed job is due."""

    delay_ms: int = 0
    at_ms: int | None = None


class Update(Command, frozen=True, kw_only=True, tag="update"):
    """Replace the arguments of a job that has never started (delayed, blocked or waiting)."""

    payload: bytes
    codec: str = "json"


class Remove(Command, frozen=True, kw_only=True, tag="remove"):
    """Remove the record of an ended job, or cancel a waiting, delayed or blocked one as `removed`.

    `late` if the job is active.
    """


class SendSignal(Command, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to a job, which `wait_for_signal(name)` receives.

    The signal is kept if the job does not wait for it yet. `late` if the job has ended, or if it
    has `defaults.MAX_SIGNALS` of them; the notes about its children count.
    """

    name: str
    value: bytes = b"null"


AnyCommand = (
    Cancel | Rerun | Revive | Promote | Reprioritise | Reschedule | Update | Remove | SendSignal
)


class Applies(NamedTuple):
    """Which jobs a command applies to."""

    states: frozenset[State]
    unstarted: bool = False  # only jobs that have never started


_UNFINISHED = PENDING | {State.ACTIVE}
APPLIES: dict[str, Applies] = {
    "cancel": Applies(_UNFINISHED),
    "rerun": Applies(ENDED),
    "revive": Applies(ENDED - {State.COMPLETED}),
    "promote": Applies(frozenset({State.DELAYED})),
    "reprioritise": Applies(PENDING, unstarted=True),
    "reschedule": Applies(frozenset({State.DELAYED, State.WAITING})),
    "update": Applies(PENDING, unstarted=True),
    "remove": Applies(PENDING | ENDED),
    "signal": Applies(_UNFINISHED),
}
"""By the tag of the command. The Lua library is built with this table."""


def applies(command: AnyCommand, state: State, attempt: int, life: int) -> bool:
    """Whether the command applies to a job in this state and life. If not, it changes nothing."""
    rule = APPLIES[command.__struct_config__.tag]  # type: ignore[index]
    return (
        state in rule.states
        and (not rule.unstarted or never_started(attempt))
        and command.life in (None, life)
    )
