"""What a worker prepares for a child with permissions, and removes when the child has ended."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass

from jobq.core.policies import Permissions
from jobq.executors.sandbox.granted_files import WORKSPACE_PREFIX, Held
from jobq.executors.sandbox.limits import counts_processes, make_cgroups, remove_cgroup
from jobq.executors.sandbox.trees import remove_contents

log = logging.getLogger("jobq")

_AT_ONCE = 1_000
"""Files that the worker removes before it goes on: about 10 ms."""


@dataclass(frozen=True)
class Workspace:
    """A temporary folder of the child's own, its control groups, and the files that it may use.

    msgspec encodes it, so that a worker can send it to its child.
    """

    folder: str
    cgroups: tuple[str, ...] = ()
    counts: bool = False
    """Whether one of the control groups limits the number of processes."""
    inherited: tuple[int, ...] = ()
    """Descriptors of the files (see `Held`). Empty: the child opens them itself."""

    @classmethod
    def open(cls, permissions: Permissions, held: Held | None = None) -> Workspace:
        """Make the folder and the control groups. `held` are the files of the worker's tasks."""
        inherited = () if held is None else held.descriptors(permissions)
        cgroups = make_cgroups(permissions)
        return cls(
            folder=tempfile.mkdtemp(prefix=WORKSPACE_PREFIX),
            cgroups=cgroups,
            counts=any(map(counts_processes, cgroups)),
            inherited=inherited,
        )

    def close(self) -> None:
        """Remove the folder and the control groups. The child and its processes have ended.

        A thread removes what a job has left in great numbers, so that the worker does not wait.
        """
        if not self._remove(_AT_ONCE):
            threading.Thread(target=self._remove, name="jobq workspace").start()
        for group in self.cgroups:
            remove_cgroup(group)

    def clear(self) -> None:
        """Remove what is in the folder: a job has ended, and the next one must not find it."""
        with suppress(OSError):
            remove_contents(self.folder)

    def _remove(self, limit: int | None = None) -> bool:
        try:
            if not remove_contents(self.folder, limit) and limit is not None:
                return False
            os.rmdir(self.folder)
        except OSError as error:
            log.warning("%s was not removed: %s", self.folder, error.strerror)
        return True
