"""How a run in another process ends, as its executor reports it to the engine."""

from __future__ import annotations

import signal

import msgspec

from jobq.core.records import AnyOutcome


class Interrupted(msgspec.Struct, frozen=True, gc=False):
    """The handler was asked to stop, and stopped."""


class Died(msgspec.Struct, frozen=True, gc=False):
    """The process died. `status` is its exit code, or a signal's number, negative.

    With `killed`, the worker killed it, because it went on after it was asked to stop.
    """

    status: int
    killed: bool = False
    begun: bool = True  # False: it died before it began the job
    why: str | None = None  # if permissions, or what it sent to the worker, are the cause

    @property
    def asked(self) -> bool:
        """Whether it died because its worker asked it to stop, or killed it."""
        return self.killed or self.status == -signal.SIGTERM

    def __str__(self) -> str:
        if self.why is not None:
            return self.why
        if self.status >= 0:
            return f"the process of the job ended with exit code {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        hint = " (out of memory?)" if -self.status == signal.SIGKILL else ""
        return f"the process of the job was killed by {name}{hint}"


Ended = AnyOutcome | Interrupted | Died
