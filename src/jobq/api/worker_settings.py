"""What `Worker(…)` is given, checked: callbacks, executors, and the order of queues."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from jobq.api.current import CurrentJob
from jobq.core.policies import Permissions
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Fire
from jobq.core.rules.fleet import MAX_WEIGHT, by_weight, in_strict_order, in_turns
from jobq.core.values.checks import check_bool, check_bytes, check_int, did_you_mean, shown
from jobq.core.values.units import moment
from jobq.engine.executors import Executors
from jobq.engine.handler import (
    Source,
)
from jobq.engine.run import Run
from jobq.engine.service import on_outage
from jobq.errors import ConfigError
from jobq.executors import check_executor
from jobq.executors.cpus import usable_cpus
from jobq.executors.handlers import Callee
from jobq.executors.lifespan import LifespanFunction, lifespan_address
from jobq.executors.settings import ExecutorSettings

if TYPE_CHECKING:
    from jobq.executors.sandbox import Confined

log = logging.getLogger("jobq")

_CLOSE_TIMEOUT = 5.0
"""Seconds that a stopping worker waits for async functions that still run."""


class MissedTime(msgspec.Struct, frozen=True, kw_only=True):
    """A time at which a schedule made no job, although it was due. `at` is the first of several."""

    tenant: str
    queue: str
    schedule: str
    at: datetime


class Callbacks:
    """Calls the functions in the worker's event loop. Their errors are logged."""

    def __init__(
        self,
        *,
        on_stall: Callable[[CurrentJob], object] | None,
        on_idle: Callable[[], object] | None,
        on_error: Callable[[BaseException], object] | None,
        on_missed: Callable[[MissedTime], object] | None,
    ) -> None:
        given = {
            "on_stall": on_stall,
            "on_idle": on_idle,
            "on_error": on_error,
            "on_missed": on_missed,
        }
        for name, function in given.items():
            if function is not None and not callable(function):
                raise ConfigError(f"{name}={shown(function)} is not a function")
        self._on_stall = on_stall
        self._on_error = on_error
        self._on_missed = on_missed
        self.on_idle = on_idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Loops that are made in this block report their outages to `on_error`."""
        self._loop = asyncio.get_running_loop()
        if self._on_error is None:
            yield
            return
        token = on_outage.set(self._failed)
        try:
            yield
        finally:
            on_outage.reset(token)

    def stalled(self, run: Run) -> None:
        """Call `on_stall`: the lease of this run is lost."""
        if self._on_stall is not None:
            self._call("on_stall", self._on_stall, CurrentJob(run))

    def idle(self) -> None:
        """Call `on_idle`: the worker has nothing to do."""
        if self.on_idle is not None:
            self._call("on_idle", self.on_idle)

    def missed(self, fire: Fire) -> None:
        """Call `on_missed`: a schedule skipped this time."""
        if self._on_missed is not None:
            time = MissedTime(
                tenant=fire.queue.tenant,
                queue=fire.queue.queue,
                schedule=fire.schedule,
                at=moment(fire.at_ms),
            )
            self._call("on_missed", self._on_missed, time)

    def _failed(self, error: BaseException) -> None:
        """Call `on_error`. Some loops run in another thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call, "on_error", self._on_error, error)

    def _call(self, name: str, function: Any, *args: Any) -> None:
        try:
            value = function(*args)
        except Exception:
            log.exception("%s of the worker raised an error", name)
            return
        if asyncio.iscoroutine(value):
            task = asyncio.get_running_loop().create_task(value, name=f"jobq {name}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s of the worker raised an error", task.get_name()[5:], exc_info=error)

    async def aclose(self) -> None:
        """Wait for async functions that still run, then cancel them."""
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_TIMEOUT)
            for task in late:
                task.cancel()


# Checks what `Worker(…)` says about child processes.

_CONFINED = ("process", "command")
"""Executors that can enforce permissions."""
MAX_POOL = 1_000
"""Child processes of one worker. A machine with more cores runs several workers."""


def executor_settings(
    pool: int | None, max_jobs: int | None, max_memory: int | str | None
) -> ExecutorSettings:
    """The settings of the pool of child processes. ConfigError names a bad value."""
    return ExecutorSettings(
        pool=usable_cpus()
        if pool is None
        else check_int(pool, "pool", low=1, high=MAX_POOL, error=ConfigError),
        pool_max_jobs=None
        if max_jobs is None
        else check_int(max_jobs, "pool_max_jobs", low=1, error=ConfigError),
        pool_max_memory=None if max_memory is None else check_bytes(max_memory, "pool_max_memory"),
    )


def check_permissions(permissions: Permissions, executor: str, where: str) -> None:
    """ConfigError if this machine cannot enforce the permissions of a task.

    Running the task without them would break a promise. With `enforce="best-effort"`, a warning
    says what is missing.
    """
    if executor not in _CONFINED:
        raise ConfigError(
            f"{where}: permissions= need a process of their own, and executor={executor!r} has "
            "none: give executor='process' or 'command'"
        )
    from jobq.executors.sandbox import check

    missing = check(permissions)
    if not missing:
        return
    text = f"{where}: this machine cannot enforce its permissions: {'; '.join(missing)}"
    if permissions.enforce == "all":
        raise ConfigError(text)
    log.warning("%s", text)


# The executors of a worker's tasks: checked, started and closed together.


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


# How the queues of a worker share its slots: in turns, by weight, or in strict order.


class QueueOrder:
    """What `Worker(strict=…, weights=…)` says."""

    def __init__(
        self, queues: Sequence[QueueName], *, strict: bool, weights: Mapping[str, int] | None
    ) -> None:
        self.strict = check_bool(strict, "strict", error=ConfigError)
        if weights is not None and not isinstance(weights, Mapping):
            raise ConfigError(f"weights={shown(weights)} is not a mapping of queue names")
        if strict and weights:
            raise ConfigError("strict=True and weights: give one of them")
        names = [queue.queue for queue in queues]
        for name, weight in (weights or {}).items():
            if name not in names:
                raise ConfigError(
                    f"weights: this worker has no queue {name!r}{did_you_mean(name, names)}"
                )
            check_int(weight, f"the weight of {name}", low=1, high=MAX_WEIGHT, error=ConfigError)
        self._weights = weights

    def orders(self, queues: Sequence[QueueName]) -> list[tuple[QueueName, ...]]:
        """The orders in which claims name these queues, one after the other."""
        if self.strict:
            return in_strict_order(queues)
        if not self._weights:
            return in_turns(queues)
        return by_weight(queues, {queue: self._weights.get(queue.queue, 1) for queue in queues})

    def check_stores(self, stores: int) -> None:
        """ConfigError if the order cannot be kept: each store is asked on its own."""
        if self.strict and stores > 1:
            raise ConfigError(
                "strict=True: the queues are in different stores, which a worker asks side by "
                "side; use queues of one store, or a worker for each"
            )
