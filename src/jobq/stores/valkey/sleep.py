"""Sleeping until there may be work: a blocking pop on a marker of the worker's own.

The store knows who sleeps (the exchange that found nothing wrote it down) and pushes a marker to as many sleepers as there
is work for. A pop is never unbounded, and it goes on under way when its sleeper has something better to do: the next
sleep takes it up, so waking and sleeping costs no new connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from jobq.core.records import QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.address import Node
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.wire import Connection

_POP = 10.0
"""Seconds a pop blocks at most."""

Waiter = asyncio.Task[bytes | None]


class Sleep(Flows):
    """`sleep`, and what the exchange tells about sleepers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.registered: dict[str, int] = {}
        self.looked_in: dict[str, Sequence[QueueName]] = {}  # where each worker may count as asleep
        self._waiters: dict[tuple[str, ...], Waiter] = {}
        self._of_worker: dict[str, set[tuple[str, ...]]] = {}
        self._idle: dict[Node, list[Connection]] = {}

    async def fall_asleep(self, queues: Sequence[QueueName], worker: str, slots: int) -> None:
        """Write down that the worker sleeps, for partitioned queues (the exchange does it for others)."""
        for queue in queues:
            if self._partitions[queue] > 1:
                await self.fcall("asleep", self.keys.prefix(queue), worker, slots)
        self.registered[worker] = slots

    async def rise(self, worker: str) -> None:
        """The worker looks for nothing any more: work that comes, or has just woken it, is for another."""
        queues = self.looked_in.pop(worker, ())
        if queues and self.registered.get(worker, 1) > 0:
            await self.strike_off(worker, {self.keys.prefix(queue) for queue in queues})
            self.registered[worker] = 0

    async def strike_off(self, worker: str, prefixes: Collection[str]) -> None:
        """The worker does not count as asleep in these queues any more."""
        if prefixes:
            await asyncio.gather(*(self.fcall("asleep", prefix, worker, 0) for prefix in prefixes))

    def wake(self, worker: str) -> None:
        """The worker is at work: markers that have arrived are for what it is about to find."""
        for group in self._of_worker.get(worker, ()):
            waiter = self._waiters.get(group)
            if waiter is not None and waiter.done():
                del self._waiters[group]

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """See SignalStore."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        prefixes = [self.keys.prefix(queue) for queue in queues]
        if self.registered.get(worker) != slots:
            await asyncio.gather(
                *(self.fcall("slots", prefix, worker, slots) for prefix in prefixes)
            )
            self.registered[worker] = slots
        due = deadline
        groups = self._groups(worker, prefixes)
        while True:
            waiters = {self._waiter(group): group for group in groups}
            done, _ = await asyncio.wait(
                waiters, timeout=max(0.0, due - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return due < deadline
            for waiter in done:
                self._waiters.pop(waiters[waiter], None)
                marker = waiter.result()
                if marker == b"1":
                    return True
                if marker is not None:  # "d<ms>": a job is due then
                    due = min(due, loop.time() + int(marker[1:]) / 1000)

    def _groups(self, worker: str, prefixes: list[str]) -> list[tuple[str, ...]]:
        """Keys that one pop can wait for together: all of them, but for a Cluster, where each is in a slot of its own."""
        # In one order, whichever the worker names its queues in this time: an earlier pop that is still under way for the
        # same keys must be found again, or it takes the marker and nobody hears of it.
        wakes = sorted(keys.wake_key(prefix, worker) for prefix in prefixes)
        groups: list[tuple[str, ...]] = (
            [(wake,) for wake in wakes] if self.address.kind == "cluster" else [tuple(wakes)]
        )
        self._of_worker.setdefault(worker, set()).update(groups)
        return groups

    def _waiter(self, group: tuple[str, ...]) -> Waiter:
        waiter = self._waiters.get(group)
        if waiter is None:
            waiter = self._waiters[group] = asyncio.get_running_loop().create_task(self._pop(group))
            # Its sleeper may have gone: then nobody asks how it ended.
            waiter.add_done_callback(lambda task: task.cancelled() or task.exception())
        return waiter

    async def _pop(self, group: tuple[str, ...]) -> bytes | None:
        """One blocking pop, on a connection of its own."""
        node = await self.servers.node_of(group[0])
        idle = self._idle.setdefault(node, [])
        connection = idle.pop() if idle else None
        if connection is None or connection.closed:
            connection = await self.servers.open(node)
        try:
            popped = await connection.ask("BLPOP", *group, str(_POP), patience=_POP)
        except BaseException:
            self.servers.forget(node)
            connection.close()
            raise
        idle.append(connection)
        return None if popped is None else popped[1]

    async def close_sleep(self) -> None:
        """End what is under way."""
        waiters, self._waiters = list(self._waiters.values()), {}
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await asyncio.gather(*(c.aclose() for idle in self._idle.values() for c in idle))
        self._idle.clear()
