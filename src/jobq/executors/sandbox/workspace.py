"""What a worker prepares for a child with permissions, and removes when the child has ended."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass

from jobq.core.policies import Permissions
from jobq.executors.sandbox.limits import make_cgroup, remove_cgroup
from jobq.executors.sandbox.trees import remove_contents

log = logging.getLogger("jobq")

_AT_ONCE = 1_000
"""Files that the worker removes before it goes on: about 10 ms."""


@dataclass(frozen=True)
class Workspace:
    """A temporary folder of the child's own, and a control group if processes are counted there.

    msgspec encodes it, so that a worker can send it to its child.
    """

    folder: str
    cgroup: str | None

    @classmethod
    def open(cls, permissions: Permissions) -> Workspace:
        """Make the folder and the control group."""
        root = os.geteuid() == 0  # another user's processes are counted by a user namespace
        return cls(
            folder=tempfile.mkdtemp(prefix="jobq-"),
            cgroup=make_cgroup(permissions.processes) if root else None,
        )

    def close(self) -> None:
        """Remove both. The child and its processes have ended.

        A thread removes what a job has left in great numbers, so that the worker does not wait.
        """
        if not self._remove(_AT_ONCE):
            threading.Thread(target=self._remove, name="jobq workspace").start()
        if self.cgroup is not None:
            remove_cgroup(self.cgroup)

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
