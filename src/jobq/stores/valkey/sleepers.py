"""`sleep`: a worker sleeps in a blocking pop on a list of its own until there may be work.

The store knows which workers sleep: the exchange that found nothing recorded it. It pushes a marker
to as many of them as there is work for. A pop has a time limit. It continues in the background when
its worker has something better to do, and the next sleep picks it up, so waking and sleeping needs
no new connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from jobq.core.records.event_log import STATE_CODES
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.errors import StoreUnavailable
from jobq.stores.valkey import keys
from jobq.stores.valkey.address import Node
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.connection import Connection
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers

_POP_SECONDS = 10.0
"""How long one pop blocks. A connection that died without a sign is noticed after that time."""

_REST_MS = 5_000
"""How long a worker may settle jobs without a look at its partitions. Wake-ups can be lost."""

_WAITING, _DELAYED = STATE_CODES[State.WAITING], STATE_CODES[State.DELAYED]

Pop = asyncio.Task[bytes | None]
Group = tuple[str, ...]
"""Keys that one pop waits for."""


class Sleepers:
    """Which workers of this handle sleep, and their pops."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions) -> None:
        self.slots: dict[str, int] = {}
        """The free slots with which a worker is recorded as asleep; 0 if it is awake."""
        self.claimed_from: dict[str, Sequence[QueueName]] = {}
        """The queues in which a worker may be recorded as asleep."""
        self.rest_until: dict[str, float] = {}
        """Until when a worker that is recorded as asleep need not look for work (loop time)."""
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._pops: dict[Group, Pop] = {}
        self._groups_of: dict[str, set[Group]] = {}
        self._idle: dict[Node, list[Connection]] = {}

    async def fall_asleep(self, queues: Sequence[QueueName], worker: str, slots: int) -> None:
        """Record in partitioned queues that the worker sleeps. (The exchange does it in others.)"""
        for queue in queues:
            if self._partitions.known[queue] > 1:
                await self._calls.fcall(
                    "asleep", self._partitions.space.prefix(queue), worker, slots
                )
        self.slots[worker] = slots

    def rest(self, worker: str, due_ms: int | None) -> None:
        """The worker has looked everywhere and is recorded as asleep. A job is due in `due_ms`."""
        ms = _REST_MS if due_ms is None else min(due_ms, _REST_MS)
        self.rest_until[worker] = asyncio.get_running_loop().time() + ms / 1000

    def rests(self, worker: str) -> float | None:
        """How many seconds a sleeping worker need not look. None: it must look, if it can claim.

        Its pops are under way, so no marker has come: what was put since has woken others.
        """
        pops = [self._pops.get(group) for group in self._groups_of.get(worker, ())]
        left = self.rest_until.get(worker, 0.0) - asyncio.get_running_loop().time()
        asleep = left > 0 and pops and all(pop is not None and not pop.done() for pop in pops)
        return left if asleep else None

    async def stop_looking(self, worker: str) -> None:
        """The worker stops looking for work.

        Jobs that come, or have just woken it, are for others.
        """
        queues = self.claimed_from.pop(worker, ())
        if queues and self.slots.get(worker, 1) > 0:
            await self.set_awake(worker, {self._partitions.space.prefix(queue) for queue in queues})
            self.slots[worker] = 0

    async def set_awake(self, worker: str, prefixes: Collection[str]) -> None:
        """Record that the worker is awake, in these queues."""
        if prefixes:
            await asyncio.gather(
                *(self._calls.fcall("asleep", prefix, worker, 0) for prefix in prefixes)
            )

    def wake(self, worker: str) -> None:
        """Drop markers that have arrived: the worker is about to find the work they announce."""
        for group in self._groups_of.get(worker, ()):
            pop = self._pops.get(group)
            if pop is not None and pop.done():
                del self._pops[group]

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """See SignalStore."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        prefixes = [self._partitions.space.prefix(queue) for queue in queues]
        if self.slots.get(worker) != slots:
            await asyncio.gather(
                *(self._calls.fcall("slots", prefix, worker, slots) for prefix in prefixes)
            )
            self.slots[worker] = slots
        due = deadline
        groups = self._groups(worker, prefixes)
        while True:
            pops = {self._pop(group): group for group in groups}
            done, _ = await asyncio.wait(
                pops, timeout=max(0.0, due - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                if due < deadline and not await self._may_have_work(queues):
                    due = deadline  # this worker was a deputy, and another one has done the work
                    continue
                self.rest_until.pop(worker, None)
                return due < deadline
            for pop in done:
                self._pops.pop(pops[pop], None)
                marker = pop.result()
                if marker == b"1":
                    self.rest_until.pop(worker, None)
                    return True
                if marker is not None:  # "d<ms>": a job is due then
                    due = min(due, loop.time() + int(marker[1:]) / 1000)
                    if worker in self.rest_until:
                        self.rest_until[worker] = min(self.rest_until[worker], due)

    async def _may_have_work(self, queues: Sequence[QueueName]) -> bool:
        """Whether a job of these queues waits or is delayed."""
        try:
            for queue in queues:
                for prefix in await self._partitions.prefixes(queue):
                    counts = await self._calls.fcall("count", prefix)
                    if counts[_WAITING] or counts[_DELAYED]:
                        return True
        except StoreUnavailable:  # the claim that follows finds out why
            return True
        return False

    def _groups(self, worker: str, prefixes: list[str]) -> list[Group]:
        """The worker's keys, as pops can wait for them: all together, or each alone in a Cluster.

        The keys are sorted, because the worker may name its queues in another order next time. A
        pop for the same keys that is still under way must be found again: otherwise it takes the
        marker and no one reads it.
        """
        wakes = sorted(keys.wake_key(prefix, worker) for prefix in prefixes)
        groups: list[Group] = (
            [(wake,) for wake in wakes]
            if self._servers.one_hash_slot_per_command
            else [tuple(wakes)]
        )
        self._groups_of.setdefault(worker, set()).update(groups)
        return groups

    def _pop(self, group: Group) -> Pop:
        pop = self._pops.get(group)
        if pop is None:
            pop = self._pops[group] = asyncio.get_running_loop().create_task(self._run_pop(group))
            # The worker may be gone when the pop ends: then its exception is never asked for.
            pop.add_done_callback(lambda task: task.cancelled() or task.exception())
        return pop

    async def _run_pop(self, group: Group) -> bytes | None:
        """One blocking pop, on a connection that nothing else uses meanwhile."""
        node = await self._servers.node_of(group[0])
        idle = self._idle.setdefault(node, [])
        connection = idle.pop() if idle else None
        if connection is None or connection.closed:
            connection = await self._servers.open(node)
        try:
            popped = await self._servers.ask(
                connection, "BLPOP", *group, str(_POP_SECONDS), patience=_POP_SECONDS
            )
        except BaseException:
            self._servers.forget(node)
            connection.close()
            raise
        idle.append(connection)
        return None if popped is None else popped[1]

    async def aclose(self) -> None:
        """Cancel pops that are under way and close their connections."""
        pops, self._pops = list(self._pops.values()), {}
        for pop in pops:
            pop.cancel()
        await asyncio.gather(*pops, return_exceptions=True)
        await asyncio.gather(*(c.aclose() for idle in self._idle.values() for c in idle))
        self._idle.clear()
