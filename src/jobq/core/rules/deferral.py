"""Jobs that a worker cannot run, but another one may: they are deferred.

`unknown`: the worker has no such task. `unfit`: it has the task, but the arguments do not fit it.
In a deploy, both pass when the right worker comes. A job that was deferred every time it was
claimed counts as not yet started: its ttl continues, and it can still be changed. Pure.

The two reasons have clocks of their own, because a deploy may turn one into the other:

- A worker that finds the arguments unfit has the task, so the hour of `unknown` begins again.
- A worker that does not know the task says nothing about the arguments, so the five minutes of
  `unfit` go on. A fleet of both kinds of workers therefore does not defer a job for ever.
- New arguments (an update, or a unique job that replaces this one) begin the five minutes again.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.jobs import DeferReason, Deferred, JobRecord, Lease, Mode
from jobq.core.records.states import State
from jobq.core.values.printable import one_line
from jobq.core.values.units import moment

FIRST_MS = 1_000
"""The first delay. A rolling deploy often takes no longer."""
LONGEST_MS = 30_000
"""The longest delay: how late a job may run after a worker that can run it has started."""
GIVE_UP_MS: dict[DeferReason, int] = {"unknown": 3_600_000, "unfit": 300_000}
"""A job whose task no worker has known for an hour fails, and so does one whose arguments have
fitted no worker for five minutes.

By then it is a mistake, not a deploy in progress.
"""
MAX_TEXT = 500
"""Characters of the text that a deferred job keeps. A failure has more."""


class PutOff(NamedTuple):
    """What a store keeps about a job that was deferred in this life, besides `Deferred`."""

    times: int = 0  # how many attempts were deferred
    since_ms: int = 0  # since when no worker has known the task
    # When the job was due before, which its ttl counts from. 0: it was rescheduled since.
    due_ms: int = 0

    def again(self, reason: DeferReason, *, now_ms: int, due_ms: int | None) -> PutOff:
        """The record after one more deferral.

        `due_ms` is the job's. Copied by lua/unknown.lua (J.defer).
        """
        if not self.times:
            return PutOff(1, now_ms, due_ms or now_ms)
        return PutOff(self.times + 1, now_ms if reason == "unfit" else self.since_ms, self.due_ms)


def deferred(
    before: Deferred | None, reason: DeferReason, text: str, *, attempt: int, now_ms: int
) -> Deferred:
    """The record of one more deferral. Copied by lua/unknown.lua (J.defer)."""
    unfit_ms = 0 if before is None else before.unfit_ms
    if reason == "unfit" and not unfit_ms:
        unfit_ms = now_ms
    return Deferred(reason, text, attempt, unfit_ms)


def starts(attempt: int, put_off: PutOff | None) -> int:
    """How many of the attempts began a run. Copied by lua/unknown.lua (J.starts)."""
    return attempt if put_off is None else attempt - put_off.times


def delay_ms(lease: Lease, reason: DeferReason, now_ms: int) -> int | None:
    """How long to defer a job: 1, 2, 4, 8, 16, 30, 30 … s. None: give up."""
    since_ms = lease.unknown_ms if reason == "unknown" else lease.unfit_ms
    waited_ms = 0 if since_ms is None else max(0, now_ms - since_ms)
    return None if waited_ms >= GIVE_UP_MS[reason] else min(FIRST_MS + waited_ms, LONGEST_MS)


def waits(mode: Mode | None, delay: int) -> tuple[int, int]:
    """The delays of the job and of its key, in ms. Copied by lua/unknown.lua (J.defer).

    In a keyed queue the job keeps its place and its key is held, so no job of the key overtakes it.
    """
    return (0, delay) if mode == "keyed" else (delay, 0)


def sentence(record: JobRecord, *, hide: bool = False) -> str | None:
    """Why a job that waits has not run, in one sentence. None if its last run was not deferred.

    `hide` leaves out what may contain parts of its arguments.
    """
    last = record.deferred
    if (
        last is None
        or last.attempt != record.attempt
        or record.state not in (State.WAITING, State.DELAYED)
    ):
        return None
    if last.reason == "unknown":
        return (
            f"deferred, because no worker that claimed it has a task named {record.name!r}; it "
            "fails if none has for an hour"
        )
    since = moment(last.unfit_ms).isoformat(timespec="seconds")
    why = "" if hide or not last.text else f" ({one_line(last.text)})"
    return (
        f"deferred, because its arguments do not fit the workers' version of the task{why}; it "
        f"fails if they fit none within 5 minutes from {since}"
    )
