"""Many queues of many tenants, and many schedules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from bench.growth.compared import Compared, Timer, claim, completed, put, spec
from bench.growth.figures import EACH, SAME, TICK, Measure, flat
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.workers import WorkerRecord
from jobq.engine.scheduler import fire_due
from jobq.server.metrics import MAX_QUEUES, ServerMetrics
from jobq.stores.base import Store

TENANT = 10
"""Queues per tenant: 10,000 queues belong to 1,000 tenants."""
KEYED = 10
"""Every tenth queue is keyed."""
FAR_MS = 4_000_000_000_000
"""A time that no run sees."""


def queue_of(n: int) -> QueueName:
    """The nth queue."""
    return QueueName(f"tenant-{n // TENANT}", f"queue-{n % TENANT}")


class Queues(Compared):
    """Queues with one waiting job each."""

    name, title = "queues", "queues"
    sizes, quick = (500, 2_000, 10_000), (500, 1_500)
    x_label = "queues, ten per tenant"
    rounds = 10
    measures: Mapping[str, Measure] = {
        "list of all queues, per queue": Measure("ms", EACH),
        # A tick looks at up to 500 queues at every size. That is the smallest size, so twice the
        # time is for caches. 50 ms: 0.1 ms for each, because which ones are visited varies.
        "tick": Measure("ms", flat(2.0, floor=50)),
        # The same for a whole round, divided by the queues.
        "upkeep of all queues, per queue": Measure("ms", flat(2.0, floor=0.1)),
        # It names MAX_QUEUES of them, twice as many as the smallest size has, and each takes the
        # same. It also reads the list of all queues, as above.
        "metrics of jq-server": Measure("ms", flat(2.0 * MAX_QUEUES / 500, floor=500)),
        # Valkey compares the names of all queues, and SQL databases read them from an index: both
        # take less than 0.5 µs per queue, 5 ms for 10,000.
        "list of one tenant's queues": Measure("ms", flat(2.0, floor=5)),
        # The first look of a handle at a Valkey server asks all queues, and later ones none.
        "look for due schedules": Measure("ms", SAME),
    }

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        for n in range(0, size, KEYED):
            await store.declare(queue_of(n), QueueConfig(mode="keyed"))
        await put(
            store,
            (spec(queue_of(n), "job", key=None if n % KEYED else "key") for n in range(size)),
        )
        workers = [
            WorkerRecord(name=f"w{n}", host="h", pid=n, queues=(queue_of(n),), concurrency=10)
            for n in range(10)
        ]
        for worker in workers:
            await store.beat(worker, ttl_ms=3_600_000)

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        hot = queue_of(size // 2 + 1)
        with timer("put"):
            await store.put([spec(hot, f"more-{turn}")])
        with timer("claim of 1 from one queue"):
            taken = await store.settle(
                [], worker="w", call=f"take {turn}", then=claim(hot, limit=1)
            )
        with timer("completion"):
            await store.settle(completed(taken.leases), worker="w", call=f"end {turn}")
        idle = [queue_of(n) for n in range(5, 15)]
        with timer("claim from ten queues"):
            taken = await store.settle(
                [], worker="w", call=f"ten {turn}", then=claim(*idle, limit=1)
            )
        await store.settle(completed(taken.leases), worker="w", call=f"ten end {turn}")
        await store.put([spec(lease.queue, f"again-{turn}") for lease in taken.leases])
        with timer("list of all queues, per queue", per=size):
            found = len(await store.queues())
        assert found == size, f"{found} of {size} queues are listed"
        with timer("list of one tenant's queues"):
            await store.queues(hot.tenant)
        with timer("stats of one queue"):
            await store.stats(hot)
        with timer("metrics of jq-server"):
            await ServerMetrics(store).gauges()
        with timer("look for due schedules"):
            await store.list_schedules(due=True)
        with timer("upkeep of all queues, per queue", per=size):
            with timer("tick"):
                steps = await store.tick()
            while steps >= 500:
                steps = await store.tick()


class Schedules(Compared):
    """Schedules of ten queues, of which ten are due at a time."""

    name, title = "schedules", "schedules"
    sizes, quick = (1_000, 10_000, 100_000), (1_000, 5_000)
    x_label = "schedules"
    rounds = 20
    measures: Mapping[str, Measure] = {"tick": Measure("ms", TICK)}
    due = 10

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        at_once = 100
        for start in range(0, size, at_once):
            await asyncio.gather(
                *(self._put(store, n, FAR_MS + n) for n in range(start, min(size, start + at_once)))
            )

    async def _put(self, store: Store, n: int, next_ms: int, every_ms: int = 60_000) -> None:
        queue = QueueName("default", f"queue-{n % 10}")
        template = JobSpec(queue=queue, id="x", name="noop", payload=b"[[],{}]")
        await store.put_schedule(
            ScheduleSpec(queue=queue, id=f"schedule-{n}", template=template, every_ms=every_ms),
            next_ms=next_ms,
        )

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        with timer("look for due schedules"):
            await store.list_schedules(due=True, limit=100)
        now = int(time.time() * 1000)
        for n in range(self.due):  # another interval: a changed schedule starts over
            await self._put(store, n, now - 1000, every_ms=3_600_000 + turn * 1000)
        with timer(f"pass that fires {self.due}"):
            fired = await fire_due(store, now)
        assert fired == self.due, f"{fired} of {self.due} schedules fired"
        with timer("put of a schedule"):
            await self._put(store, size + 1, FAR_MS, every_ms=60_000 + turn * 1000)
        with timer("page of 100 of a queue"):
            await store.list_schedules(QueueName("default", "queue-3"), limit=100)
        with timer("page of 100 of all"):
            await store.list_schedules(limit=100)
        with timer("tick"):
            await store.tick()
