"""The executors of a worker's tasks: checked, started and closed together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from jobq.api.child_processes import check_permissions
from jobq.engine.executors import Executors
from jobq.engine.handler import Source
from jobq.errors import ConfigError
from jobq.executors import check_executor
from jobq.executors.handlers import Callee
from jobq.executors.lifespan import LifespanFunction, lifespan_address
from jobq.executors.settings import ExecutorSettings

if TYPE_CHECKING:
    from jobq.executors.sandbox import Confined


class WorkerExecutors(Executors):
    """The executors that the tasks of these queues name."""

    def __init__(
        self,
        queues: Sequence[Source],
        settings: ExecutorSettings,
        lifespan: LifespanFunction | None = None,
    ) -> None:
        super().__init__(settings)
        self._queues = queues
        self._lifespan = lifespan

    def check(self) -> None:
        """Refuse a task that this worker cannot run: its jobs would fail one by one."""
        for queue in self._queues:
            _check_tasks(queue)
        self.settings.sandboxes.prepare(
            (confined for queue in self._queues for confined in _confined(queue)),
            stores={queue.url for queue in self._queues},
        )
        names = {task.executor for queue in self._queues for task in queue.tasks.values()}
        if self._lifespan is not None and "process" in names:
            address = lifespan_address(self._lifespan)
            self.settings = dataclasses.replace(self.settings, lifespan=address)

    async def start(self, stopped: Callable[[], bool]) -> None:
        """Start the child processes. ConfigError if one cannot run its tasks.

        `stopped` returns whether the worker was stopped meanwhile.
        """
        tasks: dict[str, list[tuple[str, str, str, Callee]]] = {}
        for queue in self._queues:
            for task in queue.tasks.values():
                place = (queue.qname.tenant, queue.qname.queue, queue.url, task)
                tasks.setdefault(task.executor, []).append(place)
        for name, places in tasks.items():
            executor = self[name]
            if executor.apart and not stopped():
                try:
                    await executor.start(places)
                except ConfigError:
                    if not stopped():  # else the stop has ended the processes
                        raise

    def startable(self, concurrency: int) -> int:
        """How many jobs can start at once: no more than children, if all jobs need one."""
        names = {task.executor for queue in self._queues for task in queue.tasks.values()}
        return min(concurrency, self.settings.pool) if names == {"process"} else concurrency


def _confined(queue: Source) -> Iterator[Confined]:
    """The tasks of a queue that have permissions."""
    for task in queue.tasks.values():
        if (permissions := getattr(task, "permissions", None)) is not None:
            from shutil import which

            from jobq.executors.sandbox import Confined

            where = f"task {task.name} of queue {queue.qname.queue}"
            programs = filter(None, map(which, getattr(task, "programs", ())))
            yield Confined(where, permissions, tuple(map(os.path.abspath, programs)))


def _check_tasks(queue: Source) -> None:
    for task in queue.tasks.values():
        where = f"task {task.name} of queue {queue.qname.queue}"
        try:
            check_executor(task.executor)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if task.executor == "command" and not hasattr(task, "programs"):
            raise ConfigError(
                f"{where}: executor='command' runs programs: make the task with queue.command(…)"
            )
        if task.batch is not None and task.executor == "process":
            raise ConfigError(
                f"{where}: executor='process' is not available for batch tasks: give the task "
                "executor='inline' or 'thread'"
            )
        if (permissions := getattr(task, "permissions", None)) is not None:
            check_permissions(permissions, task.executor, where)
