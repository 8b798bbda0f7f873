"""SyncJob: a job's handle with blocking methods, `job.sync.result()`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jobq.api.info import JobInfo
from jobq.api.update import JobUpdate
from jobq.client.portal import each, run
from jobq.core.checks import Seconds
from jobq.core.records import JobKey
from jobq.core.states import State

if TYPE_CHECKING:
    from jobq.api.job import Job  # Job.sync makes a SyncJob, so job.py imports this module

R_co = TypeVar("R_co", covariant=True)


class SyncJob(Generic[R_co]):
    """A job's handle with blocking methods."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[R_co]) -> None:
        self._job = job

    @property
    def id(self) -> str:
        """See `Job.id`."""
        return self._job.id

    @property
    def queue(self) -> str:
        """See `Job.queue`."""
        return self._job.queue

    @property
    def name(self) -> str:
        """See `Job.name`."""
        return self._job.name

    @property
    def duplicate(self) -> bool:
        """See `Job.duplicate`."""
        return self._job.duplicate

    @property
    def snapshot(self) -> JobInfo | None:
        """See `Job.snapshot`."""
        return self._job.snapshot

    @property
    def ref(self) -> R_co:
        """See `Job.ref`."""
        return self._job.ref

    @property
    def job_key(self) -> JobKey:
        """See `Job.job_key`: for `after=[…]`."""
        return self._job.job_key

    def __repr__(self) -> str:
        return repr(self._job)

    def info(self) -> JobInfo:
        """See `Job.info`."""
        return run(self._job.info())

    def state(self) -> State:
        """See `Job.state`."""
        return run(self._job.state())

    def logs(self, start: int = 0, stop: int | None = None) -> list[str]:
        """See `Job.logs`."""
        return run(self._job.logs(start, stop))

    def wait(self, *, timeout: Seconds | None = None) -> JobInfo:
        """See `Job.wait`."""
        return run(self._job.wait(timeout=timeout))

    def result(self, *, timeout: Seconds | None = None) -> R_co:
        """See `Job.result`."""
        return run(self._job.result(timeout=timeout))

    def follow(
        self, *, timeout: Seconds | None = None, repeat_after: Seconds | None = None
    ) -> Iterator[JobUpdate]:
        """See `Job.follow`: `for update in job.sync.follow()`."""
        return each(self._job.follow(timeout=timeout, repeat_after=repeat_after))

    def as_actor(self, name: str) -> SyncJob[R_co]:
        """See `Job.as_actor`."""
        return SyncJob(self._job.as_actor(name))

    def cancel(self, *, cascade: bool = False) -> bool:
        """See `Job.cancel`."""
        return run(self._job.cancel(cascade=cascade))

    def rerun(self) -> bool:
        """See `Job.rerun`."""
        return run(self._job.rerun())

    def promote(self) -> bool:
        """See `Job.promote`."""
        return run(self._job.promote())

    def reprioritise(self, priority: int) -> bool:
        """See `Job.reprioritise`."""
        return run(self._job.reprioritise(priority))

    def reschedule(self, *, delay: Seconds | None = None, at: datetime | None = None) -> bool:
        """See `Job.reschedule`."""
        return run(self._job.reschedule(delay=delay, at=at))

    def update(self, *args: Any, **kwargs: Any) -> bool:
        """See `Job.update`."""
        return run(self._job.update(*args, **kwargs))

    def remove(self) -> bool:
        """See `Job.remove`."""
        return run(self._job.remove())

    def signal(self, name: str, value: Any = None) -> bool:
        """See `Job.signal`."""
        return run(self._job.signal(name, value))
