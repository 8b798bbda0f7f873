"""The seat of one worker process. Processes come and go; the seat remembers what went wrong."""

from __future__ import annotations

from enum import StrEnum

from jobq.supervisor.process import WorkerProcess

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_STEADY_S = 60.0
"""A process that has lived this many seconds has not failed at its start: the delay is short
again."""


class Why(StrEnum):
    """Why a process that works is replaced."""

    RESTART = "restart"  # SIGHUP, or the code has changed
    RECYCLE = "recycle"  # --max-jobs or --max-memory


class Seat:
    """Holds one of the `--processes` worker processes, and the one that replaces it."""

    def __init__(self) -> None:
        self.process: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None  # starts while `process` still works
        self.why: Why | None = None  # `process` is to be replaced
        self.shut_down = False  # an operator has stopped the worker, so the seat stays empty
        self.due = 0.0  # no process is started before (monotonic seconds)
        self._deaths = 0  # in a row

    @property
    def processes(self) -> list[WorkerProcess]:
        """The processes of this seat that are not about to end."""
        return [process for process in (self.process, self.successor) if process is not None]

    def failed(self, lived_s: float, now: float) -> float:
        """A process has died after `lived_s`. Returns the seconds until the next one may start."""
        self._deaths = 1 if lived_s >= _STEADY_S else self._deaths + 1
        delay_s = restart_delay_s(self._deaths)
        self.due = now + delay_s
        return delay_s

    def forgive(self) -> None:
        """Start the next process without a delay."""
        self.due, self._deaths = 0.0, 0


def restart_delay_s(deaths: int) -> float:
    """Seconds before a process is started again: 0.5 after the first death in a row, then 1, 2, 4
    and so on up to 30."""
    return min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 1, 30))
