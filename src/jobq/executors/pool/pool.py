"""Decides which child process runs which job.

A child runs one job at a time. It serves one group of jobs (a tenant and a set of permissions),
because rights that a process has given up do not come back. Children are started before they are
needed. If a job's group has no idle child and the pool is full, the child of another group that
has been idle longest makes room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence

from jobq.errors import ConfigError
from jobq.executors.handlers import Address
from jobq.executors.pool.child import Child, Group
from jobq.executors.pool.messages import State
from jobq.executors.settings import ExecutorSettings

log = logging.getLogger("jobq")


class Waiter:
    """A job that waits for a child of its group."""

    __slots__ = ("future", "group")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.future: asyncio.Future[Child] = asyncio.get_running_loop().create_future()


class Pool:
    """At most `settings.pool` children. Belongs to the worker's event loop."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self._children: set[Child] = set()  # alive, and not ending
        self._ending: set[Child] = set()
        self._idle: dict[Group, list[Child]] = {}
        self._waiting: deque[Waiter] = deque()
        self._tasks: dict[Group, set[Address]] = {}
        self._stores: dict[str, set[str]] = {}  # queue → URLs
        self._starting: dict[Child, asyncio.Future[None]] = {}
        self._warm = self._closed = False
        self._gone = asyncio.Event()

    # ── starting ──

    def expect(self, group: Group, task: Address, url: str | None = None) -> None:
        """Let the children of a group import this task when they start."""
        self._tasks.setdefault(group, set()).add(task)
        if url is not None:
            self._stores.setdefault(task.queue, set()).add(url)

    async def warm_up(self) -> None:
        """Start the children, as many of each group, and wait until one of each is ready.

        A group for which there is no room is tried out. ConfigError if a child cannot import its
        tasks.
        """
        groups, size = list(self._tasks), self._settings.pool
        for group in groups[size:]:
            child = self._start(group)
            await self._all_ready([child])
            self._idle[group].remove(child)
            self._retire(child)
        started = [self._start(groups[n % len(groups)]) for n in range(size)]
        await self._all_ready(started[: len(groups)])
        self._warm = True

    async def _all_ready(self, children: Sequence[Child]) -> None:
        """Wait until these children have imported their tasks. ConfigError if one cannot."""
        waiting = [self._starting[child] for child in children]
        done, late = await asyncio.wait(waiting, timeout=self._settings.start_timeout_s)
        for future in done:
            future.result()
        if late:
            raise ConfigError(
                f"a child process did not import its tasks within "
                f"{self._settings.start_timeout_s:g} s"
            )

    def _start(self, group: Group) -> Child:
        child = Child(
            group,
            tasks=tuple(sorted(self._tasks.get(group, ()))),
            # Queues of one name in two stores keep the URLs that their code gives them.
            stores={name: min(urls) for name, urls in self._stores.items() if len(urls) == 1},
            measure=self._settings.pool_max_memory is not None,
            lifespan=self._settings.lifespan,
            sandboxes=self._settings.sandboxes,
            on_free=self._freed,
            on_end=self._ended,
        )
        self._children.add(child)
        future = self._starting[child] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda f: f.cancelled() or f.exception())  # it may have no waiter
        child.timer = asyncio.get_running_loop().call_later(
            self._settings.start_timeout_s, child.kill
        )
        return child

    def _start_another(self, group: Group) -> OSError | None:
        """Start a child while jobs run. Returns the error if the system refuses."""
        try:
            self._start(group)
        except OSError as error:  # too many processes or open files, or the disk is full
            log.error("a child process could not be started: %s", error)
            return error
        return None

    # ── taking ──

    def take(self, group: Group) -> Child | None:
        """An idle child of the group, if there is one. Its job must be started at once."""
        idle = self._idle.get(group)
        return idle.pop() if idle else None

    def wait(self, group: Group) -> Waiter:
        """Wait for a child of the group."""
        waiter = Waiter(group)
        if self._closed:
            waiter.future.cancel()
            return waiter
        self._waiting.append(waiter)
        if len(self._children) < self._settings.pool or any(self._idle.values()):
            self._make_room()
        return waiter

    def _make_room(self) -> None:
        """Start children for jobs that wait, as far as the pool allows."""
        starting: dict[Group, int] = {}
        for child in self._starting:
            starting[child.group] = starting.get(child.group, 0) + 1
        for waiter in self._waiting:
            if waiter.future.done():
                continue
            if starting.get(waiter.group, 0) > 0:
                starting[waiter.group] -= 1
            elif len(self._children) < self._settings.pool or self._retire_idle(waiter.group):
                error = self._start_another(waiter.group)
                if error is not None and not self._children:  # else it waits for one of them
                    waiter.future.set_exception(error)

    def _retire_idle(self, group: Group) -> bool:
        """End the child of another group that has been idle longest. False if there is none."""
        idle = [child for own, some in self._idle.items() if own != group for child in some]
        if not idle:
            return False
        child = min(idle, key=lambda child: child.idle_since)
        self._idle[child.group].remove(child)
        self._retire(child)
        return True

    # ── children that are free, or dead ──

    def _freed(self, child: Child) -> None:
        ready = self._starting.pop(child, None)
        if ready is not None:
            if child.timer is not None:
                child.timer.cancel()
                child.timer = None
            if not ready.done():
                ready.set_result(None)
        if self._closed:
            self._retire(child)
            return
        if self._is_used_up(child):
            self._retire(child)
            self._replace(child)
            return
        waiter = self._next(child.group)
        if waiter is not None:
            waiter.future.set_result(child)
            return
        child.idle_since = time.monotonic()
        self._idle.setdefault(child.group, []).append(child)
        if self._waiting:
            self._make_room()

    def give_back(self, child: Child) -> None:
        """Return a child whose job did not start."""
        if not child.dead and child.state is State.IDLE:
            self._freed(child)

    def _next(self, group: Group) -> Waiter | None:
        """Take the first job that waits for a child of this group."""
        for waiter in tuple(self._waiting):
            if waiter.future.done():  # it was stopped
                self._waiting.remove(waiter)
            elif waiter.group == group:
                self._waiting.remove(waiter)
                return waiter
        return None

    def _replace(self, child: Child) -> None:
        """Start a child for jobs that wait, or else another one of the same group."""
        self._make_room()
        if len(self._children) < self._settings.pool:
            self._start_another(child.group)

    def _is_used_up(self, child: Child) -> bool:
        most, memory = self._settings.pool_max_jobs, self._settings.pool_max_memory
        permissions = child.group.permissions
        if permissions is not None and permissions.cpu_ms is not None:
            most = 1  # the limit of processor time is the job's, and a process cannot reset it
        return (
            child.used_up
            or (most is not None and child.jobs >= most)
            or (memory is not None and child.memory > memory)
        )

    def _retire(self, child: Child) -> None:
        self._children.discard(child)
        if not child.dead:
            self._ending.add(child)
            child.end(self._settings.end_timeout_s)

    def _ended(self, child: Child) -> None:
        """A child is dead: start another one, unless it could not even start."""
        retired = child in self._ending
        self._children.discard(child)
        self._ending.discard(child)
        idle = self._idle.get(child.group)
        if idle and child in idle:
            idle.remove(child)
        starting = self._starting.pop(child, None)
        if starting is not None:
            self._failed_to_start(child, starting)
        if self._closed:
            if not self._children and not self._ending:
                self._gone.set()
        elif self._warm and starting is None and (child.jobs or retired):
            self._replace(child)
        else:
            # It could not start, died by itself, or was tried out. Only a job that waits starts
            # another one.
            self._make_room()

    def _failed_to_start(self, child: Child, starting: asyncio.Future[None]) -> None:
        """Fail one job that waits. So a child that cannot start is not started for ever."""
        error = ConfigError(
            child.problem
            or f"a child process ended before it was ready (status {child.process.returncode})"
        )
        if not starting.done():
            starting.set_exception(error)
        if self._warm and not self._closed:
            log.error("%s", error)
        waiter = self._next(child.group)
        if waiter is not None:
            waiter.future.set_exception(error)

    # ── ending ──

    async def aclose(self) -> None:
        """End all children: idle ones by themselves, those that still run a job by force."""
        self._closed = True
        for waiter in self._waiting:
            waiter.future.cancel()
        self._waiting.clear()
        for child in tuple(self._children):
            if child.state is State.IDLE:
                self._retire(child)
            else:
                child.kill()
        if not self._children and not self._ending:
            return
        try:  # children that do not end are killed after `end_timeout_s`
            await asyncio.wait_for(self._gone.wait(), self._settings.end_timeout_s + 5)
        except TimeoutError:
            log.error("%d child processes do not end", len(self._children) + len(self._ending))
