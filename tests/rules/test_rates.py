"""Rates: what starts, and when the next may, is what core/rules/limits.py says.

Costs above the capacity, ends of windows, limits that change and clocks that are set back included.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from jobq.core.records.queues import Limits, RateData, Tokens, Window
from jobq.core.rules import limits
from jobq.core.rules.limits import RateState
from jobq.errors import InvalidJob
from jobq_conformance.examples import examples
from jobq_conformance.kit import HOUR, Desk
from tests.rules.kit import StoreTime, Table

FOREVER = 10_000 * HOUR  # a lease that no script outlives


class Put(NamedTuple):
    cost: int


class Claim(NamedTuple):
    n: int


class Advance(NamedTuple):
    ms: int


class Change(NamedTuple):
    rate: RateData


Step = Put | Claim | Advance | Change
windows = st.builds(
    Window, limit=st.integers(1, 4), per_ms=st.sampled_from([1, 500, 1_000, 7_001, 60_000])
)
buckets = st.builds(
    Tokens, capacity=st.integers(1, 6), refill=st.sampled_from([0.1, 0.37, 1.0, 3.0, 250.0])
)
rates = windows | buckets
moves = st.sampled_from([1, 499, 500, 999, 1_000, 3_333, 7_000, 7_001, 60_000, -200, -1_500, -HOUR])
step = st.one_of(
    st.builds(Put, st.integers(1, 6)),
    st.builds(Claim, st.integers(1, 4)),
    st.builds(Advance, moves),
    st.builds(Change, rates),
)
steps = st.lists(step, min_size=4, max_size=25)
LOWERED = [Put(6), Change(Tokens(capacity=2, refill=1.0)), Claim(1), Advance(2_000), Claim(1)]
SET_BACK = [Put(1), Put(1), Claim(2), Advance(-HOUR), Claim(1), Advance(1_000), Claim(1)]


class Oracle:
    """Jobs with costs that wait for one limit. All arithmetic is core's."""

    def __init__(self, rate: RateData) -> None:
        self.rate = rate
        self.state: RateState | None = None
        self.waiting: list[tuple[str, int]] = []

    def change(self, rate: RateData) -> None:
        kept = None if self.state is None else limits.stored_rate(self.rate, self.state)
        self.rate, self.state = rate, limits.loaded_rate(rate, kept)

    def claim(self, n: int, now: int) -> tuple[list[str], int | None]:
        """The jobs that start, and if one may not start yet, when to ask again."""
        started: list[str] = []
        while self.waiting and len(started) < n:
            id, cost = self.waiting[0]
            taken = limits.take(self.rate, self.state, now, cost)
            self.state = taken.state
            if not taken.allowed:
                return started, taken.retry_in_ms
            started.append(id)
            del self.waiting[0]
        return started, None


def in_force(of: str, rate: RateData) -> Limits:
    return Limits(rate=rate) if of == "queue" else Limits(key_rate=rate, key_limit=1_000)


@examples(60)
@given(of=st.sampled_from(["queue", "key"]), rate=rates, script=steps)
@example("queue", Tokens(capacity=6, refill=1.0), LOWERED)
@example("key", Tokens(capacity=6, refill=1.0), LOWERED)
@example("queue", Window(limit=1, per_ms=1_000), SET_BACK)
@example("key", Window(limit=1, per_ms=1_000), SET_BACK)
@example(
    "queue",
    Window(limit=1, per_ms=1_000),
    [Put(1), Put(1), Claim(2), Advance(999), Claim(1), Advance(1), Claim(1)],
)
def test_starts_are_what_core_allows(
    table: Table, of: Literal["queue", "key"], rate: RateData, script: list[Step]
) -> None:
    async def play(q: Desk) -> None:
        time, oracle = StoreTime(q.clock), Oracle(rate)
        key = None if of == "queue" else "k"
        time.now()
        await q.store.set_limits(q.queue, in_force(of, rate))
        for n, step in enumerate(script):
            now = time.now() if not isinstance(step, Advance) else 0
            match step:
                case Put(cost):
                    dear = isinstance(oracle.rate, Tokens) and cost > oracle.rate.capacity
                    try:
                        await q.put_one(f"j{n}", cost=cost, key=key)
                        assert not dear
                        oracle.waiting.append((f"j{n}", cost))
                    except InvalidJob:
                        assert dear
                case Claim(wanted):
                    settled = await q.exchange(then=q.claiming(wanted, lease_ms=FOREVER))
                    started, retry_in = oracle.claim(wanted, now)
                    assert [lease.id for lease in settled.leases] == started
                    if retry_in is not None:
                        assert settled.next_due_ms is not None
                        assert (
                            abs(settled.next_due_ms - retry_in) <= 1
                        )  # floats, added up in another order
                case Change(changed):
                    await q.store.set_limits(q.queue, in_force(of, changed))
                    oracle.change(changed)
                case Advance(ms):
                    q.clock.advance(ms)

    table.play(play)


@examples(30)
@given(rate=rates, costs=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_a_job_can_start_after_the_wait_it_was_given(
    table: Table, rate: RateData, costs: list[int]
) -> None:
    async def play(q: Desk) -> None:
        await q.store.set_limits(q.queue, Limits(rate=Tokens(capacity=6, refill=1.0)))
        await q.store.put([q.spec(f"j{n}", cost=cost) for n, cost in enumerate(costs)])
        await q.store.set_limits(q.queue, Limits(rate=rate))
        started: list[str] = []
        while len(started) < len(costs):
            settled = await q.exchange(then=q.claiming(10, lease_ms=FOREVER))
            started += [lease.id for lease in settled.leases]
            if len(started) < len(costs):
                assert settled.next_due_ms is not None
                q.clock.advance(max(settled.next_due_ms, 0))
                again = await q.exchange(then=q.claiming(1, lease_ms=FOREVER))
                assert len(again.leases) == 1, "the wait was too short"
                started += [lease.id for lease in again.leases]
        assert started == [f"j{n}" for n in range(len(costs))]

    table.play(play)
