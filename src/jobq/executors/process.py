"""Runs handlers in child processes: they use several cores, and can be killed.

A handler that ends its process, or is killed, fails its own job. A run past its timeout is asked
to stop, and its process is killed if it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from jobq.core.policies import Permissions
from jobq.executors.exits import Died, Ended
from jobq.executors.handlers import Address, Callee, address_of
from jobq.executors.pool.child import Child, Group
from jobq.executors.pool.pool import Pool, Waiter
from jobq.executors.running import Running
from jobq.executors.sandbox import explain_signal
from jobq.executors.settings import ExecutorSettings

_CHILDREN = 5
"""Children that may die before they begin a job. Then something is wrong, and the job fails."""


class ProcessExecutor:
    """Runs each job in a child process of the pool."""

    apart: Literal[True] = True

    def __init__(self, settings: ExecutorSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(settings)
        self._at: dict[Running, Child | Waiter] = {}
        self._addresses: dict[tuple[int, str], Address] = {}

    async def start(self, tasks: Iterable[tuple[str, str, str, Callee]]) -> None:
        """Start the children, and check that they can import the tasks.

        A task is given with its tenant, its queue and the URL of its store. ConfigError if a child
        cannot import one.
        """
        for tenant, queue, url, handler in tasks:
            self._pool.expect(_group(tenant, handler), address_of(handler, queue), url)
        await self._pool.warm_up()

    async def run(self, run: Running, handler: Callee, begin: Callable[[], None]) -> Ended:
        """Run a job, when a child is free. `begin` is called just before it starts.

        If the child dies before it begins the job, another one gets it.
        """
        group = _group(run.lease.queue.tenant, handler)
        try:
            for _ in range(_CHILDREN):
                ended = await self._run_once(run, handler, group, begin)
                if not isinstance(ended, Died) or ended.begun:
                    break
            return _explained(ended, group.permissions, handler.name)
        finally:
            self._at.pop(run, None)

    async def _run_once(
        self, run: Running, handler: Callee, group: Group, begin: Callable[[], None]
    ) -> Ended:
        child = self._pool.take(group)
        if child is None:
            child = await self._free_child(run, handler, group)
        try:
            begin()
            self._at[run] = child
            address = self._address(handler, run.lease.queue.queue)
            max_payload: int | None = getattr(handler, "max_payload", None)
            ended = child.start(run, address, run.now_ms, max_payload)
        except BaseException:
            if child.run is None:
                self._pool.give_back(child)
            else:  # nobody knows what it has received
                child.kill()
            raise
        return await ended

    async def _free_child(self, run: Running, handler: Callee, group: Group) -> Child:
        self._pool.expect(group, self._address(handler, run.lease.queue.queue))
        self._at[run] = waiter = self._pool.wait(group)
        try:
            return await waiter.future
        except BaseException:
            future = waiter.future
            if not (future.cancel() or future.cancelled() or future.exception()):
                self._pool.give_back(future.result())  # a child was given to it meanwhile
            raise

    def stop(self, run: Running, grace_s: float) -> None:
        """Ask the handler to stop. Its process is killed if it goes on for `grace_s`."""
        at = self._at.get(run)
        if isinstance(at, Waiter):
            at.future.cancel()
        elif at is not None and at.run is run and at.timer is None:
            at.ask_to_stop()
            at.timer = self._loop.call_later(grace_s, at.kill)

    def kill(self, run: Running) -> None:
        """End the process of a run at once."""
        at = self._at.get(run)
        if isinstance(at, Waiter):
            at.future.cancel()
        elif at is not None and at.run is run:
            at.kill()

    async def aclose(self) -> None:
        """End all children."""
        await self._pool.aclose()

    def _address(self, handler: Callee, queue: str) -> Address:
        key = (id(handler), queue)
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = address_of(handler, queue)
        return address


def _explained(ended: Ended, permissions: Permissions | None, task: str) -> Ended:
    """Say so if a process died because of its permissions."""
    if isinstance(ended, Died) and permissions is not None and ended.status < 0:
        denied = explain_signal(-ended.status, permissions, task)
        if denied is not None and not ended.killed and ended.why is None:
            return Died(ended.status, why=f"{type(denied).__name__}: {denied}")
    return ended


def _group(tenant: str, handler: Callee) -> Group:
    return Group(tenant, getattr(handler, "permissions", None))


def open(settings: ExecutorSettings) -> ProcessExecutor:
    """Return an executor for the running event loop."""
    return ProcessExecutor(settings)
