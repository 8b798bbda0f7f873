"""Any history: Hypothesis plays producers, two workers, operators and a clock against the model."""

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
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobq.core.records.commands import Cancel, Promote, Remove, Reprioritise, Rerun
from jobq.core.records.jobs import AnyOutcome, Claim, JobKey, Lease, Note, Settled
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import State
from jobq_conformance.audit import audit
from jobq_conformance.examples import examples
from jobq_conformance.kit import (
    Desk,
    FakeClock,
    complete,
    fail,
    fresh_queue,
    ref,
    release,
    retry,
    snooze,
)
from jobq_conformance.model import LEASES, RETENTION, TTL, Model
from jobq_conformance.places import Fresh, Opening

T = TypeVar("T")

IDS = st.sampled_from([f"j{n}" for n in range(7)])
WORKERS = st.sampled_from(["w1", "w2"])
DELAYS = st.sampled_from([0, 0, 2_000, 5_000])
TTLS = st.sampled_from([None, None, TTL])
OUTCOMES: dict[str, Callable[[Lease, int], AnyOutcome]] = {
    "complete": lambda lease, _: complete(lease),
    "fail": lambda lease, _: fail(lease),
    "retry": lambda lease, delay: retry(lease, delay),
    "snooze": lambda lease, delay: snooze(lease, delay),
    "release": lambda lease, _: release(lease),
}
ENDS = st.tuples(st.sampled_from(["complete", *OUTCOMES]), DELAYS)
WORK: dict[str, Any] = {
    "worker": WORKERS,
    "ends": st.lists(ENDS, min_size=1, max_size=3),
    "n": st.sampled_from([0, 1, 2, 3, 3]),
    "lease_ms": st.sampled_from(LEASES),
}


class PlainQueue(RuleBasedStateMachine):
    """One plain queue through one handle, compared with the model after every step."""

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.store = self.wait(self._open(opening))
        self.desk = Desk(self.store, fresh_queue(), self.clock)
        self.model = Model()
        self.leases: list[tuple[str, Lease]] = []  # all ever granted, also those lost since
        self.last: dict[str, tuple[str, tuple[AnyOutcome, ...], Claim | None, Settled]] = {}
        self.calls = 0

    async def _open(self, opening: Opening) -> Any:
        store = opening(self.clock)
        await store.migrate()
        return store

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def now(self) -> int:
        return self.clock.now_ms

    @initialize()
    def begin_with_some_jobs(self) -> None:
        kept = RetentionData(
            completed_ms=RETENTION, failed_ms=RETENTION, cancelled_ms=RETENTION, count=None
        )
        self.wait(self.store.declare(self.desk.queue, QueueConfig(retention=kept)))
        self.put([f"j{n}" for n in range(5)], delay=0, priority=0, ttl=None, max_stalls=1)

    # ── producers ─────────────────────────────────────────────────────────────────────────────────

    @rule(
        ids=st.lists(IDS, min_size=1, max_size=4),
        delay=DELAYS,
        priority=st.integers(0, 2),
        ttl=TTLS,
        max_stalls=st.integers(0, 2),
    )
    def put(
        self, ids: list[str], delay: int, priority: int, ttl: int | None, max_stalls: int
    ) -> None:
        results = self.wait(
            self.desk.put(
                *ids, delay_ms=delay, priority=priority, ttl_ms=ttl, max_stalls=max_stalls
            )
        )
        for id, result in zip(ids, results, strict=True):
            new = self.model.put(
                id, self.now, delay_ms=delay, priority=priority, ttl_ms=ttl, max_stalls=max_stalls
            )
            job = self.model.jobs[id]
            assert result.duplicate is not new
            assert (result.id, result.state, result.life) == (id, job.state, job.life)

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    def exchange(self, worker: str, outcomes: tuple[AnyOutcome, ...], then: Claim | None) -> None:
        self.calls += 1
        call = f"c{self.calls}"
        settled = self.wait(self.desk.exchange(*outcomes, worker=worker, call=call, then=then))
        self.last[worker] = (call, outcomes, then, settled)
        stale = [(o.id, o.token) for o in outcomes if not self.model.settle(o, self.now)]
        assert [(r.id, r.token) for r in settled.stale] == stale
        if then is not None:
            self.check_claimed(worker, then, settled)

    def check_claimed(self, worker: str, then: Claim, settled: Settled) -> None:
        self.model.repair(self.now)
        waiting = self.model.claimable(self.now)
        claimed, expected = len(settled.leases), min(then.limit, len(waiting))
        assert min(expected, 1) <= claimed <= expected, (
            f"claimed {claimed} of {[j.id for j in waiting]}"
        )
        for lease in settled.leases:
            job = self.model.jobs[lease.id]
            first = self.model.claimable(self.now)[0]
            assert job.state is State.WAITING
            assert (-job.priority, job.place) == (-first.priority, first.place), (
                f"{job.id} came before {first.id}"
            )
            assert lease.token not in {old.token for _, old in self.leases}, (
                "a token was used twice"
            )
            self.model.start(job, lease.token, worker, self.now + then.lease_ms)
            assert (lease.attempt, lease.failures, lease.stalls, lease.life) == (
                job.attempt,
                job.failures,
                job.stalls,
                job.life,
            )
            assert lease.expires_ms == self.now + then.lease_ms
            assert lease.steps == tuple(sorted(job.steps.items()))
            assert lease.last_chance == job.last_chance
            assert not lease.last_chance or claimed == 1, (
                f"{job.id} was on its last chance and not alone"
            )
            self.leases.append((worker, lease))
        alone = claimed == 1 and settled.leases[0].last_chance
        assert claimed == expected or alone or self.model.held_back(self.now), (
            f"claimed {claimed} of {[j.id for j in waiting]}"
        )

    def claiming(self, n: int, lease_ms: int) -> Claim | None:
        return self.desk.claiming(n, lease_ms=lease_ms) if n else None

    @rule(**WORK)
    def work(self, worker: str, ends: list[tuple[str, int]], n: int, lease_ms: int) -> None:
        """End the oldest runs of the worker (their leases may have expired meanwhile) and claim
        more.
        """
        held = [lease for who, lease in self.leases if who == worker and self.holds(lease)]
        outcomes = tuple(
            OUTCOMES[kind](lease, delay) for (kind, delay), lease in zip(ends, held, strict=False)
        )
        self.exchange(worker, outcomes, self.claiming(n, lease_ms))

    # Again under another name: Hypothesis leaves some rules out of each example, and without work
    # little happens.
    @rule(**WORK)
    def work_more(self, **what: Any) -> None:
        self.work(**what)

    @rule(worker=WORKERS, n=st.integers(1, 3))
    def claim(self, worker: str, n: int) -> None:
        self.exchange(worker, (), self.claiming(n, LEASES[0]))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), end=ENDS, lease_ms=st.sampled_from(LEASES))
    def settle_and_extend_any_lease(
        self, data: st.DataObject, end: tuple[str, int], lease_ms: int
    ) -> None:
        """Any lease ever granted: a lost one must be reported as lost."""
        worker, lease = data.draw(st.sampled_from(self.leases))
        (answer,) = self.wait(self.store.extend([ref(lease)], lease_ms=lease_ms))
        job = self.model.jobs.get(lease.id)
        if job is None or job.run is None or not self.holds(lease):
            assert answer == "lost"
            self.exchange(worker, (OUTCOMES[end[0]](lease, end[1]),), None)
        else:
            job.run.expires_ms = self.now + lease_ms
            assert answer == ("cancel" if job.asked else "held")

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), name=st.sampled_from("xyz"), value=st.binary(max_size=3))
    def record_a_step(self, data: st.DataObject, name: str, value: bytes) -> None:
        """Under any lease ever granted: a lost one must record nothing."""
        _, lease = data.draw(st.sampled_from(self.leases))
        (answer,) = self.wait(self.store.note([Note(lease=ref(lease), steps=((name, value),))]))
        if self.holds(lease):
            job = self.model.jobs[lease.id]
            job.steps[name] = value
            assert answer == ("cancel" if job.asked else "held")
        else:
            assert answer == "lost"

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def repeat_the_last_exchange(self, data: st.DataObject) -> None:
        """As after a lost reply.

        Leases lost since then need not be named again; nothing else may differ.
        """
        worker = data.draw(st.sampled_from(sorted(self.last)))
        call, outcomes, then, first = self.last[worker]
        if not outcomes and not first.leases:
            return  # it did nothing, so a store may let the repeat act
        again = self.wait(self.desk.exchange(*outcomes, worker=worker, call=call, then=then))
        assert again.stale == first.stale
        tokens = {lease.token for lease in again.leases}
        assert tokens <= {lease.token for lease in first.leases}
        assert tokens >= {lease.token for lease in first.leases if self.holds(lease)}

    def holds(self, lease: Lease) -> bool:
        job = self.model.jobs.get(lease.id)
        return job is not None and job.token == lease.token

    # ── the clock ─────────────────────────────────────────────────────────────────────────────────

    @rule(ms=st.sampled_from([10, 1_000, 2_000, 5_000, 20_000]), then_tick=st.booleans())
    def advance(self, ms: int, then_tick: bool) -> None:
        self.clock.advance(ms)
        if then_tick:
            self.wait(self.desk.tick())
            self.model.repair(self.now)
            self.model.expire(self.now)
            for id in [id for id, job in self.model.jobs.items() if job.gone(self.now)]:
                self.model.forget(id)

    # ── operators ─────────────────────────────────────────────────────────────────────────────────

    @rule(
        id=IDS,
        what=st.sampled_from(["cancel", "remove", "rerun", "promote", "reprioritise"]),
        priority=st.integers(0, 2),
    )
    def command(self, id: str, what: str, priority: int) -> None:
        job, key = self.model.jobs.get(id), self.desk.key(id)
        if what == "cancel":
            assert self.wait(self.desk.alter(Cancel(job=key))) is self.model.cancel(id, self.now)
        elif what == "remove":
            assert self.wait(self.desk.alter(Remove(job=key))) is self.model.remove(id, self.now)
        elif what == "promote":
            assert self.wait(self.desk.alter(Promote(job=key))) is self.model.promote(id, self.now)
        elif what == "rerun" and (
            job is None or job.ttl_ms is None
        ):  # what a ttl means in a second life is nowhere said
            assert self.wait(self.desk.alter(Rerun(job=key))) is self.model.rerun(id, self.now)
        elif what == "reprioritise" and (
            job is None or job.priority != priority
        ):  # to the same one: either order will do
            done = self.wait(self.desk.alter(Reprioritise(job=key, priority=priority)))
            assert done is self.model.reprioritise(id, priority, self.now)

    @rule(worker=WORKERS)
    def pause_for_a_while(self, worker: str) -> None:
        self.wait(self.store.pause(self.desk.queue))
        self.model.paused = True
        self.exchange(worker, (), self.claiming(3, LEASES[0]))
        self.wait(self.store.resume(self.desk.queue))
        self.model.paused = False

    # ── what always holds ─────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_job_is_where_the_model_says(self) -> None:
        ids = sorted(self.model.jobs)
        for id, record in zip(
            ids, self.wait(self.store.get([JobKey(self.desk.queue, id) for id in ids])), strict=True
        ):
            job = self.model.jobs[id]
            if job.gone(self.now):
                assert record is None, f"{id} should be gone"
                continue
            assert record is not None, f"{id} is lost"
            if record.state is State.FAILED and job.past_ttl(
                self.now
            ):  # a claim may, or may not yet, have met it
                job.end(State.FAILED, record.finished_ms or self.now)
            assert record.steps == tuple(sorted(job.steps.items())), id
            seen = (record.state, record.life, record.attempt, record.priority)
            assert seen == (job.state, job.life, job.attempt, job.priority), id
            if (
                job.state is not State.CANCELLED
            ):  # whether the run that was asked to stop also counts as failed is open
                assert (record.failures, record.stalls) == (job.failures, job.stalls), id
            if job.state is State.ACTIVE:
                assert record.cancel_asked is job.asked, id

    @invariant()
    def the_counters_agree(self) -> None:
        if not any(job.gone(self.now) for job in self.model.jobs.values()):
            counted = {s: n for s, n in self.wait(self.store.count(self.desk.queue)).items() if n}
            assert counted == Counter(job.state for job in self.model.jobs.values())

    def teardown(self) -> None:
        try:
            self.wait(audit(self.store, self.desk.queue))
        finally:
            self.wait(self.store.aclose())
            self.runner.close()


def test_any_history_of_a_plain_queue_keeps_the_books(
    fresh_places: Callable[[str], Fresh], store_name: str
) -> None:
    fresh = fresh_places(store_name)
    run_state_machine_as_test(
        lambda: PlainQueue(fresh()),  # type: ignore[arg-type]  # any factory will do
        settings=examples(80, stateful_step_count=40),
    )
