"""The stores of a worker: opens them, declares their queues and takes the worker's name in each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

from msgspec.structs import replace

from jobq.api.merged_tasks import MergedTasks
from jobq.core.pace import Pace
from jobq.core.queues import QueueConfig
from jobq.core.records import QueueName
from jobq.engine.clock import wall_clock
from jobq.engine.handler import Handler, Source
from jobq.engine.identity import Identity, take_name
from jobq.engine.pulse import ttl_ms
from jobq.engine.scheduler import put_planned
from jobq.engine.settings import WorkerSettings
from jobq.stores.base import Store


class OpenedStore(NamedTuple):
    """A store handle, the queue that opened it, and the tasks of all its queues."""

    store: Store
    source: Source
    tasks: dict[QueueName, Mapping[str, Handler]]


class WorkerStores:
    """Keeps the store handles of these queues open until `aclose`."""

    def __init__(self, queues: Sequence[Source], identity: Identity) -> None:
        self._queues = queues
        self._identity = identity
        self._handles = AsyncExitStack()
        self._named: list[Store] = []  # the worker's name is taken there

    async def open(self, settings: WorkerSettings, *, paused: bool) -> list[OpenedStore]:
        """Open the stores, declare the queues and take the worker's name. ConfigError if a queue's
        stored declaration conflicts."""
        opened: list[OpenedStore] = []
        for queue in self._queues:
            store = await self._handles.enter_async_context(queue.opened())
            # Declare max_stalls even if the queue declares nothing: a task that has gone back to
            # the default must not keep its old number.
            declared = queue.config or QueueConfig()
            of_tasks = {task.name: task.max_stalls for task in queue.tasks.values()}
            await store.declare(queue.qname, replace(declared, max_stalls=of_tasks))
            await put_planned(store, await queue.plans(), (queue.clock or wall_clock)())
            tasks = next((each.tasks for each in opened if each.store is store), None)
            if tasks is None:
                tasks = {}
                opened.append(OpenedStore(store, queue, tasks))
            # Two Queue objects may stand for one queue, each with its own tasks.
            known = tasks.get(queue.qname)
            tasks[queue.qname] = queue.tasks if known is None else MergedTasks(known, queue.tasks)
        self._named.clear()  # from an earlier attempt
        for store, _, tasks in opened:
            record = self._identity.record(tuple(tasks), settings.concurrency, paused=paused)
            await take_name(store, record, ttl_ms=ttl_ms(settings, Pace()))
            self._named.append(store)
        return opened

    async def sign_off(self, timeout_s: float) -> None:
        """Free the worker's name in all stores, because the worker did not start."""
        for store in self._named:
            with suppress(Exception):  # the name also expires by itself
                async with asyncio.timeout(timeout_s):
                    await store.retire(self._identity.name, incarnation=self._identity.incarnation)

    async def aclose(self) -> None:
        """Close the handles. They can be opened again."""
        await self._handles.aclose()
