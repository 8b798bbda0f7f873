"""Limits on memory, processor time, open files and processes."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from jobq.core.policies import Permissions

OWN_TASKS = 8
"""Threads that jobq itself may use in a child, besides the processes that a handler may start."""

MAX_THREADS = 512
"""Threads of a child that may start no processes, where the kernel can count them."""

_CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "jobq-"


def limit_resources(permissions: Permissions) -> None:
    """Set the resource limits of this process. Each process that it starts has the same ones."""
    import resource  # not on Windows, where this module is imported too

    _limit(resource.RLIMIT_CORE, 0)
    if permissions.memory is not None:
        _limit(resource.RLIMIT_AS, permissions.memory)
    if permissions.files is not None:
        _limit(resource.RLIMIT_NOFILE, permissions.files)
    if permissions.cpu_ms is not None:
        # At the first limit the kernel sends SIGXCPU, which a handler could ignore; at the second
        # SIGKILL. What starting the child has used does not count.
        seconds = math.ceil(time.process_time()) + permissions.cpu_ms // 1000
        _limit(resource.RLIMIT_CPU, seconds, seconds + 1)


def tasks(processes: int) -> int:
    """How many processes and threads a child may have in all. The kernel counts them together."""
    return (processes or MAX_THREADS) + OWN_TASKS


def limit_processes(processes: int) -> None:
    """Limit the processes and threads of this user. Does not bind root."""
    import resource

    _limit(resource.RLIMIT_NPROC, tasks(processes))


def _limit(kind: int, value: int, hard: int | None = None) -> None:
    """Set a limit, or keep the present one if that is lower."""
    import resource

    present = resource.getrlimit(kind)[1]
    if present != resource.RLIM_INFINITY:
        value = min(value, present)
        hard = None if hard is None else min(hard, present)
    resource.setrlimit(kind, (value, value if hard is None else hard))


def make_cgroup(processes: int) -> str | None:
    """Make a control group below this process's own that limits the number of processes.

    Returns None if this process may not, or if the kernel does not count processes there.
    """
    parent = _own_cgroup()
    if parent is None:
        return None
    _remove_abandoned(parent)
    group = parent / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        (group / "pids.max").write_text(str(tasks(processes)))
    except OSError:
        remove_cgroup(str(group))
        return None
    return str(group)


def join_cgroup(group: str) -> None:
    """Move this process into the control group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def remove_cgroup(group: str) -> None:
    """Kill the processes that are left in the control group, and remove it.

    The kernel keeps a group until its last process has been collected. `make_cgroup` removes such a
    group once the worker that made it has ended.
    """
    with suppress(OSError):
        for pid in (Path(group) / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    with suppress(OSError):
        os.rmdir(group)


def _remove_abandoned(parent: Path) -> None:
    """Remove empty groups of workers that have ended."""
    for group in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                os.rmdir(group)


def _own_cgroup() -> Path | None:
    """The folder of this process's control group that counts processes, if there is one."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    groups = {controllers: path for _, controllers, path in (x.split(":", 2) for x in lines)}
    for controllers, path in groups.items():
        if "pids" in controllers.split(","):
            return _CGROUPS / "pids" / path.lstrip("/")
    if "" in groups:
        return _CGROUPS / groups[""].lstrip("/")
    return None
