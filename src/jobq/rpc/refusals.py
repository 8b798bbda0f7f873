"""Errors of a store as frames: the client raises the error that the store has raised."""

from __future__ import annotations

from jobq import errors
from jobq.errors import JobqError
from jobq.rpc.frames import Refusal

_NAMED: dict[str, type[JobqError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, JobqError)
}
_FIELDS = {
    "QueueFull": ("queue", "max_waiting", "refused"),
    "QuotaExceeded": ("retry_after",),
}
"""What an error says besides its message. A store's QueueFull has no handles of accepted jobs."""


def refusal_of(number: int, error: JobqError) -> Refusal:
    """The frame for an error. A class that is not public is sent as its nearest public one."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _NAMED)
    fields = {field: getattr(error, field) for field in _FIELDS.get(name, ())}
    return Refusal(number, name, str(error), fields)


def error_of(refusal: Refusal) -> JobqError:
    """The error that a frame stands for. One that this version does not know is a JobqError."""
    known = _FIELDS.get(refusal.error, ())
    fields = {name: value for name, value in refusal.fields.items() if name in known}
    try:
        return _NAMED.get(refusal.error, JobqError)(refusal.message, **fields)
    except TypeError:  # it has other fields in this version
        return JobqError(refusal.message)
