"""Everything jobq raises.

JobqError
├── InvalidJob (ValueError)        refused before anything was stored; names the option and the value
│   └── PayloadTooLarge
├── QueueFull                      the queue's `max_waiting` is reached; `.accepted` holds the jobs that were stored
├── QueueClosed                    the queue was closed while one of its jobs was waited for; the job itself goes on
├── ConfigError (ValueError)       bad URL, missing extra, mode or limits that differ from the stored ones
├── JobNotFound (LookupError)      no such job or schedule, or its record is gone
├── JobFailed                      the job ended as failed; `.failure` says why
├── JobCancelled                   the job ended as cancelled
├── WaitTimeout (TimeoutError)     waited long enough; the job itself goes on
├── LeaseLost                      a run's lease went to another worker; its result was not stored
├── CorruptStore                   what is stored about a queue cannot be read; other queues of the store are served
└── StoreUnavailable (ConnectionError)   the store did not answer; whether it acted is unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobq.api.job import Job
    from jobq.core.records import Failure


class JobqError(Exception):
    """The root of the tree."""


class InvalidJob(JobqError, ValueError):
    """Refused before anything was stored. The message names the option and the value."""


class PayloadTooLarge(InvalidJob):
    """The encoded arguments are larger than the queue's `max_payload`."""


class QueueFull(JobqError):
    """The queue holds `max_waiting` jobs that have not started, so it takes no new ones. Refused jobs are not stored.

    `accepted`: handles of the jobs of this call that were stored, in the order of the calls. `refused`: how many were not.
    """

    def __init__(
        self,
        message: str = "",
        queue: str = "",
        max_waiting: int = 0,
        accepted: Sequence[Job[Any]] = (),
        refused: int = 1,
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.max_waiting = max_waiting
        self.accepted: list[Job[Any]] = list(accepted)
        self.refused = refused


class QueueClosed(JobqError):
    """The queue was closed while one of its jobs was waited for. The job goes on."""


class ConfigError(JobqError, ValueError):
    """The set-up is wrong: a bad URL, a missing extra, a mode or limits that differ from the stored ones."""


class JobNotFound(JobqError, LookupError):
    """There is no such job or schedule, or the job's record has been removed by retention."""


class JobFailed(JobqError):
    """The job ended as failed; `failure` says why."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure


class JobCancelled(JobqError):
    """The job ended as cancelled."""


class WaitTimeout(JobqError, TimeoutError):
    """The wait ended, the job did not: nothing was cancelled."""


class LeaseLost(JobqError):
    """The run's lease went to another worker, so its result was not stored."""


class CorruptStore(JobqError):
    """What the store holds about a queue cannot be read: something else has written there, or a disk has failed.

    Only this queue is affected. A single job that cannot be read is no such error: that job fails as `Unreadable`."""


class StoreUnavailable(JobqError, ConnectionError):
    """The store did not answer. Whether it acted is unknown; every call of the contract may be repeated safely."""
