"""Which status of gRPC an error of jobq becomes, and back. The guide shows the same table."""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
import grpc.aio
from grpc import StatusCode

from jobq import errors
from jobq.errors import JobqError

ERROR = "jobq-error"
"""The trailing metadata with the name of the error, e.g. `QueueFull`."""

MAX_DETAILS = 1_000
"""Characters of a message. Proxies refuse replies with more than some kilobytes of headers."""


class Row(NamedTuple):
    """The status of an error, and when it is returned, in words of the guide."""

    code: StatusCode
    when: str


TABLE: dict[type[JobqError], Row] = {
    errors.InvalidJob: Row(
        StatusCode.INVALID_ARGUMENT,
        "A field of the request is wrong. The message names it. Nothing was stored.",
    ),
    errors.PayloadTooLarge: Row(
        StatusCode.INVALID_ARGUMENT, "Arguments, a result or a message are too large."
    ),
    errors.UnfitArguments: Row(
        StatusCode.INVALID_ARGUMENT, "Arguments do not fit the task of a worker."
    ),
    errors.UndecodableArguments: Row(
        StatusCode.INVALID_ARGUMENT, "Stored arguments cannot be decoded by any worker."
    ),
    errors.UnstorableResult: Row(
        StatusCode.INVALID_ARGUMENT, "The result of a run cannot be encoded, or is too large."
    ),
    errors.Unauthenticated: Row(
        StatusCode.UNAUTHENTICATED, "The token is missing, wrong or expired."
    ),
    errors.AccessDenied: Row(
        StatusCode.PERMISSION_DENIED, "The scopes of the token do not allow the call."
    ),
    errors.JobNotFound: Row(
        StatusCode.NOT_FOUND,
        "There is no such job, queue or schedule, or it belongs to another tenant.",
    ),
    errors.QueueFull: Row(
        StatusCode.RESOURCE_EXHAUSTED, "The queue has reached its `max_waiting`. Try again later."
    ),
    errors.QuotaExceeded: Row(
        StatusCode.RESOURCE_EXHAUSTED, "A quota or the submit rate of the tenant is used up."
    ),
    errors.ConfigError: Row(
        StatusCode.FAILED_PRECONDITION,
        "The queue is not in a state for the call: for example, it has another mode.",
    ),
    errors.LeaseLost: Row(
        StatusCode.FAILED_PRECONDITION, "Another worker got the job. The result was not stored."
    ),
    errors.JobFailed: Row(StatusCode.ABORTED, "The job that the call waited for failed."),
    errors.JobCancelled: Row(StatusCode.ABORTED, "The job that the call waited for was cancelled."),
    errors.LockTimeout: Row(
        StatusCode.ABORTED,
        "An open transaction holds the id or the lock. Nothing was stored: try again.",
    ),
    errors.WaitTimeout: Row(StatusCode.DEADLINE_EXCEEDED, "The wait timed out. The job goes on."),
    errors.PermissionDenied: Row(
        StatusCode.PERMISSION_DENIED, "A handler did what its permissions do not allow."
    ),
    errors.CorruptStore: Row(
        StatusCode.DATA_LOSS, "Stored data of this queue cannot be read. Other queues still work."
    ),
    errors.QueueClosed: Row(StatusCode.UNAVAILABLE, "The server stops. Try another one."),
    errors.StoreUnavailable: Row(
        StatusCode.UNAVAILABLE,
        "The store did not reply. It is unknown whether the call was carried out: repeat it.",
    ),
}
"""Every error of jobq that a call may end with. A subclass has the row of its base."""

OTHER_CODES: dict[StatusCode, str] = {
    StatusCode.FAILED_PRECONDITION: (
        "The job is not in a state for the call: it has ended, or has not ended yet."
    ),
    StatusCode.ALREADY_EXISTS: "A different queue or worker has this name.",
    StatusCode.DEADLINE_EXCEEDED: "The call took longer than its deadline, or than 60 seconds.",
    StatusCode.UNIMPLEMENTED: "This server does not know the call: it is older than the client.",
    StatusCode.INTERNAL: "A bug in the server. The message has a number to look for in its log.",
}
"""Statuses that are not an error of the library."""

_BY_NAME = {error.__name__: error for error in TABLE}
_BY_CODE: dict[StatusCode, type[JobqError]] = {
    StatusCode.INVALID_ARGUMENT: errors.InvalidJob,
    StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    StatusCode.PERMISSION_DENIED: errors.AccessDenied,
    StatusCode.NOT_FOUND: errors.JobNotFound,
    StatusCode.RESOURCE_EXHAUSTED: errors.QueueFull,
    StatusCode.FAILED_PRECONDITION: errors.ConfigError,
    StatusCode.ALREADY_EXISTS: errors.ConfigError,
    StatusCode.DATA_LOSS: errors.CorruptStore,
    StatusCode.UNIMPLEMENTED: errors.ConfigError,
}
"""What a client raises for a status without a name. All others are StoreUnavailable."""


def code_of(error: JobqError) -> StatusCode:
    """The status that an error becomes."""
    for kind in type(error).__mro__:
        if kind in TABLE:
            return TABLE[kind].code
    return StatusCode.UNKNOWN


def name_of(error: JobqError) -> str:
    """The name that the trailing metadata carries: that of the error's row."""
    for kind in type(error).__mro__:
        if kind in TABLE:
            return kind.__name__
    return JobqError.__name__


def error_of(failed: grpc.RpcError) -> JobqError:
    """The error that a client raises for a call that failed."""
    if not isinstance(failed, grpc.Call | grpc.aio.AioRpcError):
        return errors.StoreUnavailable(str(failed))
    code = failed.code()
    details = failed.details() or code.name
    trailing: Any = failed.trailing_metadata()
    for key, value in trailing or ():
        if key == ERROR and isinstance(value, str) and value in _BY_NAME:
            return _made(_BY_NAME[value], details)
    return _made(_BY_CODE.get(code, errors.StoreUnavailable), details)


def _made(kind: type[JobqError], details: str) -> JobqError:
    if issubclass(kind, errors.JobFailed):  # it needs the failure, which only the record has
        return errors.StoreUnavailable(details)
    return kind(details)


def shortened(message: str) -> str:
    """The message as a status carries it: bounded, and without characters that break headers."""
    plain = message.encode("utf-8", "replace").decode()
    return plain if len(plain) <= MAX_DETAILS else f"{plain[: MAX_DETAILS - 1]}…"
