"""Checks what `Worker(…)` says about child processes."""

from __future__ import annotations

import logging

from jobq.core.checks import check_bytes, check_int
from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.cpus import usable_cpus
from jobq.executors.settings import ExecutorSettings

log = logging.getLogger("jobq")

_CONFINED = ("process", "command")
"""Executors that can enforce permissions."""
MAX_POOL = 1_000
"""Child processes of one worker. A machine with more cores runs several workers."""


def executor_settings(
    pool: int | None, max_jobs: int | None, max_memory: int | str | None
) -> ExecutorSettings:
    """The settings of the pool of child processes. ConfigError names a bad value."""
    return ExecutorSettings(
        pool=usable_cpus()
        if pool is None
        else check_int(pool, "pool", low=1, high=MAX_POOL, error=ConfigError),
        pool_max_jobs=None
        if max_jobs is None
        else check_int(max_jobs, "pool_max_jobs", low=1, error=ConfigError),
        pool_max_memory=None if max_memory is None else check_bytes(max_memory, "pool_max_memory"),
    )


def check_permissions(permissions: Permissions, executor: str, where: str) -> None:
    """ConfigError if this machine cannot enforce the permissions of a task.

    Running the task without them would break a promise. With `enforce="best-effort"`, a warning
    says what is missing.
    """
    if executor not in _CONFINED:
        raise ConfigError(
            f"{where}: permissions= need a process of their own, and executor={executor!r} has "
            "none: give executor='process' or 'command'"
        )
    from jobq.executors.sandbox import check

    missing = check(permissions)
    if not missing:
        return
    text = f"{where}: this machine cannot enforce its permissions: {'; '.join(missing)}"
    if permissions.enforce == "all":
        raise ConfigError(text)
    log.warning("%s", text)
