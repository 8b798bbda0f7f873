"""The vocabulary of the tests: a clock that they move, outcomes, and a desk with short calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from uuid import uuid4

from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    Defer,
    DeferReason,
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
    PutResult,
    QueueName,
    Reason,
    Release,
    RetryLater,
    Settled,
    SnoozeFor,
)
from jobq.core.records.states import State
from jobq.stores.base import Store

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LEASE = 30 * SECOND
BEGINNING = 28_333_334 * MINUTE  # a whole minute in November 2023

_calls = count(1)


class FakeClock:
    """A clock that moves only when the test says so."""

    def __init__(self, now_ms: int = BEGINNING) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms


def fresh_queue() -> QueueName:
    """A queue of a tenant that no other test uses."""
    return QueueName(f"t{uuid4().hex[:12]}", "work")


def failure(lease: Lease, message: str = "boom", reason: Reason = "error") -> Failure:
    """Why a run failed."""
    return Failure(
        reason=reason,
        type="ValueError",
        message=message,
        traceback="Traceback …",
        attempt=lease.attempt,
        at_ms=lease.started_ms,
        fingerprint="f00d",
    )


def ref(lease: Lease) -> LeaseRef:
    """The reference of a lease."""
    return LeaseRef(lease.queue, lease.id, lease.token)


def complete(lease: Lease, result: bytes | None = b"1") -> Complete:
    return Complete(queue=lease.queue, id=lease.id, token=lease.token, result=result)


def retry(lease: Lease, delay_ms: int = 0, message: str = "boom") -> RetryLater:
    return RetryLater(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        failure=failure(lease, message),
        delay_ms=delay_ms,
    )


def fail(lease: Lease, message: str = "boom", reason: Reason = "error") -> Fail:
    return Fail(
        queue=lease.queue, id=lease.id, token=lease.token, failure=failure(lease, message, reason)
    )


def snooze(lease: Lease, delay_ms: int = 0, saved: bytes | None = None) -> SnoozeFor:
    return SnoozeFor(
        queue=lease.queue, id=lease.id, token=lease.token, delay_ms=delay_ms, saved=saved
    )


def release(lease: Lease) -> Release:
    return Release(queue=lease.queue, id=lease.id, token=lease.token)


def defer(lease: Lease, delay_ms: int, reason: DeferReason = "unknown", text: str = "") -> Defer:
    return Defer(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        delay_ms=delay_ms,
        reason=reason,
        text=text,
    )


def hold(lease: Lease, delay_ms: int) -> Hold:
    return Hold(queue=lease.queue, id=lease.id, token=lease.token, delay_ms=delay_ms)


def block(
    lease: Lease,
    *,
    after: tuple[Edge, ...] = (),
    signal: str | None = None,
    timeout_ms: int | None = None,
    saved: bytes | None = None,
) -> Block:
    return Block(
        queue=lease.queue,
        id=lease.id,
        token=lease.token,
        after=after,
        signal=signal,
        timeout_ms=timeout_ms,
        saved=saved,
    )


class Desk:
    """One queue, seen through one handle. Workers are named by strings; the default is `w1`."""

    def __init__(
        self,
        store: Store,
        queue: QueueName,
        clock: FakeClock,
        audited: list[QueueName] | None = None,
    ) -> None:
        self.store = store
        self.queue = queue
        self.clock = clock
        self.audited: list[QueueName] = [] if audited is None else audited
        self.audited.append(queue)

    def through(self, store: Store) -> Desk:
        """The same queue through another handle."""
        desk = Desk(store, self.queue, self.clock)
        desk.audited = self.audited
        return desk

    def beside(self, name: str) -> Desk:
        """Another queue of the tenant."""
        return Desk(self.store, QueueName(self.queue.tenant, name), self.clock, self.audited)

    # ── producing ─────────────────────────────────────────────────────────────────────────────────

    def key(self, id: str) -> JobKey:
        return JobKey(self.queue, id)

    def edge(self, id: str, *, data: bool = True) -> Edge:
        return Edge(self.key(id), data)

    def spec(self, id: str, **options: object) -> JobSpec:
        """A job with defaults for everything that is not given."""
        fields: dict[str, object] = {"name": "task", "payload": b"[[],{}]", **options}
        return JobSpec(queue=self.queue, id=id, **fields)  # type: ignore[arg-type]

    async def put(self, *ids: str, **options: object) -> list[PutResult]:
        """Put jobs with these ids in one call."""
        return await self.store.put([self.spec(id, **options) for id in ids])

    async def put_one(self, id: str, **options: object) -> PutResult:
        (result,) = await self.put(id, **options)
        return result

    # ── working ───────────────────────────────────────────────────────────────────────────────────

    def claiming(
        self,
        n: int = 1,
        *,
        lease_ms: int = LEASE,
        queues: tuple[QueueName, ...] = (),
        alone: bool = True,
    ) -> Claim:
        return Claim(queues=queues or (self.queue,), limit=n, lease_ms=lease_ms, alone=alone)

    async def exchange(
        self,
        *outcomes: AnyOutcome,
        worker: str = "w1",
        call: str | None = None,
        then: Claim | None = None,
    ) -> Settled:
        """`settle` under a new call name, unless one is given.

        Workers of all tests have the same names, and the store may remember calls of an earlier
        test. The call's name contains the tenant, which no other test has.
        """
        name = f"{self.queue.tenant}-{call or f'c{next(_calls)}'}"
        return await self.store.settle(outcomes, worker=worker, call=name, then=then)

    async def settle(self, *outcomes: AnyOutcome, worker: str = "w1") -> None:
        """Settle these outcomes. All of them must apply."""
        settled = await self.exchange(*outcomes, worker=worker)
        assert settled.stale == ()

    async def claim(self, n: int = 1, *, worker: str = "w1", lease_ms: int = LEASE) -> list[Lease]:
        """Claim up to `n` jobs."""
        settled = await self.exchange(worker=worker, then=self.claiming(n, lease_ms=lease_ms))
        return list(settled.leases)

    async def take(self, worker: str = "w1", *, lease_ms: int = LEASE) -> Lease:
        """Claim the next job. There must be one."""
        leases = await self.claim(1, worker=worker, lease_ms=lease_ms)
        assert len(leases) == 1, "there was nothing to claim"
        return leases[0]

    async def claim_ids(self, n: int = 100, *, worker: str = "w1") -> list[str]:
        """Claim all jobs that can be claimed now, and return their ids in order."""
        return [lease.id for lease in await self.claim(n, worker=worker)]

    async def run(self, id: str, **options: object) -> None:
        """Put, claim and complete a job. No other job may be waiting."""
        await self.put_one(id, **options)
        lease = await self.take()
        assert lease.id == id
        await self.settle(complete(lease))

    async def tick(self) -> int:
        """Run upkeep until there is no more to do."""
        steps = 0
        while True:
            step = await self.store.tick(limit=500)
            steps += step
            if step < 500:
                return steps

    # ── operators ─────────────────────────────────────────────────────────────────────────────────

    async def alter(self, command: AnyCommand) -> bool:
        """Whether the command was carried out."""
        return await self.altered(command) == "done"

    async def altered(self, command: AnyCommand) -> Altered:
        (answer,) = await self.store.alter([command])
        return answer

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    async def look(self, id: str) -> JobRecord | None:
        (record,) = await self.store.get([self.key(id)])
        return record

    async def get(self, id: str) -> JobRecord:
        record = await self.look(id)
        assert record is not None, f"{id} is gone"
        return record

    async def state(self, id: str) -> State:
        return (await self.get(id)).state

    async def states(self, *ids: str) -> list[str | None]:
        """The states of jobs as words; None for a job that does not exist."""
        records = await self.store.get([self.key(id) for id in ids])
        return [None if r is None else r.state.value for r in records]

    async def counts(self) -> dict[str, int]:
        """The states that have jobs, as words, with their numbers."""
        return {state.value: n for state, n in (await self.store.count(self.queue)).items() if n}

    async def events(self, id: str | None = None) -> list[EventRecord]:
        """All events in the log, or those of one job."""
        return [e for e in await read_log(self.store, self.queue) if id is None or e.job == id]

    async def kinds(self, id: str) -> list[str]:
        """The kinds of a job's events, in order."""
        return [str(e.kind) for e in await self.events(id)]

    async def last_event(self, id: str) -> EventRecord:
        return (await self.events(id))[-1]


async def sleepers_are_asleep() -> None:
    """Give workers that were just sent to sleep the time to block at their store.

    The contract has no way to see that. A sleeper that is late makes the test easier to pass."""
    await asyncio.sleep(0.05)


async def drain(q: Desk) -> list[str]:
    """Complete all jobs that can start, each with its id as the result. Returns the ids."""
    done = []
    while leases := await q.claim(400):
        await q.settle(*(complete(lease, lease.id.encode()) for lease in leases))
        done += [lease.id for lease in leases]
    return done


async def read_log(
    store: Store, queue: QueueName, after: str = "0", limit: int = 200
) -> list[EventRecord]:
    """The whole log of a queue, page by page."""
    events: list[EventRecord] = []
    position = after
    while True:
        page = await store.read_events(queue, after=position, limit=limit)
        events.extend(page.events)
        if not page.events:
            return events
        position = page.position


async def read_all(
    store: Store,
    queue: QueueName,
    state: State | None = None,
    limit: int = 50,
    *,
    oldest_first: bool = False,
) -> list[JobRecord]:
    """Every record that a listing shows."""
    records: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = await store.find(
            Filter(queue=queue, state=state, oldest_first=oldest_first), cursor=cursor, limit=limit
        )
        records.extend(page.records)
        cursor = page.cursor
        if cursor is None:
            return records


def tally(records: list[JobRecord]) -> dict[State, int]:
    """How many records are in each state."""
    return dict(Counter(r.state for r in records))
