"""A week of simulated time on SQLite: do file, log and memory stop growing?

The clock is injected, so a week takes about a minute. The other stores collect some of their
garbage by their server's clock, which is not simulated here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import apsw

from bench.growth.compared import Dimension, Say, claim, opened, settled_down, spec
from bench.growth.figures import Figure, Measure, plateau
from bench.growth.program import rss_kb
from bench.places import Place, SqliteFile
from jobq.core.records.defaults import DAY_MS, HOUR_MS, MINUTE_MS
from jobq.core.records.jobs import (
    AnyOutcome,
    Complete,
    Edge,
    Fail,
    Failure,
    JobKey,
    JobSpec,
    Lease,
    LeaseRef,
    Note,
    QueueName,
    RetryLater,
    SnoozeFor,
    UniqueSpec,
)
from jobq.core.records.queues import QueueConfig, RetentionData, ScheduleSpec
from jobq.core.records.workers import WorkerRecord
from jobq.engine.scheduler import fire_due
from jobq.stores.base import Store

MAIL, ORDERS, DEAD = (QueueName("default", name) for name in ("mail", "orders", "dead"))
START_MS = 1_800_000_000_000
STEP_MS = 5 * MINUTE_MS
"""How far the clock moves at a time."""
SCHEDULES = 20
FLOW = 5
"""Children of each flow."""
RETENTION = RetentionData(completed_ms=DAY_MS, failed_ms=DAY_MS, cancelled_ms=DAY_MS)
FAILURE = Failure(reason="error", type="ValueError", message="bad", traceback="x" * 500)


class Week(Dimension):
    """Hours of simulated time."""

    name, title = "week", "hours of simulated time"
    stores = ("sqlite",)
    sizes, quick = (168,), (72,)
    x_label = "simulated hours"
    rounds = 1_200
    """Jobs per hour."""
    log = False
    measures: Mapping[str, Measure] = {
        # What is stored is in proportion to the jobs of a day, 28,800 of them, and to the dead
        # letters of up to twelve hours. By chance, it varies by about one per cent. A file does not
        # shrink, and reuses its free pages.
        "file": Measure("MB", plateau(1.05)),
        "rows": Measure("rows", plateau(1.05)),
        # An entry has the events of one call. Their number depends on how many jobs a call finds.
        "entries of the event log": Measure("rows", plateau(1.1)),
        # SQLite's cache is full after two days. The rest is the allocator's.
        "memory of the process": Measure("MB", plateau(1.1)),
    }

    async def measure(self, kind: str, sizes: Sequence[int], rounds: int, say: Say) -> list[Figure]:
        clock = Clock()
        found: dict[int, dict[str, float]] = {}
        async with opened(kind, clock=clock) as (where, store):
            life = Life(store, clock, rounds)
            await life.begin()
            for hour in range(1, sizes[-1] + 1):
                await life.hour(hour)
                found[hour] = sizes_of(where)
                if hour % 24 == 0:
                    say(f"{kind}, day {hour // 24}: {found[hour]['file']:.1f} MB")
        return self.figures(kind, found)


def sizes_of(where: Place) -> dict[str, float]:
    """The sizes of a file and of this process."""
    assert isinstance(where, SqliteFile)
    (path,) = where.folder.glob("*.db")
    file = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = list(file.execute("select name from sqlite_schema where type = 'table'"))
        rows = {name: file.execute(f"select count(*) from {name}").get for (name,) in tables}
    finally:
        file.close()
    return {
        "file": where.bytes_used() / 1e6,
        "rows": sum(rows.values()),
        "entries of the event log": rows["events"],
        "memory of the process": rss_kb() / 1000,
    }


class Clock:
    """The time of the simulation, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Life:
    """Producers, workers, schedules and upkeep. Names, keys and locks are new every hour."""

    def __init__(self, store: Store, clock: Clock, jobs_per_hour: int) -> None:
        self._store, self._clock = store, clock
        self._per_step = max(12, jobs_per_hour * STEP_MS // HOUR_MS)
        self._random = random.Random(20)
        self._calls = 0

    async def begin(self) -> None:
        """Declare two queues, and store schedules and a reader of events."""
        for queue in (MAIL, ORDERS, DEAD):
            await self._store.declare(
                queue,
                QueueConfig(
                    mode="keyed" if queue == ORDERS else "plain",
                    retention=RETENTION,
                    dead_letters=None if queue == DEAD else DEAD.queue,
                ),
            )
        for n in range(SCHEDULES):
            template = JobSpec(queue=MAIL, id="x", name="noop", payload=b"[[],{}]")
            await self._store.put_schedule(
                ScheduleSpec(queue=MAIL, id=f"s{n}", template=template, every_ms=STEP_MS),
                next_ms=START_MS + STEP_MS,
            )

    async def hour(self, hour: int) -> None:
        """Let an hour pass. A new deployment has workers of other names."""
        worker = f"worker-{hour}"
        for step in range(HOUR_MS // STEP_MS):
            self._clock.now_ms += STEP_MS
            name = f"{hour}-{step}"
            await self._store.beat(
                WorkerRecord(name=worker, host="h", pid=1, queues=(MAIL, ORDERS), concurrency=100),
                ttl_ms=30_000,
            )
            await fire_due(self._store, self._clock.now_ms)
            await self._produce(hour, name)
            await self._work(worker)
            await settled_down(self._store)
            await self._read_events()
        if hour % 12 == 0:  # copies of failed jobs wait in the dead-letter queue until then
            while await self._store.purge_pending(DEAD):
                pass

    async def _produce(self, hour: int, name: str) -> None:
        plain, keyed = [], []
        for n in range(self._per_step // 2):
            unique = UniqueSpec(lock=f"lock-{name}-{n}") if n % 10 == 0 else None
            plain.append(
                JobSpec(
                    queue=MAIL,
                    id=f"m-{name}-{n}",
                    name="noop",
                    payload=b"[[],{}]",
                    unique=unique,
                    delay_ms=STEP_MS if n % 20 == 1 else 0,
                    ttl_ms=HOUR_MS if n % 20 == 2 else None,
                )
            )
            keyed.append(spec(ORDERS, f"o-{name}-{n}", key=f"key-{hour}-{n}"))
        await self._store.put(plain)
        await self._store.put(keyed)
        children = [spec(MAIL, f"f-{name}-{n}") for n in range(FLOW)]
        after = tuple(Edge(JobKey(MAIL, child.id)) for child in children)
        parent = JobSpec(queue=MAIL, id=f"f-{name}", name="noop", payload=b"[[],{}]", after=after)
        await self._store.put([*children, parent], flow=f"flow-{name}")

    async def _work(self, worker: str) -> None:
        """Run everything that waits. Some runs fail, snooze or write log lines."""
        outcomes: list[AnyOutcome] = []
        while True:
            self._calls += 1
            settled = await self._store.settle(
                outcomes, worker=worker, call=f"c{self._calls}", then=claim(MAIL, ORDERS, limit=200)
            )
            if not settled.leases:
                return
            noted = [lease for lease in settled.leases if self._random.random() < 0.05]
            await self._store.note(
                [
                    Note(
                        lease=LeaseRef(lease.queue, lease.id, lease.token),
                        lines=("a line",),
                        progress=b"1",
                    )
                    for lease in noted
                ]
            )
            outcomes = [self._outcome(lease) for lease in settled.leases]

    def _outcome(self, lease: Lease) -> AnyOutcome:
        at = {"queue": lease.queue, "id": lease.id, "token": lease.token}
        chance = self._random.random()
        if chance < 0.03:
            return Fail(**at, failure=FAILURE)  # type: ignore[arg-type]
        if chance < 0.06:
            return RetryLater(**at, failure=FAILURE, delay_ms=STEP_MS)  # type: ignore[arg-type]
        if chance < 0.08:
            return SnoozeFor(**at, delay_ms=STEP_MS, saved=b"1")  # type: ignore[arg-type]
        return Complete(**at, result=b"42")  # type: ignore[arg-type]

    async def _read_events(self) -> None:
        """A registered reader that keeps up, such as the relay."""
        for queue in (MAIL, ORDERS):
            end = (await self._store.read_events(queue)).position
            await self._store.ack_events(queue, "relay", end)
