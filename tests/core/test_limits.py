"""The arithmetic of rate limits."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from jobq.core.records.queues import RateData, Tokens, Window
from jobq.core.rules.limits import RateState, starts_left, take

windows = st.builds(Window, limit=st.integers(1, 20), per_ms=st.integers(1, 100_000))
buckets = st.builds(Tokens, capacity=st.integers(1, 20), refill=st.floats(1e-3, 1e4))
rates = windows | buckets
steps = st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 25)), max_size=60)


def test_a_window_is_opened_by_its_first_start_and_closes_after_its_time() -> None:
    rate = Window(limit=2, per_ms=1000)
    first = take(rate, None, 5000)
    second = take(rate, first.state, 5900)
    assert first.allowed
    assert second.allowed
    third = take(rate, second.state, 5999)
    assert not third.allowed
    assert third.retry_in_ms == 1
    assert take(rate, third.state, 6000) == (True, RateState(1, 6000), 0)


def test_a_bucket_gives_its_capacity_at_once_and_then_as_it_refills() -> None:
    rate = Tokens(capacity=3, refill=2.0)
    taken = take(rate, None, 0, cost=3)
    assert taken.allowed
    later = take(rate, taken.state, 100, cost=1)
    assert not later.allowed
    assert later.retry_in_ms == 400
    assert take(rate, later.state, 500, cost=1).allowed


def test_a_window_counts_starts_and_not_their_cost() -> None:
    assert take(Window(limit=1, per_ms=1000), None, 0, cost=50).allowed


def test_a_cost_above_a_lowered_capacity_waits_for_a_full_bucket_and_not_for_ever() -> None:
    rate = Tokens(capacity=2, refill=1.0)
    emptied = take(rate, None, 0, cost=2)
    waiting = take(rate, emptied.state, 0, cost=10)
    assert not waiting.allowed
    assert waiting.retry_in_ms == 2000
    assert take(rate, waiting.state, 2000, cost=10).allowed


def test_a_lowered_limit_leaves_no_negative_room() -> None:
    state = RateState(50, 0)
    assert starts_left(Window(limit=5, per_ms=1000), state, 10) == 0
    assert starts_left(Tokens(capacity=5, refill=1.0), state, 10) == 5


@given(rates, steps)
def test_room_says_what_take_does(rate: RateData, steps: list[tuple[int, int]]) -> None:
    state, now = None, 0
    for wait, _ in steps:
        now += wait
        assert take(rate, state, now).allowed == (starts_left(rate, state, now) >= 1)
        state = take(rate, state, now).state


@given(rates, steps)
@example(Tokens(capacity=9, refill=0.001), [(0, 1), (0, 4), (0, 9)])
def test_a_job_can_start_after_the_wait_it_was_given(
    rate: RateData, steps: list[tuple[int, int]]
) -> None:
    state, now = None, 0
    for wait, cost in steps:
        now += wait
        taken = take(rate, state, now, cost)
        if not taken.allowed:
            assert taken.retry_in_ms >= 1
            now += taken.retry_in_ms
            taken = take(rate, taken.state, now, cost)
        assert taken.allowed
        state = taken.state


@given(windows, steps)
def test_no_window_sees_more_starts_than_its_limit(
    rate: Window, steps: list[tuple[int, int]]
) -> None:
    state, now, opened, count = None, 0, None, 0
    for wait, _ in steps:
        now += wait
        taken = take(rate, state, now)
        state = taken.state
        assert state is not None
        if taken.allowed:
            count = count + 1 if state.at_ms == opened else 1
            opened = state.at_ms
            assert count <= rate.limit
            assert now < opened + rate.per_ms


@given(buckets, steps)
def test_a_bucket_never_gives_more_than_was_ever_in_it(
    rate: Tokens, steps: list[tuple[int, int]]
) -> None:
    state, now, given_out = None, 0, 0
    for wait, cost in steps:
        now += wait
        taken = take(rate, state, now, cost)
        state = taken.state
        assert state is not None
        assert 0 <= state.value <= rate.capacity
        given_out += min(cost, rate.capacity) if taken.allowed else 0
        assert given_out <= rate.capacity + now * rate.refill / 1000 + 1e-4


@given(buckets, st.lists(st.integers(-5000, 5000), max_size=60))
def test_a_clock_that_goes_back_and_forth_refills_no_more_than_one_that_does_not(
    rate: Tokens, moves: list[int]
) -> None:
    now = latest = 1_000_000
    taken = take(rate, None, now)
    given_out = 1
    for move in moves:
        now = max(
            now + move, latest - int(rate.capacity * 1000 / rate.refill)
        )  # not further back than a refill takes
        latest = max(latest, now)
        taken = take(rate, taken.state, now)
        given_out += taken.allowed
        assert given_out <= rate.capacity + (latest - 1_000_000) * rate.refill / 1000 + 1e-4


@given(rates, st.integers(0, 10**10))
def test_a_clock_set_far_back_holds_nothing_for_long(rate: RateData, back: int) -> None:
    now = 10**12
    state = take(rate, None, now, 20).state
    taken = take(rate, state, now - back, 20)
    whole = rate.per_ms if isinstance(rate, Window) else rate.capacity * 1000 / rate.refill
    assert taken.retry_in_ms <= 2 * whole + 2
