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


def make_cgroups(permissions: Permissions) -> tuple[str, ...]:
    """Make control groups below this process's own for a child with these permissions.

    For root, the first one limits the number of processes. For a job with several processes, one
    counts their processor time. Empty if this process may make none of them.
    """
    root = os.geteuid() == 0  # another user's processes are counted by a user namespace
    groups = [make_cgroup(permissions.processes)] if root else []
    several = permissions.cpu_ms is not None and permissions.processes
    if several and not any(group and _usage_file(group) for group in groups):
        groups.append(_make_group(_own_cgroup("cpuacct")))
    return tuple(filter(None, groups))


def make_cgroup(processes: int) -> str | None:
    """Make a control group that limits the number of processes.

    Returns None if this process may not, or if the kernel does not count processes there.
    """
    group = _make_group(_own_cgroup("pids"))
    if group is None:
        return None
    try:
        (Path(group) / "pids.max").write_text(str(tasks(processes)))
    except OSError:
        remove_cgroup(group)
        return None
    return group


def _make_group(parent: Path | None) -> str | None:
    if parent is None or not os.access(parent / "cgroup.procs", os.W_OK):
        return None
    _remove_abandoned(parent)
    group = parent / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError:
        return None
    return str(group)


def counts_processes(group: str) -> bool:
    """Whether the control group limits the number of processes."""
    return os.path.exists(f"{group}/pids.max")


def join_cgroup(group: str) -> None:
    """Move this process into the control group."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def members(group: str) -> list[int]:
    """The processes in a control group. Those of another process namespace are left out."""
    try:
        pids = map(int, (Path(group) / "cgroup.procs").read_text().split())
    except OSError:
        return []
    return [pid for pid in pids if pid > 0]


def remove_cgroup(group: str) -> None:
    """Kill the processes that are left in the control group, and remove it.

    The kernel keeps a group until its last process has been collected. `_make_group` removes such a
    group once the worker that made it has ended.
    """
    for pid in members(group):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        os.rmdir(group)


def cgroup_ms(group: str) -> int | None:
    """The processor time of all processes that were ever in the group. None: it is not counted."""
    file = _usage_file(group)
    if file is None:
        return None
    text = file.read_text()
    if file.name == "cpuacct.usage":
        return int(text) // 1_000_000  # of nanoseconds
    return int(text.split("usage_usec", 1)[1].split()[0]) // 1000


def _usage_file(group: str) -> Path | None:
    names = ("cpuacct.usage", "cpu.stat")
    files = (Path(group) / name for name in names)
    return next((file for file in files if file.exists() and _counts_time(file)), None)


def _counts_time(file: Path) -> bool:
    """Whether the file says how much was used: `cpu.stat` of the first version does not."""
    return file.name == "cpuacct.usage" or "usage_usec" in file.read_text()


def _remove_abandoned(parent: Path) -> None:
    """Remove empty groups of workers that have ended."""
    for group in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", group.name.split("-")[1]).exists():
            with suppress(OSError):
                os.rmdir(group)


def _own_cgroup(controller: str) -> Path | None:
    """The folder of this process's control group for a controller, if there is one.

    The second version of control groups has one folder for all controllers, and it counts processor
    time without one.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    groups = {controllers: path for _, controllers, path in (x.split(":", 2) for x in lines)}
    for controllers, path in groups.items():
        if controller in controllers.split(","):
            return _CGROUPS / controller / path.lstrip("/")
    if "" not in groups:
        return None
    both = _CGROUPS / "unified"  # where the first version is mounted as well
    return (both if both.is_dir() else _CGROUPS) / groups[""].lstrip("/")
