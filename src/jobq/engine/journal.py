"""Logs the runs of a worker to the logger `jobq.job`. The rest of jobq logs to `jobq`.

Starts are DEBUG, ends INFO, retries WARNING, and final failures ERROR with their traceback. Every
log record has the attributes `queue`, `tenant`, `task`, `job_id` and `attempt`. Records of ends
also have `outcome` and `duration_ms`. Formatters of the application can use them.
"""

from __future__ import annotations

import logging
import time
import traceback
from types import TracebackType
from typing import Any

from jobq.core.records.failures import without_jobq
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Defer,
    Fail,
    Hold,
    Lease,
    QueueName,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.core.rules.decide import End, Raised
from jobq.core.values.printable import lines, one_line
from jobq.engine.run import Run

log = logging.getLogger("jobq.job")
worker_log = logging.getLogger("jobq")

Trace = tuple[type[BaseException], BaseException, TracebackType | None]
_OUTCOMES: dict[type[AnyOutcome], str] = {
    Complete: "completed",
    Release: "released",
    SnoozeFor: "snoozed",
    Hold: "rate-limited",
    Block: "blocked",
    Defer: "put off",
    RetryLater: "retried",
    Fail: "failed",
}


class Journal:
    """The log of one runner. `starts` and `ends` tell whether these are logged at all."""

    def __init__(self) -> None:
        self._deferred: set[tuple[QueueName, str, str]] = set()  # that a warning has named
        self.starts = self.ends = False
        self.check_levels()

    def check_levels(self) -> None:
        """Read the log levels, which may change. Once per claim: per job it would cost time."""
        self.ends = log.isEnabledFor(logging.INFO)
        self.starts = self.ends and log.isEnabledFor(logging.DEBUG)

    def started(self, run: Run) -> None:
        """Log that the handler of a run is about to be called."""
        _write(logging.DEBUG, _facts(run), "%s started (attempt %d)", run, run.lease.attempt)

    def ended(self, run: Run, outcome: AnyOutcome) -> None:
        """Log the end of a run that did not fail. `failed` logs failures, with their reason."""
        if isinstance(outcome, (RetryLater, Fail)):
            return
        facts = _facts(run, outcome)
        _write(
            logging.INFO,
            facts,
            "%s %s after %s (attempt %d)",
            run,
            facts["outcome"],
            _seconds(facts),
            run.lease.attempt,
        )

    def failed(self, run: Run, outcome: AnyOutcome, end: End | None) -> None:
        """Log a failure: ERROR if the job has failed for good, WARNING if it is retried or was
        cancelled meanwhile. Warn of a deferral.

        `end` is None if a child process has reported the outcome. The traceback is text then.
        """
        if isinstance(outcome, Defer):
            self._warn_deferred(run.lease, outcome)
        if not isinstance(outcome, (RetryLater, Fail)):
            return
        facts, failure = _facts(run, outcome), outcome.failure
        words = one_line(f"{failure.type}: {failure.message}" if failure.message else failure.type)
        if run.cancel_asked:
            _write(
                logging.WARNING,
                facts,
                "%s cancelled after %s (attempt %d), and failed when it was asked to stop: %s",
                run,
                _seconds(facts),
                run.lease.attempt,
                words,
            )
        elif isinstance(outcome, RetryLater):
            _write(
                logging.WARNING,
                facts,
                "%s failed after %s (attempt %d) and is retried in %g s: %s",
                run,
                _seconds(facts),
                run.lease.attempt,
                outcome.delay_ms / 1000,
                words,
            )
        else:
            error = end.error if isinstance(end, Raised) else None
            trace = (
                None if error is None else (type(error), error, without_jobq(error.__traceback__))
            )
            text = failure.traceback if end is None else None
            _write(
                logging.ERROR,
                facts,
                "%s failed for good after %s (attempt %d): %s%s",
                run,
                _seconds(facts),
                run.lease.attempt,
                words,
                f"\n{lines(text)}" if text else "",
                trace=trace,
            )

    def _warn_deferred(self, lease: Lease, outcome: Defer) -> None:
        """Warn once per task and reason, because its jobs arrive again every 30 s."""
        what = (lease.queue, lease.name, outcome.reason)
        if what in self._deferred or len(self._deferred) >= 1000:
            return
        self._deferred.add(what)
        if outcome.reason == "unknown":
            worker_log.warning(
                "queue %s has jobs of task %s, which this worker does not have: they are delayed "
                "for other workers, and fail after an hour. Is the code that defines the task "
                "deployed and imported?",
                one_line(lease.queue.queue),
                one_line(lease.name),
            )
        else:
            worker_log.warning(
                "queue %s has a job of task %s whose arguments do not fit this worker's version of "
                "it: such jobs are delayed for other workers, and fail after 5 minutes. %s",
                one_line(lease.queue.queue),
                one_line(lease.name),
                one_line(outcome.text),
            )


def _write(
    level: int, facts: dict[str, Any], text: str, *args: object, trace: Trace | None = None
) -> None:
    """Write a line. A handler or a filter of the application that raises must not fail the run."""
    try:
        log.log(level, text, *args, exc_info=trace, extra=facts, stacklevel=3)
    except Exception:
        traceback.print_exc()


def _facts(run: Run, outcome: AnyOutcome | None = None) -> dict[str, Any]:
    lease = run.lease
    facts: dict[str, Any] = {
        "queue": lease.queue.queue,
        "tenant": lease.queue.tenant,
        "task": lease.name,
        "job_id": lease.id,
        "attempt": lease.attempt,
    }
    if outcome is not None:
        cancelled = run.cancel_asked and not isinstance(outcome, Complete)  # see outcomes.effect
        facts["outcome"] = "cancelled" if cancelled else _OUTCOMES[type(outcome)]
        facts["duration_ms"] = round((time.monotonic() - run.since) * 1000, 1)
    return facts


def _seconds(facts: dict[str, Any]) -> str:
    return f"{facts['duration_ms'] / 1000:.3f} s"
