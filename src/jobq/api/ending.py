"""What the end of a run means for its job: for middleware that counts, traces or reports runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import msgspec

from jobq.api.current import CurrentJob
from jobq.core.decide import End, Raised, decide
from jobq.core.records import (
    AnyOutcome,
    Block,
    Complete,
    Fail,
    Failure,
    Hold,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.engine.around import FailedApart
from jobq.engine.run import LeaseOver, Run
from jobq.errors import ConfigError

Outcome = Literal["completed", "retried", "failed", "snoozed", "limited", "blocked", "released"]

_OUTCOMES: dict[type[AnyOutcome], Outcome] = {
    Complete: "completed",
    RetryLater: "retried",
    Fail: "failed",
    SnoozeFor: "snoozed",
    Hold: "limited",
    Block: "blocked",
    Release: "released",
}


class Ending(msgspec.Struct, frozen=True):
    """How a run ends. `failed` is final; `released` also means cancelled, deferred because the
    arguments do not fit, or that the lease is lost."""

    outcome: Outcome
    failure: Failure | None = None  # of a run that failed, also if it is retried


def ending_of(job: CurrentJob, error: BaseException | None) -> Ending:
    """What a run that raised this error means for its job, by its retry policy. None: it returned.

    For middleware. It runs in the worker, also for tasks in child processes."""
    run = job._run
    if not isinstance(run, Run):
        raise ConfigError("ending_of is for middleware, which runs in the worker")
    if run.concluded:  # it went on after a timeout or a lost lease: how it ends changes nothing
        return _ending(run.outcome)
    if error is None:
        return Ending("completed")
    if isinstance(error, FailedApart):
        return Ending("failed" if error.final else "retried", error.failure)
    if run.handler is None or isinstance(error, LeaseOver | KeyboardInterrupt):
        return Ending("released")
    end: End = Raised(error)
    if run.end is not None and isinstance(error, asyncio.CancelledError):
        end = run.end
    outcome = decide(
        run.lease,
        end,
        retry=run.handler.retry,
        now_ms=run.now_ms,
        random=random.random,
        encode=run.save,
    )
    return _ending(outcome)


def _ending(outcome: AnyOutcome | None) -> Ending:
    """None: the lease is lost."""
    if outcome is None:
        return Ending("released")
    return Ending(_OUTCOMES.get(type(outcome), "released"), getattr(outcome, "failure", None))


class OncePerRun:
    """Lets a middleware act once in a run, also if the worker and the queue both have it."""

    def __init__(self, name: str) -> None:
        self._run: ContextVar[object] = ContextVar(name, default=None)

    def enter(self, job: CurrentJob) -> bool:
        """Whether this is the first time in this run."""
        if self._run.get() is job._run:
            return False
        self._run.set(job._run)
        return True

    def leave(self) -> None:
        """Forget the run: `is_in` is False from here on."""
        self._run.set(None)

    def is_in(self, job_id: object) -> bool:
        """Whether this context is in the run of that job, or just after it."""
        run = self._run.get()
        if not isinstance(run, Run):
            return False
        runs = [run] if run.batch is None else run.batch.runs
        return any(each.lease.id == job_id for each in runs)


class Ended(NamedTuple):
    """One job of a run, and how it ended."""

    job: CurrentJob
    ending: Ending
    error: BaseException | None


def endings_of(
    job: CurrentJob, *, result: Any = None, error: BaseException | None = None
) -> Sequence[Ended]:
    """The endings of all jobs of a run: of a batch each, else of one."""
    if not job.batch:
        return (Ended(job, ending_of(job, error), error),)
    if error is not None or not isinstance(result, list | tuple):
        return [Ended(each, ending_of(each, error), error) for each in job.batch]
    # A batch task returns one result or exception per job.
    errors = [each if isinstance(each, BaseException) else None for each in result]
    return [
        Ended(each, ending_of(each, raised), raised)
        for each, raised in zip(job.batch, errors, strict=False)
    ]
