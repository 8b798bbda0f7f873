"""Jobs that workers have deferred."""

from __future__ import annotations

from typing import Any

from jobq import Job, JobInfo
from tests.waiting import until


async def deferral(job: Job[Any]) -> str:
    """The sentence about a job that a worker defers. Waits until it has."""
    info: JobInfo = await until(lambda: _deferred(job), f"a worker to defer job {job.id}")
    assert info.deferred is not None
    return info.deferred


async def _deferred(job: Job[Any]) -> JobInfo | None:
    info = await job.info()
    return None if info.deferred is None else info
