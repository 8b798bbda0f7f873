"""Exceptions that a handler raises to control its own job. `decide` turns each into an outcome.

`Snooze` and `RateLimited` count neither as a failure nor as a stall. `RetryAfter` counts as a
failure. `Reject` ends the job.
"""

from __future__ import annotations

from typing import Any

from jobq.core.records.jobs import Edge
from jobq.core.values.checks import Seconds, to_ms


class RetryAfter(Exception):
    """Fail, and retry after a delay that the handler chooses.

    `raise Retry.after(30) from error` keeps the cause.
    """

    def __init__(self, delay: Seconds) -> None:
        self.delay_ms = to_ms(delay, "delay")
        super().__init__(f"retry in {self.delay_ms / 1000:g} s")


class Snooze(Exception):
    """Run the job again after `delay`. The next run finds `saved` in `current_job().saved`."""

    def __init__(self, delay: Seconds, *, saved: Any = None) -> None:
        self.delay_ms = to_ms(delay, "delay")
        self.saved = saved
        super().__init__(f"snoozed for {self.delay_ms / 1000:g} s")


class RateLimited(Exception):
    """Another system's rate limit was reached: hold this job's key for `delay`.

    If the job has no key, the whole queue is held. This job is the first to run afterwards.
    """

    def __init__(self, delay: Seconds) -> None:
        self.delay_ms = to_ms(delay, "delay")
        super().__init__(f"rate limited for {self.delay_ms / 1000:g} s")


class Reject(Exception):
    """Fail now, however many retries are left."""

    def __init__(self, message: str = "rejected") -> None:
        super().__init__(message)


class _Wait(BaseException):
    """Ends a run that starts again from the top later.

    It is a BaseException, so that a handler's `except Exception` does not catch it. If `saved` is
    None, what the job saved before is kept.
    """

    saved: bytes | None


class WaitForChildren(_Wait):
    """The run waits for jobs that were enqueued before."""

    def __init__(self, after: tuple[Edge, ...], *, saved: bytes | None = None) -> None:
        self.after = after
        self.saved = saved
        super().__init__(f"waits for {len(after)} children")


class WaitForSignal(_Wait):
    """The run waits for a signal, and continues without it after `timeout_ms`.

    `seen` is how many signals of that name the run has received already.
    """

    def __init__(
        self, name: str, *, seen: int = 0, timeout_ms: int | None = None, saved: bytes | None = None
    ) -> None:
        self.name = name
        self.seen = seen
        self.timeout_ms = timeout_ms
        self.saved = saved
        super().__init__(f"waits for signal {name!r}")
