"""A scene: one job, its subject, goes through its life on one store while features act on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobq.core.policies import Retry
from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import (
    AnyOutcome,
    JobKey,
    JobRecord,
    JobSpec,
    Lease,
    PutResult,
)
from jobq.core.records.queues import Fire, Limits, QueueConfig, RetentionData, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.rules.decide import End, decide
from jobq.core.values.checks import MAX_PRIORITY
from jobq.errors import ConfigError
from jobq.operations.schedules import template
from jobq.stores.base import Store
from jobq.stores.valkey.keys import partition_of
from jobq_conformance.audit import audit
from jobq_conformance.kit import SECOND, Desk, FakeClock, complete, fresh_queue
from tests.pairs.feature import Feature, Kind, Run
from tests.pairs.story import described, kept, of_jobs

PARTITIONS = 4
KEY = "k"
KEY_LIMIT = 4  # of keyed queues, unless a feature sets another: enough for a batch of one key
PATIENCE = (
    90  # seconds of the fake clock that a scene waits for its subject before it calls it stuck
)
POLICY = Retry(3, base=1, factor=1, jitter=0)  # the retry policy of the subject's task


class Stuck(AssertionError):
    """The subject should have become claimable, and did not."""


class Scene:
    """The subject, its queue, and what the features of a scene need to act on them."""

    def __init__(
        self, store: Store, clock: FakeClock, kind: Kind, features: Sequence[Feature]
    ) -> None:
        self.store, self.clock, self.kind, self.features = store, clock, kind, tuple(features)
        self.desk = Desk(store, fresh_queue(), clock)
        self.desks = [self.desk]  # of the queues that the scene uses
        self.names = {feature.name for feature in features}
        self.keyed = kind.endswith("keyed")
        self.options: dict[str, Any] = {"payload": b'["first"]', "key": KEY if self.keyed else None}
        for feature in features:
            self.options = {**self.options, **feature.options}
        self.scheduled = "schedule" in self.names
        self.subject = f"nightly@{clock.now_ms}" if self.scheduled else "subject"
        self.limits = self._limits()
        self.payload = self.options["payload"]  # what the next run of the subject should see
        self.claim_size = 1
        self.mates: list[Lease] = []  # claimed together with the subject and settled with it
        self.leases: list[Lease] = []  # of the subject
        self.recorded: list[str] = []  # what calls answered, in order
        self.specs: dict[str, JobSpec] = {}  # what was put, by id
        self.events: list[EventRecord] = []  # of the queue, once the scene is over
        self.memory: dict[str, Any] = {}  # what a feature remembers from phase to phase

    @property
    def unpartitioned(self) -> bool:
        """Whether the store has one partition per queue. It still plays the partitioned scenes,
        so that other stores can be compared with it. A server may be on either kind of store."""
        return self.store.url.startswith(("memory:", "sqlite:", "postgresql:", "grpc:"))

    def _limits(self) -> Limits:
        merged: dict[str, Any] = {"key_limit": KEY_LIMIT} if self.keyed else {}
        for feature in self.features:
            merged = {**merged, **feature.limits(self.kind)}
        return Limits(**merged)

    # ── the play ──────────────────────────────────────────────────────────────────────────────────

    async def play(self) -> list[str]:
        """The whole scene. Returns the story, which must be the same on every store."""
        await self.begin()
        await self.phase("pending")
        if await self.ripen():
            await self.phase("ripe")
        await self.live()
        await self.phase("after")
        await self.finish()
        self.events = of_jobs(await self.desk.events())
        for feature in self.features:
            feature.holds(self)
        for desk in self.desks:
            await audit(self.store, desk.queue)
        return await self.story()

    async def begin(self) -> None:
        """Up to the subject's acceptance. A scenario that is refused gets no further."""
        await self.declare()
        await self.phase("before")
        await self.put_subject()

    async def phase(self, name: str) -> None:
        """Let each feature act, in order."""
        for feature in self.features:
            if (step := getattr(feature, name)) is not None:
                await step(self)

    async def declare(self) -> None:
        """The queue as its kind and the features want it."""
        retention = next(
            (f.retention for f in self.features if f.retention is not None), RetentionData()
        )
        config = QueueConfig(
            mode="keyed" if self.keyed else "plain", limits=self.limits, retention=retention
        )
        if not self.kind.startswith("partitioned"):
            await self.store.declare(self.desk.queue, config)
            return
        parted = QueueConfig(
            mode=config.mode, limits=config.limits, retention=retention, partitions=PARTITIONS
        )
        try:
            await self.store.declare(self.desk.queue, parted)
        except ConfigError as refused:
            if not self.unpartitioned or "one partition" not in str(refused):
                raise
            await self.store.declare(self.desk.queue, config)

    async def put_subject(self) -> None:
        """By `put`, under a flow if it waits for others; or by a schedule that fires."""
        spec = self.spec(self.subject, **self.options)
        if self.scheduled:
            await self._fire(spec)
        elif spec.after:
            await self.note_put(
                await self.store.put(
                    [*self.memory["children"], spec], flow=f"flow-{self.desk.queue.tenant}"
                )
            )
        else:
            await self.note_put(await self.store.put([spec]))

    async def _fire(self, spec: JobSpec) -> None:
        at = self.clock.now_ms
        planned = ScheduleSpec(
            queue=self.desk.queue,
            id="nightly",
            template=template(spec, "nightly"),
            every_ms=3_600 * SECOND,
        )
        await self.store.put_schedule(planned, next_ms=at)
        fired = await self.store.fire(
            [Fire(queue=self.desk.queue, schedule="nightly", at_ms=at, next_ms=at + 3_600 * SECOND)]
        )
        self.recorded.append(f"fired {fired}")

    async def live(self) -> None:
        """The runs of the subject: those the features ask for, then one that completes."""
        runs = [run for feature in self.features for run in feature.runs]
        for run in runs:
            if not await self.run(run):
                return
        await self.run(Run(end=_completes))

    async def run(self, run: Run) -> bool:
        """One run. False if the subject has ended."""
        lease = await self.start()
        if lease is None:
            return False
        for feature in self.features:
            if feature.running is not None:
                await feature.running(self, lease)
        outcome = await run.end(self, lease)
        mates, self.mates = [complete(mate) for mate in self.mates], []
        settled = await self.desk.exchange(*([] if outcome is None else [outcome]), *mates)
        assert settled.stale == (), f"stale: {settled.stale}"
        if await self.ended():
            return False
        await self.phase("between")
        if run.then is not None:
            await run.then(self)
        return True

    async def finish(self) -> None:
        """Let every other job of the queue end as well."""
        for _ in range(PATIENCE):
            leases = await self.claim(10)
            await self.desk.settle(*map(complete, leases))
            if not leases:
                counts = await self.desk.counts()
                if not counts.keys() & {"waiting", "delayed", "active"}:
                    assert "blocked" not in counts, f"jobs stay blocked for ever: {counts}"
                    return
                await self.pass_time(SECOND)
        raise Stuck(f"jobs are left that cannot be claimed: {await self.desk.counts()}")

    # ── time and claims ───────────────────────────────────────────────────────────────────────────

    async def pass_time(self, ms: int) -> None:
        """Let time pass, and have upkeep notice."""
        self.clock.advance(ms)
        await self.desk.tick()

    async def ripen(self) -> bool:
        """Wait until the subject is waiting. False if it has ended instead."""
        for _ in range(PATIENCE):
            record = await self.look()
            if record is None or record.state.ended:
                return False
            if record.state is State.WAITING:
                return True
            assert record.state is State.DELAYED, (
                f"nothing will bring the subject on: it is {record.state}"
            )
            await self.pass_time(SECOND)
        raise Stuck("the subject stays delayed")

    async def claim(self, n: int) -> list[Lease]:
        """Claim from the subject's queue. A lease of the subject is checked and remembered."""
        leases = await self.desk.claim(n)
        for lease in leases:
            if lease.id == self.subject:
                assert lease.payload == self.payload, (
                    f"the subject ran with {lease.payload!r}, not {self.payload!r}"
                )
                self.leases.append(lease)
        return leases

    async def start(self) -> Lease | None:
        """The subject's next run. None if it has ended. Jobs in front of it run first."""
        if not await self.ripen():
            return None
        promised: int | None = 0
        for _ in range(PATIENCE):
            settled = await self.desk.exchange(then=self.desk.claiming(self.claim_size))
            found = None
            for lease in settled.leases:
                if lease.id == self.subject:
                    found = lease
            others = [lease for lease in settled.leases if lease is not found]
            if found is not None:
                assert promised is not None, (
                    "a worker asleep would have missed the subject: next_due_ms was None"
                )
                assert promised <= self.clock.now_ms, (
                    f"next_due_ms promised work {promised - self.clock.now_ms} ms too late"
                )
                assert found.payload == self.payload, (
                    f"the subject ran with {found.payload!r}, not {self.payload!r}"
                )
                self.leases.append(found)
                self.mates = others
                return found
            await self.desk.settle(*map(complete, others))
            if await self.ended():
                return None
            if not others:
                due = settled.next_due_ms
                promised = None if due is None else self.clock.now_ms + due
                self.clock.advance(SECOND)
        raise Stuck("the subject is waiting and is never claimed")

    async def first(self, name: str, **options: Any) -> Lease:
        """A job that goes in front of all others, claimed. The subject must not start before it."""
        id = await self.put(name, priority=MAX_PRIORITY, **options)
        for _ in range(PATIENCE):
            leases = await self.claim(1)
            for lease in leases:
                assert lease.id != self.subject, (
                    f"the subject started before {name}, which has the highest priority"
                )
                if lease.id == id:
                    return lease
                await self.desk.settle(complete(lease))
            if not leases:
                self.clock.advance(SECOND)
        raise Stuck(f"{name} is never claimed")

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def elsewhere(self) -> Desk:
        """Another queue, on another node of a cluster perhaps. It has one partition."""
        if len(self.desks) == 1:
            self.desks.append(self.desk.beside("elsewhere"))
        return self.desks[1]

    def name(self, name: str) -> str:
        """An id of that name in the subject's partition, because locks hold within a partition."""
        home = partition_of(None, self.subject, PARTITIONS)
        return next(
            id for n in range(1000) if partition_of(None, id := f"{name}~{n}", PARTITIONS) == home
        )

    def spec(self, id: str, **options: Any) -> JobSpec:
        """A job of the subject's queue, under the subject's key unless another is given."""
        spec = self.desk.spec(id, **{"key": KEY if self.keyed else None, **options})
        self.specs[id] = spec
        return spec

    async def put(self, name: str, **options: Any) -> str:
        """Another job of the queue, in the subject's partition; its id."""
        id = self.name(name)
        await self.note_put(await self.store.put([self.spec(id, **options)]))
        return id

    async def note_put(self, results: Sequence[PutResult]) -> None:
        """Record what a put returned."""
        for result in results:
            kind = "duplicate" if result.duplicate else "new"
            self.recorded.append(f"put: {self.short(result.id)} {result.state} {kind}")

    async def command(self, command: AnyCommand) -> Altered:
        """What an operator does to a job, and what the store answered."""
        answer = await self.desk.altered(command)
        self.recorded.append(f"{type(command).__name__} {self.short(command.job.id)}: {answer}")
        return answer

    def outcome(self, lease: Lease, end: End) -> AnyOutcome:
        """The outcome that the engine decides on for this end of a run, with the task's policy."""
        return decide(lease, end, retry=POLICY, now_ms=self.clock.now_ms, random=lambda: 0.5)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    @property
    def key(self) -> JobKey:
        """The subject's whole name."""
        return self.desk.key(self.subject)

    async def look(self) -> JobRecord | None:
        """The subject as it is now."""
        return await self.desk.look(self.subject)

    async def ended(self) -> bool:
        """Whether the subject has ended, or is gone."""
        record = await self.look()
        return record is None or record.state.ended

    def of_subject(self, life: int | None = None) -> list[EventRecord]:
        """The subject's events."""
        return [e for e in self.events if e.job == self.subject and life in (None, e.life)]

    def short(self, id: str) -> str:
        """An id without what differs from run to run."""
        return "subject" if id == self.subject else id.partition("~")[0]

    async def story(self) -> list[str]:
        """What must be equal on all stores: replies, what runs got, each job's events and end."""
        lines = list(self.recorded)
        for n, lease in enumerate(self.leases, 1):
            given = [
                (self.short(i.job.id), i.result, i.failure and (i.failure.reason, i.failure.type))
                for i in lease.inputs
            ]
            lines.append(
                f"run {n}: attempt {lease.attempt} failures {lease.failures} "
                f"stalls {lease.stalls} life {lease.life} {lease.payload!r} "
                f"saved {lease.saved!r} inputs {given} signals {lease.signals} "
                f"asked {lease.cancel_asked}"
            )
        for desk in self.desks:
            events = self.events if desk is self.desk else of_jobs(await desk.events())
            for id in sorted({e.job for e in events}, key=self.short):
                lines += [f"{self.short(id)}: {described(e)}" for e in events if e.job == id]
        return [*lines, f"subject: {kept(await self.look())}"]

    async def clear_away(self) -> None:
        """Leave nothing behind for the next scene."""
        for desk in self.desks:
            while not await self.store.obliterate(desk.queue, force=True):
                pass


async def _completes(scene: Scene, lease: Lease) -> AnyOutcome:
    return complete(lease, b'"done"')
