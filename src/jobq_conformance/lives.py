"""Random histories of one id, among other jobs, and a model of its lives that is small enough to be
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from jobq.core.records.commands import Cancel, Remove, Reprioritise, Rerun
from jobq.core.records.jobs import AnyOutcome, Lease
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import ENDED, State
from jobq.core.rules.ended import next_life
from jobq_conformance.kit import (
    HOUR,
    Desk,
    complete,
    fail,
    ref,
    release,
    retry,
)

STEPS = 50
KEPT = RetentionData(completed_ms=HOUR, failed_ms=HOUR, cancelled_ms=HOUR, count=None)
MANY = 8
"""Jobs per claim: more than a store may look at one by one."""


@dataclass
class Lives:
    """One id, `a`: the record that a store must have, and the events of its jobs."""

    q: Desk
    chance: Random
    state: State | None = None  # None: there is no record
    life: int = 0
    attempt: int = 0
    others: int = 0
    lease: Lease | None = None
    old: list[Lease] = field(default_factory=list)  # leases that are over
    events: list[tuple[str, int, int]] = field(default_factory=list)  # kind, life, attempt

    def happens(self, kind: str, state: State) -> None:
        self.state = state
        self.events.append((kind, self.life, self.attempt))

    async def put(self) -> None:
        new = self.state in (None, State.CANCELLED)
        result = await self.q.put_one("a", given_id=True)
        assert result.duplicate is not new
        if new:
            self.life = next_life(None if self.state is None else self.life)
            self.attempt = 0
            self.happens("accepted", State.WAITING)
        assert (result.life, result.state) == (self.life, self.state)

    async def put_others(self) -> None:
        self.others += 6
        await self.q.put(*(f"b{n}" for n in range(self.others - 6, self.others)))

    async def claim(self) -> None:
        """Of all jobs that wait, each starts once."""
        leases = await self.q.claim(self.chance.choice([1, 3, MANY, 100]))
        assert len({lease.id for lease in leases}) == len(leases)
        mine = [lease for lease in leases if lease.id == "a"]
        await self.q.settle(*(complete(lease) for lease in leases if lease.id != "a"))
        if mine:
            assert self.state is State.WAITING
            (self.lease,) = mine
            self.attempt += 1
            self.happens("started", State.ACTIVE)
            assert (self.lease.life, self.lease.attempt) == (self.life, self.attempt)

    async def claim_all(self) -> None:
        before = self.state
        while (await self.q.counts()).get("waiting"):
            await self.claim()
        assert before is not State.WAITING or self.state is State.ACTIVE

    async def end(self) -> None:
        if self.lease is None:
            return
        ends: list[tuple[str, State, AnyOutcome]] = [
            ("completed", State.COMPLETED, complete(self.lease)),
            ("failed", State.FAILED, fail(self.lease)),
            ("retried", State.WAITING, retry(self.lease)),
            ("released", State.WAITING, release(self.lease)),
        ]
        kind, state, outcome = self.chance.choice(ends)
        await self.q.settle(outcome)
        self.old, self.lease = [*self.old, self.lease], None
        self.happens(kind, state)

    async def settle_old(self) -> None:
        """Tokens of earlier jobs of the id are stale, also in a life of the same number."""
        if self.old:
            lease = self.chance.choice(self.old)
            settled = await self.q.exchange(complete(lease), worker="w2")
            assert settled.stale == (ref(lease),)
            assert await self.q.store.extend([ref(lease)], lease_ms=HOUR) == ["lost"]

    async def cancel(self) -> None:
        if self.state is not State.ACTIVE:
            done = await self.q.alter(Cancel(job=self.q.key("a")))
            assert done is (self.state is State.WAITING)
            if done:
                self.happens("cancelled", State.CANCELLED)

    async def remove(self) -> None:
        if self.state is not State.ACTIVE:
            assert await self.q.alter(Remove(job=self.q.key("a"))) is (self.state is not None)
            if self.state is State.WAITING:
                self.happens("cancelled", State.CANCELLED)
            else:
                self.state = None

    async def purge(self) -> None:
        state = self.chance.choice(sorted(ENDED))
        await self.q.store.purge_ended(self.q.queue, state, older_than_ms=0, limit=1000)
        self.state = None if self.state is state else self.state

    async def rerun(self) -> None:
        done = await self.q.alter(Rerun(job=self.q.key("a")))
        assert done is (self.state in ENDED)
        if done:
            self.life += 1
            self.happens("rerun", State.WAITING)

    async def reprioritise(self) -> None:
        priority = self.chance.randrange(3)
        if await self.q.alter(Reprioritise(job=self.q.key("a"), priority=priority)):
            assert self.state is State.WAITING
            self.happens("changed", State.WAITING)

    async def expire(self) -> None:
        if self.state is not State.ACTIVE:
            self.q.clock.advance(HOUR)
            self.state = None if self.state in ENDED else self.state
            if self.chance.random() < 0.5:
                await self.q.tick()

    async def clear(self) -> None:
        await self.q.store.purge_pending(self.q.queue)
        if self.state is State.WAITING:
            self.happens("cancelled", State.CANCELLED)

    async def play(self, steps: int = STEPS) -> None:
        """A random history. The record is compared after every step, the events in the end."""
        await self.q.store.declare(self.q.queue, QueueConfig(retention=KEPT))
        moves = {
            self.put: 5, self.put_others: 2, self.claim: 4, self.claim_all: 1, self.end: 4,
            self.settle_old: 1, self.cancel: 4, self.remove: 3, self.purge: 3, self.rerun: 2,
            self.reprioritise: 2, self.expire: 1, self.clear: 1,
        }  # fmt: skip
        for move in self.chance.choices([*moves], weights=[*moves.values()], k=steps):
            await move()
            record = await self.q.look("a")
            seen = None if record is None else (record.state, record.life, record.attempt)
            assert seen == (None if self.state is None else (self.state, self.life, self.attempt))
        events = await self.q.events("a")
        assert [(e.kind, e.life, e.attempt) for e in events] == self.events
