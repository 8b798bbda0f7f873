"""Around: the seam for middleware. The engine calls it around the handler of each run.

The engine knows no middleware. It has one function per handler, which gets the runs and a function
that calls the handler, and returns the result to store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jobq.core.codec import get_codec
from jobq.core.control import RateLimited, Snooze, WaitForChildren, WaitForSignal
from jobq.core.records import (
    AnyOutcome,
    Block,
    Complete,
    Fail,
    Failure,
    Hold,
    Lease,
    RetryLater,
    SnoozeFor,
)
from jobq.engine.handler import Handler
from jobq.engine.run import Run
from jobq.errors import JobFailed

Around = Callable[[Sequence[Run], Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Takes the runs (several of a batch, else one) and a function that calls the handler."""
AroundOf = Callable[[Handler], Around | None]
"""The Around of a handler. None: nothing is around it."""


class FailedApart(JobFailed):
    """A run in another process failed. The error itself stayed there; `failure` describes it.

    `final`: the job has failed for good, and is not retried.
    """

    def __init__(self, failure: Failure, *, final: bool) -> None:
        super().__init__(f"{failure.type}: {failure.message}", failure)
        self.final = final


class Passed:
    """What a run in another process gave to the functions around it.

    If they let the value or the error through unchanged, the outcome that the process has decided
    is the run's.
    """

    def __init__(self) -> None:
        self.outcome: AnyOutcome | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def pass_on(self, outcome: AnyOutcome | None, lease: Lease, *, interrupted: bool) -> Any:
        """Return or raise what the handler would have, had it run in the worker."""
        self.outcome = outcome
        if isinstance(outcome, Complete) and not interrupted:
            if outcome.result is not None:
                self.value = get_codec(lease.codec).decode(outcome.result)
            return self.value
        self.error = asyncio.CancelledError() if interrupted else _error(outcome)
        raise self.error


def _error(outcome: AnyOutcome | None) -> BaseException:
    match outcome:
        case Fail(failure=failure) | RetryLater(failure=failure):
            return FailedApart(failure, final=isinstance(outcome, Fail))
        case SnoozeFor(delay_ms=delay_ms):
            return Snooze(delay_ms / 1000)
        case Hold(delay_ms=delay_ms):
            return RateLimited(delay_ms / 1000)
        case Block(signal=None, after=after):
            return WaitForChildren(after)
        case Block(signal=str(name), seen=seen, timeout_ms=timeout_ms):
            return WaitForSignal(name, seen=seen, timeout_ms=timeout_ms)
    return asyncio.CancelledError()
