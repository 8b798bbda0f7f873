"""Every error that jobq raises.

JobqError
├── InvalidJob (ValueError)        refused before anything was stored; names the option and value
│   ├── PayloadTooLarge
│   ├── UnfitArguments             in a worker: they do not fit its task, and the job is deferred
│   ├── UndecodableArguments       in a worker: no worker can decode them, and the job fails
│   └── UnstorableResult           in a worker: the job fails at once, as a retry would not help
├── QueueFull                      the queue has reached `max_waiting`; `.accepted` has stored jobs
├── QuotaExceeded                  a jq-server refused it: a quota or rate of the tenant is used up
├── QueueClosed                    the queue was closed while a caller waited; the job continues
├── ConfigError (ValueError)       bad URL, missing extra, mode or limits unlike the stored ones
├── JobNotFound (LookupError)      no such job or schedule, or its record was removed
├── JobFailed                      the job ended as failed; `.failure` says why
├── JobCancelled                   the job ended as cancelled
├── WaitTimeout (TimeoutError)     the wait timed out; the job continues
├── PermissionDenied (PermissionError)   a handler did what its task's permissions do not allow
├── AccessDenied (PermissionError)  a jq-server refused the call: the token's scopes do not allow it
│   └── Unauthenticated            the token is missing, wrong or expired
├── LeaseLost                      another worker got the lease; the result was not stored
├── LockTimeout (TimeoutError)     an open transaction holds the id or lock; nothing was stored
├── CorruptStore                   stored data of a queue cannot be read; other queues still work
└── StoreUnavailable (ConnectionError)   no reply; whether the call was applied is unknown
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jobq.core.records.jobs import Failure


class JobqError(Exception):
    """The base class of all errors of jobq."""


class InvalidJob(JobqError, ValueError):
    """The job was refused before anything was stored.

    The message names the option and the value.
    """

    _unencodable: tuple[str, str] | None = None
    """Of a value that cannot be encoded: the path of the part at fault, and what is wrong."""


class PayloadTooLarge(InvalidJob):
    """The encoded arguments, result, progress or signal value exceed the queue's `max_payload`."""


class UnfitArguments(InvalidJob):
    """The arguments of a stored job do not fit the task of the worker that claimed it.

    Another worker may have another version of the task, so the job is deferred, for five minutes
    at most.
    """


class UndecodableArguments(InvalidJob):
    """The stored arguments of a job cannot be decoded, by this or any other worker. It fails."""


class UnstorableResult(InvalidJob):
    """The result of a run cannot be encoded, or is larger than `max_payload`.

    The job fails without a retry, which would only repeat what the handler has done.
    """


class AcceptedJob(Protocol):
    """What errors know of a `jobq.Job`."""

    @property
    def id(self) -> str:
        """The job's id."""


class QueueFull(JobqError):
    """The queue holds `max_waiting` jobs that have not started, so it accepts no new ones.

    Refused jobs are not stored. `accepted` has handles of the jobs of this call that were stored,
    in order. `refused` is how many were not.
    """

    def __init__(
        self,
        message: str = "",
        queue: str = "",
        max_waiting: int = 0,
        accepted: Sequence[AcceptedJob] = (),
        refused: int = 1,
    ) -> None:
        super().__init__(message)
        self.queue = queue
        self.max_waiting = max_waiting
        self.accepted: Sequence[AcceptedJob] = list(accepted)
        self.refused = refused


class QuotaExceeded(JobqError):
    """A quota or a rate of the tenant is used up, so the jq-server accepts no more for now.

    Nothing of the call was stored. `retry_after` is how many seconds to wait if the tenant's submit
    rate is the reason, else None.
    """

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueClosed(JobqError):
    """The queue was closed while a caller waited for one of its jobs. The job continues."""


class ConfigError(JobqError, ValueError):
    """The configuration is wrong.

    For example a bad URL, a missing extra, or a mode or limits that differ from the stored ones.
    """


class JobNotFound(JobqError, LookupError):
    """There is no such job or schedule, or retention has removed the job's record."""


class JobFailed(JobqError):
    """The job ended as failed. `failure` says why."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure = failure


class JobCancelled(JobqError):
    """The job ended as cancelled."""


class WaitTimeout(JobqError, TimeoutError):
    """The wait timed out. The job continues, and nothing was cancelled."""


class PermissionDenied(JobqError, PermissionError):
    """A handler did what the permissions of its task do not allow. The kernel refused it."""


class AccessDenied(JobqError, PermissionError):
    """A jq-server refused the call, because the scopes of the token do not allow it."""


class Unauthenticated(AccessDenied):
    """A jq-server refused the call, because the token is missing, wrong or expired."""


class LeaseLost(JobqError):
    """Another worker got the lease of this run, so its result was not stored."""


class LockTimeout(JobqError, TimeoutError):
    """Another open transaction holds the job's id or its unique lock, or uses the queue that is to
    be removed. Nothing was stored.

    Raised after a wait of a few seconds. Inside `jobq.transaction(…)`, the caller's transaction is
    still usable.
    """


class CorruptStore(JobqError):
    """What the store holds about a queue cannot be read.

    Another program has written to it, or a disk has failed. Only this queue is affected. A single
    job that cannot be read does not raise this error: that job fails as `Unreadable`.
    """


class StoreUnavailable(JobqError, ConnectionError):
    """The store did not reply, so it is unknown whether it applied the call.

    Every call of the contract can be repeated safely.
    """
