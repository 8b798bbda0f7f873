"""How many CPUs this process may use: the default of `pool`, and `--processes auto`."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs that this process may run on, or fewer if its container has a smaller quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(cgroups, own)]))


def _quotas(cgroups: Path, own: Path) -> list[int]:
    """The quotas of this process's cgroup (version 2) and all above it, rounded up to CPUs."""
    try:
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    folder = cgroups / path.strip("/")
    found = []
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroups):
            break
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            found.append(math.ceil(int(quota) / int(period)))
    return found
