"""What operators may do to single jobs. Records of the Store seam, like `records`."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobq.core.records import JobKey

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
    """A job that has not started gets a new priority, behind those that have it already."""

    priority: int


class Reschedule(Command, frozen=True, kw_only=True, tag="reschedule"):
    """A waiting or delayed job becomes due at another time."""

    delay_ms: int = 0
    at_ms: int | None = None


class Update(Command, frozen=True, kw_only=True, tag="update"):
    """New arguments for a job that has not started (delayed, blocked or waiting)."""

    payload: bytes
    codec: str = "json"


class Remove(Command, frozen=True, kw_only=True, tag="remove"):
    """An ended job's record goes. An unfinished one is cancelled with reason `removed`; `late` if it is active."""


class SendSignal(Command, frozen=True, kw_only=True, tag="signal"):
    """Wakes `wait_for_signal(name)`; kept if the job is not waiting for it yet. `late` if the job has ended."""

    name: str
    value: bytes = b"null"


AnyCommand = Cancel | Rerun | Promote | Reprioritise | Reschedule | Update | Remove | SendSignal
