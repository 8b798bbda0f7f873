"""Checks what `Worker(…)` says about child processes."""

from __future__ import annotations

from jobq.core.checks import check_bytes, check_int
from jobq.errors import ConfigError
from jobq.executors.settings import ExecutorSettings, available_cores

MAX_POOL = 1_000
"""Child processes of one worker. A machine with more cores runs several workers."""


def executor_settings(
    pool: int | None, max_jobs: int | None, max_memory: int | str | None
) -> ExecutorSettings:
    """The settings of the pool of child processes. ConfigError names a bad value."""
    return ExecutorSettings(
        pool=available_cores()
        if pool is None
        else check_int(pool, "pool", low=1, high=MAX_POOL, error=ConfigError),
        pool_max_jobs=None
        if max_jobs is None
        else check_int(max_jobs, "pool_max_jobs", low=1, error=ConfigError),
        pool_max_memory=None if max_memory is None else check_bytes(max_memory, "pool_max_memory"),
    )
