"""A tenant that tries everything: what it stores stays within its limits, whatever it calls.

Random sequences of all calls of the contract (`access/table.py`) go through guarded stores to a
real store, with the server's own scheduler and upkeep in between. After each step the raw store is
compared with the limits.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import SCOPES, Principal, Scope
from jobq.access.quotas import TenantRules
from jobq.access.schedules import TenantSchedules
from jobq.access.table import CALLS
from jobq.access.usage import TenantLimits
from jobq.core.records.commands import (
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Revive,
    SendSignal,
    Update,
)
from jobq.core.records.defaults import LOG_LINES
from jobq.core.records.failures import MAX_ERRORS, MAX_MESSAGE, MAX_TRACEBACK
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    Defer,
    Edge,
    Fail,
    Failure,
    Filter,
    Hold,
    JobKey,
    JobRecord,
    JobSpec,
    Lease,
    LeaseRef,
    Note,
    QueueName,
    Release,
    RetryLater,
    SnoozeFor,
    Topic,
    UniqueSpec,
)
from jobq.core.records.queues import (
    Fire,
    JobDefaults,
    Limits,
    QueueConfig,
    RetentionData,
    ScheduleSpec,
)
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.engine.scheduler import fire_due
from jobq.errors import JobqError
from jobq.stores.base import Store
from jobq_conformance.conftest import fresh_places  # noqa: F401 (a fixture)
from jobq_conformance.kit import DAY, FakeClock
from jobq_conformance.places import Fresh, Opening

MAX_PAYLOAD = 200
LIMITS = TenantLimits(
    max_waiting=6,
    max_active=4,
    max_stored=40,
    max_payload=MAX_PAYLOAD,
    max_queues=3,
    max_schedules=3,
)
SIZES = {"memory": (40, 80), "sqlite": (6, 80), "valkey": (4, 60), "postgres": (3, 60)}
"""Sequences and steps on each store. JQ_HOSTILE=n makes n times as many sequences."""
NOW_AND_THEN = frozenset({"migrate", "aclose"})
"""Calls that the server does not pass on."""
SOME: dict[str, frozenset[Scope]] = {
    "the scopes of an application": frozenset({"produce", "work", "read"}),
    "all scopes of its tenant": SCOPES,
}


def _runs() -> Iterator[Any]:
    for name, (sequences, _) in SIZES.items():
        for seed in range(sequences * int(os.environ.get("JQ_HOSTILE", "1"))):
            yield pytest.param(name, seed, id=f"{name}-{seed}")


class Scene:
    """A store with a server's rules in front of it, and a tenant that chooses what to call."""

    def __init__(self, raw: Store, clock: FakeClock, seed: int, tenant: str) -> None:
        self.raw, self.clock, self.tenant = raw, clock, tenant
        self.dice = random.Random(seed)
        self.rules = TenantRules(tenants={tenant: LIMITS}, clock=lambda: clock() / 1000)
        who = Principal(subject="eve", tenant=tenant, scopes=self.dice.choice(list(SOME.values())))
        self.eve = cast(Store, GuardedStore(raw, who, self.rules, clock=lambda: clock() / 1000))
        self.schedules = TenantSchedules(raw, self.rules, clock)
        self.leases: list[Lease] = []
        self.called: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.calls = 0
        self.last: list[str] = []

    # ── what a tenant names ──

    @property
    def queue(self) -> QueueName:
        return QueueName(self.tenant, self.dice.choice(["a", "b", "c", "d", "e"]))

    @property
    def id(self) -> str:
        return f"j{self.dice.randrange(30)}"

    @property
    def job(self) -> JobKey:
        return JobKey(self.queue, self.id)

    @property
    def data(self) -> bytes:
        return b"x" * self.dice.choice([0, 2, MAX_PAYLOAD, MAX_PAYLOAD, MAX_PAYLOAD + 1, 5_000])

    def some(self, *choices: Any) -> Any:
        return self.dice.choice(choices)

    def spec(self, queue: QueueName | None = None) -> JobSpec:
        unique = UniqueSpec(
            lock=self.some("l1", "l2"),
            mode=self.some("simple", "throttle", "debounce", "keep_last"),
            ttl_ms=self.some(1, 60_000),
        )
        return JobSpec(
            queue=queue or self.queue,
            id=self.id,
            name="t",
            payload=self.data,
            given_id=self.some(True, False),
            delay_ms=self.some(0, 0, 1_000, 100_000),
            ttl_ms=self.some(None, None, 1, 5_000),
            result_ttl_ms=self.some(None, 1, 100 * DAY),
            max_stalls=self.some(None, 0, 5),
            unique=self.some(None, None, None, unique),
            after=(Edge(self.job),) * self.some(0, 0, 0, 0, 1),
            on_child_failure=self.some("fail", "ignore", "continue"),
        )

    @property
    def failure(self) -> Failure:
        text = "é" * self.some(1, 100_000)
        return Failure(reason="error", type=text, message=text, traceback=text, fingerprint=text)

    def outcome(self) -> AnyOutcome:
        lease = self.dice.choice(self.leases)
        at: dict[str, Any] = {"queue": lease.queue, "id": lease.id, "token": lease.token}
        chosen: AnyOutcome = self.some(
            Complete(**at, result=self.data),
            Complete(**at),
            RetryLater(**at, failure=self.failure, delay_ms=self.some(0, 1_000)),
            Fail(**at, failure=self.failure),
            SnoozeFor(**at, delay_ms=self.some(0, 1_000), saved=self.data),
            Release(**at),
            Hold(**at, delay_ms=self.some(0, 1_000)),
            Defer(**at, delay_ms=self.some(0, 1_000)),
            Block(**at, after=(Edge(self.job),), saved=self.data),
            Block(**at, signal="go", timeout_ms=self.some(None, 1, 5_000), saved=self.data),
        )
        return chosen

    def ref(self) -> LeaseRef:
        lease = self.dice.choice(self.leases)
        return LeaseRef(lease.queue, lease.id, lease.token)

    def schedule(self) -> ScheduleSpec:
        every = self.some(1, 100, 1_000, 60_000, None)
        return ScheduleSpec(
            queue=(queue := self.queue),
            id=self.some("s1", "s2", "s3", "s4", "s5"),
            template=self.spec(queue),
            every_ms=every,
            cron=None if every else self.some("* * * * * *", "* * * * *"),
            after_complete=bool(every) and self.some(True, False, False),
            catch_up=self.some("skip", "one", "all", "all"),
            start_ms=self.some(None, None, 1, self.clock()),
        )

    # ── every call of the contract ──

    async def call_put(self) -> None:
        flow = self.some(None, None, None, "f1", "f2")
        last = flow is None or self.some(True, False)
        specs = [self.spec() for _ in range(self.some(1, 1, 2, 5, 9))]
        await self.eve.put(specs, flow=flow, last=last)

    async def call_settle(self) -> None:
        many = self.some(0, 0, 1, 2, 5) if self.leases else 0
        outcomes = [self.outcome() for _ in range(many)]
        claim = Claim(
            queues=tuple({self.queue for _ in range(self.some(1, 2, 3))}),
            limit=self.some(1, 2, 100, 10_000),
            lease_ms=self.some(1, 1_000, 600_000),
        )
        self.calls += self.some(0, 1, 1, 1)  # or the same call again
        settled = await self.eve.settle(
            outcomes,
            worker=self.some("w1", "w2"),
            call=f"call-{self.calls}",
            then=self.some(None, claim, claim, claim),
        )
        self.leases = (self.leases + list(settled.leases))[-30:]

    async def call_extend(self) -> None:
        if self.leases:
            await self.eve.extend([self.ref()], lease_ms=self.some(1, 600_000))

    async def call_note(self) -> None:
        if not self.leases:
            return
        names = [f"step-{self.dice.randrange(5_000)}" for _ in range(self.some(0, 1, 700))]
        note = Note(
            lease=self.ref(),
            progress=self.some(None, self.data),
            lines=tuple("z" * self.some(1, 20_000) for _ in range(self.some(0, 1, 30))),
            saved=self.some(None, self.data),
            steps=tuple((name, b"s" * self.some(1, 3_000)) for name in names),
        )
        await self.eve.note([note])

    async def call_sleep(self) -> None:
        await self.eve.sleep([self.queue], worker="w1", slots=1, timeout_ms=0)

    async def call_listen(self) -> None:
        topic = Topic(self.some("ended", "noted", "log"), self.queue, self.id)
        async with self.eve.listen([topic]):
            pass

    async def call_alter(self) -> None:
        job = self.job
        await self.eve.alter(
            [
                self.some(
                    Cancel(job=job, cascade=self.some(True, False)),
                    Rerun(job=job),
                    Rerun(job=job),
                    Revive(job=job),
                    Promote(job=job),
                    Reprioritise(job=job, priority=3),
                    Reschedule(job=job, delay_ms=self.some(0, 1_000)),
                    Update(job=job, payload=self.data),
                    Remove(job=job),
                    SendSignal(job=job, name="go", value=self.data),
                    SendSignal(job=job, name="$jobq.child x", value=self.data),
                )
                for _ in range(self.some(1, 5, 20))
            ]
        )

    async def call_declare(self) -> None:
        kept = self.some(None, 0, DAY)
        await self.eve.declare(
            self.queue,
            QueueConfig(
                dead_letters=self.some(None, "a", "b", "dead", "dead2"),
                retention=self.some(
                    None,
                    RetentionData(
                        completed_ms=kept,
                        failed_ms=kept,
                        cancelled_ms=kept,
                        count=self.some(None, 3),
                    ),
                ),
                max_stalls={f"t{self.dice.randrange(10_000)}": 1},
                defaults=self.some(None, JobDefaults(ttl_ms=1)),
            ),
        )

    async def call_set_limits(self) -> None:
        limits = Limits(max_waiting=self.some(None, 0, 1_000_000), limit=self.some(None, 10_000))
        await self.eve.set_limits(self.queue, limits)

    async def call_pause(self) -> None:
        await self.eve.pause(self.queue)

    async def call_resume(self) -> None:
        await self.eve.resume(self.queue)

    async def call_hold(self) -> None:
        await self.eve.hold(self.queue, self.some(1, 1_000))

    async def call_release_hold(self) -> None:
        await self.eve.release_hold(self.queue)

    async def call_release_lock(self) -> None:
        await self.eve.release_lock(self.queue, self.some("l1", "l2"))

    async def call_purge_pending(self) -> None:
        await self.eve.purge_pending(self.queue, limit=3)

    async def call_purge_ended(self) -> None:
        await self.eve.purge_ended(self.queue, State.COMPLETED, limit=3)

    async def call_obliterate(self) -> None:
        await self.eve.obliterate(self.queue, force=True, limit=self.some(1, 1_000))

    async def call_restore(self) -> None:
        records = [
            JobRecord(
                queue=self.queue,
                id=self.id,
                name="t",
                state=State.FAILED,
                payload=self.data,
                failure=self.failure,
                errors=(self.failure,) * self.some(1, 20),
                given_id=True,
            )
            for _ in range(self.some(1, 9, 50))
        ]
        await self.eve.restore(records)

    async def call_put_schedule(self) -> None:
        await self.eve.put_schedule(
            self.schedule(), next_ms=self.some(None, 1, self.clock(), self.clock() - 100 * DAY)
        )

    async def call_drop_schedule(self) -> None:
        await self.eve.drop_schedule(self.queue, "s1")

    async def call_pause_schedule(self) -> None:
        await self.eve.pause_schedule(self.queue, "s1", paused=self.some(True, False))

    async def call_list_schedules(self) -> None:
        await self.eve.list_schedules(self.some(None, self.queue), due=self.some(True, False))

    async def call_fire(self) -> None:
        for record in await self.raw.list_schedules(self.queue):
            at = record.next_ms or self.clock()
            queue, id = record.spec.queue, record.spec.id
            fires = [
                Fire(queue=queue, schedule=id, at_ms=at + n, next_ms=at + n + 1)
                for n in range(self.some(1, 50))
            ]
            await self.eve.fire(fires)

    async def call_get(self) -> None:
        await self.eve.get([self.job])

    async def call_find(self) -> None:
        await self.eve.find(Filter(queue=self.queue))

    async def call_skip(self) -> None:
        await self.eve.skip(Filter(queue=self.queue))

    async def call_count(self) -> None:
        await self.eve.count(self.queue)

    async def call_stats(self) -> None:
        await self.eve.stats(self.queue)

    async def call_holds(self) -> None:
        await self.eve.holds(self.queue)

    async def call_find_lock(self) -> None:
        await self.eve.find_lock(self.queue, "l1")

    async def call_metrics(self) -> None:
        await self.eve.metrics(self.queue)

    async def call_logs(self) -> None:
        await self.eve.logs(self.job)

    async def call_queues(self) -> None:
        await self.eve.queues()

    async def call_beat(self) -> None:
        worker = WorkerRecord(
            name=f"w{self.dice.randrange(1_000)}", host="h", pid=1, queues=(self.queue,),
            concurrency=1,
        )  # fmt: skip
        await self.eve.beat(worker, ttl_ms=DAY)

    async def call_retire(self) -> None:
        await self.eve.retire("w1")

    async def call_workers(self) -> None:
        await self.eve.workers()

    async def call_ask_worker(self) -> None:
        await self.eve.ask_worker("w1", "drain")

    async def call_lead(self) -> None:
        await self.eve.lead("upkeep", who="eve", ttl_ms=1_000)

    async def call_read_events(self) -> None:
        await self.eve.read_events(self.queue)

    async def call_ack_events(self) -> None:
        await self.eve.ack_events(self.queue, f"r{self.dice.randrange(200)}", self.some(None, "0"))

    async def call_readers(self) -> None:
        await self.eve.readers(self.queue)

    async def call_remove_reader(self) -> None:
        await self.eve.remove_reader(self.queue, "r1")

    async def call_tick(self) -> None:
        await self.eve.tick()

    # ── the server and time ──

    async def serve(self) -> None:
        """A pass of the server's scheduler and of its upkeep."""
        await fire_due(self.schedules, self.clock(), planner=self.schedules.plan)
        await self.raw.tick()

    async def step(self) -> None:
        """One call of the tenant, or several at once, or the server's turn; then some time."""
        if self.dice.random() < 0.15:
            self.last = ["the server"]
            await self.serve()
        else:
            # What makes or moves jobs comes more often than the rest.
            self.last = [self.some(*MAKERS, *NAMES) for _ in range(self.some(1, 1, 1, 4))]
            if "obliterate" in self.last:  # a call at the same time may make its queue again
                self.last = ["obliterate"]
            await asyncio.gather(*map(self.call, self.last))
        self.clock.advance(self.some(0, 0, 1, 50, 150, 1_100, 61_000))

    async def call(self, name: str) -> None:
        """One call, which may be refused."""
        self.called[name] += 1
        try:
            await getattr(self, f"call_{name}")()
        except JobqError as error:
            self.refused[type(error).__name__] += 1

    async def check(self) -> None:
        """Compare what is stored with the limits."""
        counts: Counter[State] = Counter()
        names = await self.raw.queues(self.tenant)
        assert len(names) <= (LIMITS.max_queues or 0), (self.last, [each.queue for each in names])
        schedules = 0
        for record in names:
            counts.update(await self.raw.count(record.queue))
            schedules += len(await self.raw.list_schedules(record.queue))
        unfinished = sum(counts[state] for state in State if not state.ended)
        most = (LIMITS.max_waiting or 0) + (LIMITS.max_active or 0)
        assert unfinished <= most, (self.last, counts)
        assert counts[State.ACTIVE] <= (LIMITS.max_active or 0), (self.last, counts)
        assert schedules <= (LIMITS.max_schedules or 0)

    async def check_jobs(self) -> None:
        """Compare what each job stores with its bounds."""
        for record in await self.raw.queues(self.tenant):
            page = await self.raw.find(Filter(queue=record.queue), limit=1_000)
            keys = [JobKey(record.queue, each.id) for each in page.records]
            for job in await self.raw.get(keys):
                if job is not None:
                    check_sizes(job)
                    lines = await self.raw.logs(JobKey(job.queue, job.id))
                    assert len(lines) <= LOG_LINES
                    assert all(len(line) <= 10_100 for line in lines)
            assert len(await self.raw.readers(record.queue)) <= 100


def check_sizes(job: JobRecord) -> None:
    """What one job stores."""
    for data in (job.payload, job.result, job.saved, job.progress):
        assert len(data or b"") <= MAX_PAYLOAD
    assert len(job.errors) <= MAX_ERRORS
    for failure in (*job.errors, *([job.failure] if job.failure else [])):
        assert len(failure.message) <= MAX_MESSAGE
        assert len(failure.type) <= 256
        assert len((failure.traceback or "").encode()) <= MAX_TRACEBACK
    assert len(job.steps) <= 1_000
    assert sum(len(name) + len(data) for name, data in job.steps) <= 2**20


NAMES = sorted(name.removeprefix("call_") for name in dir(Scene) if name.startswith("call_"))
MAKERS = ("put", "put", "settle", "settle", "settle", "alter", "alter", "fire", "put_schedule") * 2
"""Calls that make or move jobs."""


def test_every_call_of_the_contract_is_tried() -> None:
    assert set(NAMES) == set(CALLS) - NOW_AND_THEN


@pytest.fixture
def opening(
    store_name: str,
    fresh_places: Callable[[str], Fresh],  # noqa: F811
) -> Opening:
    """Opens the store of the test. Some places cannot be started inside of an event loop."""
    return fresh_places(store_name)()


@pytest.fixture
async def scene(opening: Opening, seed: int) -> AsyncIterator[Scene]:
    """A tenant in front of the store."""
    clock = FakeClock()
    async with opening(clock) as raw:
        yield Scene(raw, clock, seed, f"t{seed}")


@pytest.mark.parametrize(("store_name", "seed"), list(_runs()))
async def test_whatever_a_tenant_calls_it_stores_no_more_than_it_may(
    scene: Scene, store_name: str
) -> None:
    for _ in range(SIZES[store_name][1]):
        await scene.step()
        await scene.check()
    await scene.check_jobs()
    assert scene.refused
