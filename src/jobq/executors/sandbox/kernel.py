"""What this machine can enforce, and what is missing for a task's permissions."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, replace
from errno import EINVAL, ENOSYS
from functools import cache

from jobq.core.policies import Permissions
from jobq.executors.sandbox import landlock
from jobq.executors.sandbox.defaults import code_in_wide_folders
from jobq.executors.sandbox.limits import make_cgroup, remove_cgroup
from jobq.executors.sandbox.privileges import own_user_works
from jobq.executors.sandbox.syscalls import MACHINE, MACHINES, call, supported


@dataclass(frozen=True)
class Kernel:
    """The features of a kernel that permissions use."""

    landlock: int
    """Version of Landlock. 0 if there is none."""
    seccomp: bool
    root: bool
    """Whether the worker is root. The kernel does not count root's processes."""

    counts_processes: bool
    """Whether the processes of one child can be limited to a number."""


def this_kernel() -> Kernel:
    """Find out what this machine offers to a worker."""
    kernel = this_kernel_to_a_child()
    return replace(kernel, counts_processes=_counts_processes(root=kernel.root))


def this_kernel_to_a_child() -> Kernel:
    """What this machine offers, without the costly tries that the worker has made before."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return Kernel(
        landlock=landlock.version(), seccomp=_has_seccomp(), root=root, counts_processes=True
    )


def missing(permissions: Permissions, kernel: Kernel) -> list[str]:
    """What this machine cannot enforce, one sentence each. Empty if it can enforce everything."""
    if sys.platform != "linux":
        return [f"permissions need Linux, and this is {platform.system()}"]
    if not supported():
        return [f"permissions need a processor of {' or '.join(MACHINES)}, and this is {MACHINE}"]
    return [
        *missing_features(permissions, kernel),
        *_missing_paths(permissions),
        *(
            f"{folder} is on sys.path and holds more than code, so a task could read all of it: "
            "start the worker in a folder of its own"
            for folder in code_in_wide_folders()
        ),
    ]


def missing_features(permissions: Permissions, kernel: Kernel) -> list[str]:
    """What the kernel lacks for these permissions, one sentence each."""
    found: list[str] = []
    if not kernel.seccomp:
        found.append("system calls cannot be restricted: the kernel has no seccomp filters")
    if not kernel.landlock:
        found.append(
            "paths cannot be restricted: Landlock is missing (Linux 5.13 or later with "
            "`landlock` in its list of security modules)"
        )
    if isinstance(permissions.network, tuple) and kernel.landlock < landlock.PORTS_VERSION:
        found.append(
            f"TCP ports cannot be restricted: Landlock has version {kernel.landlock}, and version "
            f"{landlock.PORTS_VERSION} (Linux 6.7) is needed"
        )
    if permissions.processes and not kernel.counts_processes:
        found.append(
            "the number of processes cannot be limited: the worker is root and may not make a "
            "control group with `pids`; run it as an ordinary user"
            if kernel.root
            else "the number of processes cannot be limited: this user may not make user namespaces"
        )
    return found


def _missing_paths(permissions: Permissions) -> list[str]:
    return [
        f"there is no {path}, which {option}= names"
        for option in ("read", "write", "run")
        for path in getattr(permissions, option)
        if not os.path.exists(path)
    ]


def _counts_processes(*, root: bool) -> bool:
    """Root's processes are counted by a control group, another user's by a user namespace."""
    if not supported():
        return False
    if not root:
        return own_user_works()
    group = make_cgroup(0)
    if group is None:
        return False
    remove_cgroup(group)
    return True


def _has_seccomp() -> bool:
    if not supported():
        return False
    try:
        call("seccomp", 1, 0, None)  # no filter: EFAULT if the kernel knows filters
    except OSError as error:
        return error.errno not in (ENOSYS, EINVAL)
    return True


# The question a worker asks before it starts.


@cache
def _kernel() -> Kernel:
    return this_kernel()


def check(permissions: Permissions) -> list[str]:
    """What this machine cannot enforce of the permissions, one sentence each. Empty: everything.

    A worker refuses to start a task with anything missing. With `enforce="best-effort"` it logs
    what is missing.
    """
    return missing(permissions, _kernel())


# What each permission needs of the kernel, and whether this machine has it.


@dataclass(frozen=True)
class Feature:
    """One permission: what it needs, and why this machine cannot enforce it (empty: it can)."""

    permission: str
    needs: str
    missing: str


# Permission, what it needs, and a sample for which this machine is asked.
_NEEDS = (
    ("read, write, run", "Linux 5.13 (Landlock) and seccomp", Permissions()),
    ("network=False, network=True", "seccomp", Permissions()),
    ("network=[ports]", "Linux 6.7 (Landlock 4) and seccomp", Permissions(network=[443])),
    ("env", "nothing", Permissions()),
    ("memory, cpu, files", "resource limits", Permissions()),
    ("processes=0", "seccomp", Permissions()),
    (
        "processes=N",
        "user namespaces (Linux 5.14); for root: a control group with pids",
        Permissions(processes=1),
    ),
)


def features(kernel: Kernel | None = None) -> list[Feature]:
    """All permissions, for this machine or for a kernel that is given."""
    kernel = kernel or this_kernel()
    return [
        Feature(permission, needs, "; ".join(missing_features(sample, kernel)))
        for permission, needs, sample in _NEEDS
    ]


def machine() -> str:
    """The kernel in one line."""
    if sys.platform != "linux":
        return f"{platform.system()} {platform.release()}: permissions need Linux"
    kernel = this_kernel()
    return (
        f"Linux {platform.release()} {platform.machine()}, "
        f"{f'Landlock {kernel.landlock}' if kernel.landlock else 'no Landlock'}, "
        f"{'seccomp' if kernel.seccomp else 'no seccomp'}, "
        f"as {'root' if kernel.root else 'an ordinary user'}"
    )
