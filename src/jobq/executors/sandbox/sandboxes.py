"""What a worker keeps for all its children with permissions."""

from __future__ import annotations

from collections.abc import Iterable

from jobq.core.policies import Permissions
from jobq.executors.sandbox.held import Confined, Held
from jobq.executors.sandbox.syscalls import supported
from jobq.executors.sandbox.watch import Guard, Watch
from jobq.executors.sandbox.workspace import Workspace


class Sandboxes:
    """The files that children may use, and a guard that ends their processes with the worker."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._guard = Guard()

    def prepare(self, tasks: Iterable[Confined], stores: Iterable[str]) -> None:
        """Open the files of these tasks. `stores` are the URLs of the worker's stores.

        Nothing happens if that was done. ConfigError if the permissions of one task would give away
        files of the worker or of another task.
        """
        tasks = list(tasks)
        if tasks and self._held is None and supported():
            self._held = Held(tasks, tuple(stores))

    def workspace(self, permissions: Permissions) -> Workspace:
        """Prepare what a child with these permissions needs."""
        if self._held is None and supported():
            self._held = Held([])
        if permissions.processes:
            self._guard.start()
        return Workspace.open(permissions, self._held)

    def watch(self, permissions: Permissions, workspace: Workspace, pid: int) -> Watch:
        """Watch a child that has been started, and the processes that it starts."""
        return Watch(permissions, workspace, pid, self._guard)

    def close(self) -> None:
        """The children have ended."""
        self._guard.close()
        if self._held is not None:
            self._held.close()
            self._held = None
