"""Ids of results: the queue and the id of a job, because Django looks a result up by its id alone.

Django's ids have fewer than 64 characters.
"""

from __future__ import annotations

_MAX_LENGTH = 63
_JOB_ID_LENGTH = 26
"""Characters of an id that jobq makes (core/ids.py)."""
MAX_QUEUE_NAME = _MAX_LENGTH - _JOB_ID_LENGTH - 1
"""Characters of a queue name that fits in an id."""


def result_id(queue: str, job: str) -> str:
    """The id of a result."""
    return f"{queue}:{job}"


def parts_of(id: str) -> tuple[str, str] | None:
    """The queue and the id of the job. None if it is not the id of a result."""
    queue, colon, job = str(id).rpartition(":")
    return (queue, job) if colon and queue and job else None
