"""What a handler raises to steer its own job. `decide` turns each into an outcome.

`Snooze` and `RateLimited` cost neither a retry nor a stall; `RetryAfter` is a failure; `Reject` ends the job.
"""

from __future__ import annotations

from typing import Any

from jobq.core.checks import Seconds, to_ms
from jobq.core.records import Edge


class RetryAfter(Exception):
    """A failure like any other, with a delay of the handler's choosing. `raise Retry.after(30) from error` keeps the cause."""

    def __init__(self, delay: Seconds) -> None:
        self.delay_ms = to_ms(delay, "delay")
        super().__init__(f"to be retried in {self.delay_ms / 1000:g} s")


class Snooze(Exception):
    """Run the job again after `delay`; the next run finds `saved` in `current_job().saved`."""

    def __init__(self, delay: Seconds, *, saved: Any = None) -> None:
        self.delay_ms = to_ms(delay, "delay")
        self.saved = saved
        super().__init__(f"snoozed for {self.delay_ms / 1000:g} s")


class RateLimited(Exception):
    """A limit elsewhere was met: hold the job's key (or, unkeyed, its queue) for `delay`, with this job in front."""

    def __init__(self, delay: Seconds) -> None:
        self.delay_ms = to_ms(delay, "delay")
        super().__init__(f"rate limited for {self.delay_ms / 1000:g} s")


class Reject(Exception):
    """Fail now, whatever retries are left."""

    def __init__(self, message: str = "rejected") -> None:
        super().__init__(message)


class _Wait(BaseException):
    """Ends a run that will start again from its top. Not an Exception: a handler's `except Exception` must let it pass.

    `saved` None keeps what the job had saved before.
    """

    saved: bytes | None


class WaitForChildren(_Wait):
    """The run waits for jobs that were put before."""

    def __init__(self, after: tuple[Edge, ...], *, saved: bytes | None = None) -> None:
        self.after = after
        self.saved = saved
        super().__init__(f"waits for {len(after)} children")


class WaitForSignal(_Wait):
    """The run waits for a signal, or goes on without it after `timeout_ms`. `seen`: how many of that name it has taken."""

    def __init__(
        self, name: str, *, seen: int = 0, timeout_ms: int | None = None, saved: bytes | None = None
    ) -> None:
        self.name = name
        self.seen = seen
        self.timeout_ms = timeout_ms
        self.saved = saved
        super().__init__(f"waits for signal {name!r}")
