"""What a worker prepares for a child with permissions, and removes when the child has ended."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass

from jobq.core.policies import Permissions
from jobq.executors.sandbox.limits import make_cgroup, remove_cgroup


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
        """Remove both. The child and its processes have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.cgroup is not None:
            remove_cgroup(self.cgroup)

    def clear(self) -> None:
        """Remove what is in the folder: a job has ended, and the next one must not find it."""
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
