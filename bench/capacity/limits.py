"""A limit on the processor time of a process, as a container would have it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 100_000
"""The kernel's default: a process may use its share of each tenth of a second."""
_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Where control groups of version 1 and of version 2 are."""


@contextmanager
def limited(pids: Sequence[int], cores: float) -> Iterator[None]:
    """Give each process this part of a core. 0 means no limit."""
    groups: list[Path] = []
    try:
        for pid in pids if cores else ():
            groups.append(_group(f"jobq-bench-{os.getpid()}-{pid}", cores))
            (groups[-1] / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            _remove(group)


def _group(name: str, cores: float) -> Path:
    quota = int(cores * PERIOD_US)
    for root in _ROOTS:
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        for file, text in (("cpu.cfs_quota_us", f"{quota}"), ("cpu.max", f"{quota} {PERIOD_US}")):
            if (group / file).exists():
                (group / file).write_text(text)
                return group
        group.rmdir()
    raise SystemExit(
        "a limit on processor time needs a control group that this user may create: "
        "run as root, or leave the load out with --only"
    )


def _remove(group: Path) -> None:
    """Give the processes back to the group above, and delete the group."""
    with contextlib.suppress(OSError):  # they have ended
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:  # the kernel still counts a process that has just ended
            time.sleep(0.02)
        else:
            return
