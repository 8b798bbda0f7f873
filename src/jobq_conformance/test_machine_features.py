"""Any history with keys, limits, rates, unique jobs, flows and waits.

No exact model, but rules that always hold.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from jobq.core.records.commands import AnyCommand, Cancel, Remove, Rerun, SendSignal
from jobq.core.records.jobs import (
    AnyOutcome,
    ChildPolicy,
    JobRecord,
    Lease,
    UniqueMode,
    UniqueSpec,
)
from jobq.core.records.queues import Limits, QueueConfig, Window
from jobq.core.records.states import ENDED, State
from jobq_conformance.audit import audit
from jobq_conformance.claim_order import check_order
from jobq_conformance.examples import examples
from jobq_conformance.kit import (
    Desk,
    FakeClock,
    block,
    complete,
    fail,
    fresh_queue,
    hold,
    read_all,
    read_log,
    release,
    retry,
    snooze,
    tally,
)
from jobq_conformance.places import Fresh, Opening

T = TypeVar("T")

IDS = st.sampled_from([f"j{n}" for n in range(8)])
KEYS = st.sampled_from("ab")
WORKERS = st.sampled_from(["w1", "w2"])
DELAYS = st.sampled_from([0, 0, 2_000])
CHANCE = st.floats(0, 1)
LOCKS: list[tuple[str, UniqueMode] | None] = [None, None, None, ("x", "simple"), ("y", "keep_last")]
WINDOW = Window(limit=4, per_ms=10_000)
LEASES = (4_007, 30_009)
OUTCOMES: dict[str, Callable[[Lease, int], AnyOutcome]] = {
    "complete": lambda lease, _: complete(lease),
    "fail": lambda lease, _: fail(lease),
    "retry": lambda lease, delay: retry(lease, delay),
    "snooze": lambda lease, delay: snooze(lease, delay),
    "release": lambda lease, _: release(lease),
    "hold": lambda lease, delay: hold(lease, delay or 1_000),
    "block": lambda lease, delay: block(lease, signal="go", timeout_ms=delay or None),
}
ENDS = st.tuples(st.sampled_from(["complete", "complete", "child", *OUTCOMES]), DELAYS)
WORK: dict[str, Any] = {
    "worker": WORKERS,
    "ends": st.lists(ENDS, min_size=1, max_size=3),
    "n": st.integers(1, 4),
    "lease_ms": st.sampled_from(LEASES),
    "lost": CHANCE,
}


class BusyQueue(RuleBasedStateMachine):
    """One queue with everything switched on.

    What is held back must have a reason, what is free must be claimed.
    """

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.store = opening(self.clock)
        self.wait(self.store.migrate())
        self.desk = Desk(self.store, fresh_queue(), self.clock)
        self.leases: list[tuple[str, Lease]] = []
        self.locks: dict[str, UniqueSpec] = {}  # of the present life of each id
        self.held: dict[str | None, int] = {}  # key (None: the queue) → until when
        self.window: tuple[int, int] = (-1_000_000, 0)  # opened at, starts since
        self.flows = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def now(self) -> int:
        return self.clock.now_ms

    @initialize(
        keyed=st.booleans(),
        limit=st.sampled_from([None, 2]),
        key_limit=st.integers(1, 2),
        rated=st.booleans(),
    )
    def declare(self, keyed: bool, limit: int | None, key_limit: int, rated: bool) -> None:
        self.keyed = keyed
        self.limits = Limits(
            limit=limit, key_limit=key_limit if keyed else None, rate=WINDOW if rated else None
        )
        self.wait(
            self.store.declare(
                self.desk.queue, QueueConfig(mode="keyed" if keyed else "plain", limits=self.limits)
            )
        )
        for key in "ab":
            self.put(
                [f"j{n}" for n in range(4) if n % 2 == (key == "b")],
                key,
                delay=0,
                priority=0,
                lock=None,
            )

    # ── producers ─────────────────────────────────────────────────────────────────────────────────

    def options(self, key: str, lock: tuple[str, UniqueMode] | None = None) -> dict[str, object]:
        return {
            "key": key if self.keyed else None,
            "unique": UniqueSpec(lock=lock[0], mode=lock[1]) if lock else None,
        }

    @rule(
        ids=st.lists(IDS, min_size=1, max_size=4),
        key=KEYS,
        delay=DELAYS,
        priority=st.integers(0, 1),
        lock=st.sampled_from(LOCKS),
    )
    def put(
        self,
        ids: list[str],
        key: str,
        delay: int,
        priority: int,
        lock: tuple[str, UniqueMode] | None,
    ) -> None:
        options = self.options(key, lock)
        name = f"task:{priority}"
        results = self.wait(
            self.desk.put(
                *ids, name=name, delay_ms=delay, priority=priority, max_stalls=1, **options
            )
        )
        for id, result in zip(ids, results, strict=True):
            if not result.duplicate:
                self.locks.pop(id, None)
                if isinstance(unique := options["unique"], UniqueSpec):
                    self.locks[id] = unique

    @rule(
        ids=st.lists(IDS, min_size=2, max_size=4, unique=True),
        key=KEYS,
        policy=st.sampled_from(["fail", "ignore", "continue"]),
    )
    def put_flow(self, ids: list[str], key: str, policy: ChildPolicy) -> None:
        """The last one waits for the others. If it is there already, nothing new waits."""
        *children, parent = ids
        self.flows += 1
        edges = tuple(self.desk.edge(id) for id in children)
        members = [self.desk.spec(id, **self.options(key)) for id in children]
        members.append(
            self.desk.spec(parent, after=edges, on_child_failure=policy, **self.options(key))
        )
        for spec, result in zip(
            members, self.wait(self.store.put(members, flow=f"f{self.flows}")), strict=True
        ):
            if not result.duplicate:
                self.locks.pop(spec.id, None)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    @rule(**WORK)
    def work(
        self, worker: str, ends: list[tuple[str, int]], n: int, lease_ms: int, lost: float
    ) -> None:
        """Runs end, the oldest first and now and then one that was lost; then the worker claims
        more.
        """
        self.settle(ends, lost)
        leases = self.wait(self.desk.claim(n, worker=worker, lease_ms=lease_ms))
        records = self.records()
        for lease in leases:
            self.leases.append((worker, lease))
            self.check_allowed(lease, records)
        alone = [lease for lease in leases if lease.last_chance]
        assert not alone or len(leases) == 1, f"{alone[0].id} was on its last chance and not alone"
        # A claim ends before a last chance (jobs here may stall once), but never without a lease.
        cut = leases and (
            alone or any(r.state is State.WAITING and r.stalls for r in records.values())
        )
        if len(leases) < n and not cut:
            self.check_nothing_was_left(records)

    # Again under other names: Hypothesis leaves some rules out of each example, and without work
    # little happens.
    @rule(**WORK)
    def work_more(self, **what: Any) -> None:
        self.work(**what)

    @rule(**WORK)
    def work_on(self, **what: Any) -> None:
        self.work(**what)

    def settle(self, ends: list[tuple[str, int]], lost: float) -> None:
        records = self.records()
        held = [(w, lease) for w, lease in self.leases if self.may_hold(lease, records)]
        if self.leases and lost > 0.9:
            held.insert(0, self.leases[int(lost * 1000) % len(self.leases)])
        for (kind, delay), (worker, lease) in zip(ends, held, strict=False):
            before = records.get(lease.id)
            settled = self.wait(self.desk.exchange(self.outcome(kind, lease, delay), worker=worker))
            if (
                kind == "hold"
                and not settled.stale
                and before is not None
                and not before.cancel_asked
            ):
                self.held[lease.key] = max(self.held.get(lease.key, 0), self.now + (delay or 1_000))

    def check_allowed(self, lease: Lease, records: dict[str, JobRecord]) -> None:
        active = [r for r in records.values() if r.state is State.ACTIVE]
        assert self.held.get(lease.key, 0) <= self.now, (
            f"{lease.id} was started while {lease.key or 'its queue'} was held"
        )
        if self.limits.limit is not None:
            assert len(active) <= self.limits.limit
        if self.limits.key_limit is not None:
            assert Counter(r.key for r in active)[lease.key] <= self.limits.key_limit
        if self.limits.rate is not None:
            opened, starts = self.window
            self.window = (
                (opened, starts + 1) if self.now < opened + WINDOW.per_ms else (self.now, 1)
            )
            assert self.window[1] <= WINDOW.limit, f"{lease.id} was one start too many"

    def check_nothing_was_left(self, records: dict[str, JobRecord]) -> None:
        """Less was claimed than asked for: whatever waits now has a reason to."""
        active = [r for r in records.values() if r.state is State.ACTIVE]
        per_key = Counter(r.key for r in active)
        full = self.limits.limit is not None and len(active) >= self.limits.limit
        spent = (
            self.limits.rate is not None
            and self.now < self.window[0] + WINDOW.per_ms
            and self.window[1] >= WINDOW.limit
        )
        for job in records.values():
            assert not (job.state is State.DELAYED and (job.due_ms or 0) <= self.now), (
                f"{job.id} is due and was not promoted"
            )
            if job.state is State.WAITING:
                key_full = (
                    self.limits.key_limit is not None and per_key[job.key] >= self.limits.key_limit
                )
                held = self.held.get(job.key, 0) > self.now
                assert full or spent or key_full or held, f"{job.id} could have been claimed"

    def may_hold(self, lease: Lease, records: dict[str, JobRecord]) -> bool:
        job = records.get(lease.id)
        return job is not None and (job.state, job.life, job.attempt) == (
            State.ACTIVE,
            lease.life,
            lease.attempt,
        )

    def outcome(self, kind: str, lease: Lease, delay: int) -> AnyOutcome:
        """For `child`, the run adds a child and waits for it; its id follows from the parent's, so
        a second pass adds nothing.
        """
        if kind != "child":
            return OUTCOMES[kind](lease, delay)
        child = f"{lease.id}/c"
        if len(child) > 8:
            return complete(lease)
        self.wait(self.desk.put_one(child, key=lease.key))
        return block(lease, after=(self.desk.edge(child),))

    # ── the clock and operators ───────────────────────────────────────────────────────────────────

    @rule(ms=st.sampled_from([10, 1_000, 5_000, 12_000]), then_tick=st.booleans())
    def advance(self, ms: int, then_tick: bool) -> None:
        self.clock.advance(ms)
        if then_tick:
            self.wait(self.desk.tick())
            for job in self.records().values():
                assert not (job.state is State.DELAYED and (job.due_ms or 0) <= self.now), (
                    f"{job.id} is due and was not promoted"
                )

    @rule(
        id=IDS, what=st.sampled_from(["cancel", "cascade", "remove", "rerun", "signal", "signal"])
    )
    def command(self, id: str, what: str) -> None:
        key = self.desk.key(id)
        commands: dict[str, AnyCommand] = {
            "cancel": Cancel(job=key),
            "cascade": Cancel(job=key, cascade=True),
            "remove": Remove(job=key),
            "rerun": Rerun(job=key),
            "signal": SendSignal(job=key, name="go", value=b"1"),
        }
        self.wait(self.desk.alter(commands[what]))

    # ── what always holds ─────────────────────────────────────────────────────────────────────────

    def records(self) -> dict[str, JobRecord]:
        return {r.id: r for r in self.wait(read_all(self.store, self.desk.queue))}

    @invariant()
    def the_rules_hold(self) -> None:
        records = self.records()
        counted = self.wait(self.store.count(self.desk.queue))
        assert min(counted.values(), default=0) >= 0
        assert {s: n for s, n in counted.items() if n} == tally(list(records.values()))
        self.check_locks(records)
        self.check_nobody_waits_for_what_has_ended(records)

    def check_locks(self, records: dict[str, JobRecord]) -> None:
        """A lock has one holder, and a keep_last lock at most one follow-up."""
        open_locks = Counter(
            (self.locks[r.id].lock, r.state is State.BLOCKED and r.attempt == 0)
            for r in records.values()
            if r.id in self.locks and r.state not in ENDED
        )
        for (lock, follows), n in open_locks.items():
            assert n <= 1, f"lock {lock} has {n} {'follow-ups' if follows else 'holders'}"

    def check_nobody_waits_for_what_has_ended(self, records: dict[str, JobRecord]) -> None:
        for job in records.values():
            children = [records.get(child.id) for child in job.children]
            unfinished = [
                child for child in children if child is not None and child.state not in ENDED
            ]
            if job.state is State.BLOCKED and job.attempt == 0 and job.id not in self.locks:
                assert unfinished, f"{job.id} waits for nothing"

    def teardown(self) -> None:
        try:
            self.wait(audit(self.store, self.desk.queue))
            check_order(self.wait(read_log(self.store, self.desk.queue)))
        finally:
            self.wait(self.store.aclose())
            self.runner.close()


def test_any_history_of_a_busy_queue_keeps_its_rules(
    fresh_places: Callable[[str], Fresh], store_name: str
) -> None:
    fresh = fresh_places(store_name)
    run_state_machine_as_test(
        lambda: BusyQueue(fresh()),  # type: ignore[arg-type]  # any factory will do
        settings=examples(40, stateful_step_count=40),
    )
