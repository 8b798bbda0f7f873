"""SyncJobLock: a unique lock with blocking methods, `queue.sync.lock(…).info()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobq.client.portal import run

if TYPE_CHECKING:
    from jobq.api.locks import JobLock, LockInfo  # JobLock.sync makes a SyncJobLock


class SyncJobLock:
    """A unique lock with blocking methods."""

    __slots__ = ("_lock",)

    def __init__(self, lock: JobLock) -> None:
        self._lock = lock

    @property
    def lock(self) -> str:
        """See `JobLock.lock`."""
        return self._lock.lock

    def info(self) -> LockInfo | None:
        """See `JobLock.info`."""
        return run(self._lock.info())

    def release(self, *, job_id: str | None = None) -> bool:
        """See `JobLock.release`."""
        return run(self._lock.release(job_id=job_id))
