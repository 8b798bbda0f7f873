"""What a held unique lock means, in every mode and state of its holder, is what
core/rules/locks.py says.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from jobq.core.records.commands import Cancel, Remove, Rerun
from jobq.core.records.jobs import AnyOutcome, JobRecord, Lease, UniqueMode, UniqueSpec
from jobq.core.records.states import State
from jobq.core.rules.locks import on_held_lock, releases, standing
from jobq_conformance.examples import examples
from jobq_conformance.kit import (
    LEASE,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    release,
    retry,
    snooze,
)
from tests.rules.kit import Table

TTL = 20 * SECOND
MODES: list[UniqueMode] = ["simple", "throttle", "debounce", "keep_last"]


class Put(NamedTuple):
    mode: UniqueMode
    delay_ms: int = 0


class Work(NamedTuple):
    """Claim what can be claimed, and end the oldest run like this."""

    end: str


class Do(NamedTuple):
    """A command on the holder, or the passing of time."""

    what: str


Step = Put | Work | Do
ENDS = ["none", "complete", "fail", "retry", "retry later", "snooze", "release", "block"]
step = st.one_of(
    st.builds(Put, st.sampled_from(MODES), st.sampled_from([0, 0, 5 * SECOND])),
    st.builds(Put, st.sampled_from(MODES), st.just(0)),
    st.builds(Work, st.sampled_from(ENDS)),
    st.builds(Do, st.sampled_from(["cancel", "remove", "rerun", "wait", "wait long", "stall"])),
)


def ended(kind: str, lease: Lease) -> AnyOutcome:
    made: dict[str, AnyOutcome] = {
        "complete": complete(lease),
        "fail": fail(lease),
        "retry": retry(lease),
        "retry later": retry(lease, 5 * SECOND),
        "snooze": snooze(lease, SECOND),
        "release": release(lease),
        "block": block(lease, signal="go"),
    }
    return made[kind]


class Lock(NamedTuple):
    """Who holds it, in which mode, and until when."""

    id: str
    mode: UniqueMode
    until_ms: int | None


class Script:
    """Follows who holds the lock. What that means for the next job, core says."""

    def __init__(self, q: Desk) -> None:
        self.q, self.n = q, 0
        self.lock: Lock | None = None
        self.follower: str | None = None
        self.leases: list[Lease] = []
        self.modes: dict[str, UniqueMode] = {}

    def take(self, id: str) -> None:
        mode = self.modes[id]
        self.lock = Lock(id, mode, self.q.clock.now_ms + TTL if mode == "throttle" else None)

    async def settle_locks(self) -> None:
        """Jobs may have ended since the last step: locks follow, by core's rule."""
        if self.follower is not None and (await self.q.get(self.follower)).state.ended:
            self.follower = None
        lock = self.lock
        if lock is None:
            return
        if lock.until_ms is not None and lock.until_ms <= self.q.clock.now_ms:
            self.lock = None
            return
        record = await self.q.look(lock.id)
        if record is not None and record.state.ended and releases(lock.mode, record.state):
            self.lock = None
            if lock.mode == "keep_last" and self.follower is not None:
                self.take(self.follower)
                self.follower = None

    async def put(self, step: Put) -> None:
        self.n += 1
        id, payload = f"j{self.n}", f"{self.n}".encode()
        unique = UniqueSpec(
            lock="L", mode=step.mode, ttl_ms=TTL if step.mode == "throttle" else None
        )
        holder = None if self.lock is None else await self.q.look(self.lock.id)
        meeting = "accept"
        if self.lock is not None:
            meeting = on_held_lock(
                step.mode,
                standing(None, 0) if holder is None else standing(holder.state, holder.attempt),
            )
        result = await self.q.put_one(id, unique=unique, delay_ms=step.delay_ms, payload=payload)
        if meeting == "follow" and self.follower is not None:
            await self.replaced(self.follower, payload)
            assert (result.id, result.duplicate) == (self.follower, True)
        elif meeting in ("duplicate", "replace"):
            assert self.lock is not None
            assert (result.id, result.duplicate) == (self.lock.id, True)
            assert await self.q.look(id) is None
            if meeting == "replace":
                await self.replaced(self.lock.id, payload)
                self.modes[self.lock.id] = step.mode
                if step.mode == "debounce":
                    self.take(self.lock.id)
                else:
                    self.lock = self.lock._replace(mode=step.mode)
            elif holder is not None:
                assert (await self.q.get(self.lock.id)).payload == holder.payload
        else:
            self.modes[id] = step.mode
            assert (result.id, result.duplicate) == (id, False)
            if meeting == "follow":
                assert result.state is State.BLOCKED
                self.follower = id
            else:
                await self.untouched(holder)
                self.take(id)

    async def replaced(self, id: str, payload: bytes) -> None:
        assert (await self.q.get(id)).payload == payload

    async def untouched(self, holder: JobRecord | None) -> None:
        if holder is not None:
            assert await self.q.get(holder.id) == holder

    async def work(self, step: Work) -> None:
        self.leases += await self.q.claim(5, lease_ms=LEASE)
        if self.leases and step.end != "none":
            await self.q.exchange(ended(step.end, self.leases.pop(0)))

    async def do(self, what: str) -> None:
        if what == "wait":
            self.q.clock.advance(5 * SECOND)
        elif what == "wait long":
            self.q.clock.advance(TTL)
        elif what == "stall":
            self.q.clock.advance(LEASE)
        elif self.lock is not None and await self.q.look(self.lock.id) is not None:
            key = self.q.key(self.lock.id)
            if what == "remove" and await self.q.altered(Remove(job=key)) == "done":
                self.lock = None if await self.q.look(key.id) is None else self.lock
            elif what == "cancel":
                await self.q.alter(Cancel(job=key))
            elif what == "rerun" and await self.q.alter(Rerun(job=key)):
                self.take(key.id)
        await self.q.tick()

    async def play(self, steps: list[Step]) -> None:
        for each in steps:
            await self.settle_locks()
            match each:
                case Put():
                    await self.put(each)
                case Work():
                    await self.work(each)
                case Do(what):
                    await self.do(what)


@examples(120)
@given(steps=st.lists(step, min_size=3, max_size=16))
@example([Put("debounce"), Work("block"), Put("debounce"), Put("debounce")])
@example(
    [
        Put("debounce"),
        Work("retry later"),
        Put("debounce", 5 * SECOND),
        Do("wait"),
        Work("complete"),
        Put("debounce"),
    ]
)
@example(
    [
        Put("keep_last"),
        Work("none"),
        Put("keep_last"),
        Put("keep_last"),
        Work("complete"),
        Put("keep_last"),
    ]
)
@example(
    [
        Put("throttle"),
        Work("complete"),
        Put("throttle"),
        Put("simple"),
        Put("debounce"),
        Put("keep_last"),
    ]
)
@example(
    [
        Put("simple"),
        Put("debounce"),
        Put("keep_last"),
        Work("snooze"),
        Put("debounce"),
        Put("keep_last"),
    ]
)
def test_a_held_lock_means_what_core_says(table: Table, steps: list[Step]) -> None:
    table.play(lambda q: Script(q).play(steps))
