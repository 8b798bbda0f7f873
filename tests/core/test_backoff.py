"""How long retries wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.policies import Retry
from jobq.core.records.jobs import RetryData
from jobq.core.rules.backoff import computed_ms, delay_ms
from jobq.errors import InvalidJob

ERROR = ValueError("x")


def no_chance() -> float:
    raise AssertionError("a policy without jitter asks for no random number")


def waits(retry: Retry | RetryData, count: int) -> list[int | None]:
    return [delay_ms(retry, n, ERROR, no_chance) for n in range(1, count + 1)]


def test_the_first_retry_waits_base_and_the_next_ones_grow_to_the_cap() -> None:
    assert waits(Retry(base=2, factor=3, cap=60, jitter=0), 5) == [
        2000,
        6000,
        18_000,
        54_000,
        60_000,
    ]


def test_a_factor_of_one_is_a_fixed_wait() -> None:
    assert waits(Retry(base=5, factor=1, jitter=0), 3) == [5000, 5000, 5000]


def test_no_base_means_no_wait() -> None:
    assert waits(Retry(base=0), 3) == [0, 0, 0]


def test_listed_waits_are_taken_in_turn_and_the_last_one_stays() -> None:
    assert waits(Retry(delays=[1, 60, 7200], jitter=0), 4) == [1000, 60_000, 7_200_000, 7_200_000]


def test_a_function_chooses_the_wait_or_gives_up() -> None:
    retry = Retry(delays=lambda n, error: None if isinstance(error, KeyError) else n * 10)
    assert delay_ms(retry, 2, ERROR, no_chance) == 20_000
    assert delay_ms(retry, 2, KeyError(), no_chance) is None


def test_a_function_may_not_choose_a_negative_wait() -> None:
    with pytest.raises(InvalidJob, match="delays=-1 is negative"):
        delay_ms(Retry(delays=lambda n, error: -1), 1, ERROR, no_chance)


def test_jitter_goes_both_ways_by_its_fraction() -> None:
    retry = Retry(base=10, jitter=0.2)
    assert delay_ms(retry, 1, ERROR, lambda: 0.0) == 8000
    assert delay_ms(retry, 1, ERROR, lambda: 0.5) == 10_000
    assert delay_ms(retry, 1, ERROR, lambda: 1.0) == 12_000


def spread(retry: Retry, n: int, count: int) -> list[int]:
    """The delays of `count` jobs, by chances that divide the span evenly."""
    return [computed_ms(retry, n, iter([i / (count - 1)]).__next__) for i in range(count)]


def test_the_first_retry_of_a_default_policy_waits_base_plus_or_minus_a_tenth() -> None:
    assert spread(Retry(), 1, 3) == [900, 1000, 1100]
    assert RetryData().jitter == 0  # what callers in other languages leave out


@pytest.mark.parametrize("n", [12, 13, 200])
def test_delays_at_the_cap_spread_below_it(n: int) -> None:
    """Not half of them exactly at it: jobs that failed together would stay together for good."""
    evenly = spread(Retry(base=1, factor=2, cap=1800, jitter=0.2), n, 101)
    assert (min(evenly), max(evenly), len({*evenly})) == (1_440_000, 1_800_000, 101)


def test_a_delay_just_below_the_cap_uses_what_is_left_of_its_jitter() -> None:
    assert spread(Retry(base=10, cap=11, jitter=0.5), 1, 3) == [5000, 8000, 11_000]


policies = st.builds(
    RetryData,
    base_ms=st.integers(0, 10_000_000),
    factor=st.floats(1, 1e300),
    cap_ms=st.integers(1, 10_000_000),
    jitter=st.floats(0, 1),
)
chances = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, 10_000), chances)
def test_a_computed_wait_is_never_negative_nor_above_the_cap(
    policy: RetryData, n: int, chance: float
) -> None:
    wait = delay_ms(policy, n, ERROR, lambda: chance)
    assert wait is not None
    assert 0 <= wait <= policy.cap_ms


@given(policies, chances)
def test_attempt_ten_thousand_does_not_overflow(policy: RetryData, chance: float) -> None:
    assert delay_ms(policy, 10_000, ERROR, lambda: chance) is not None


@given(policies, st.integers(1, 200))
def test_without_jitter_a_later_retry_never_waits_less(policy: RetryData, n: int) -> None:
    steady = RetryData(base_ms=policy.base_ms, factor=policy.factor, cap_ms=policy.cap_ms)
    first, second = delay_ms(steady, n, ERROR, no_chance), delay_ms(steady, n + 1, ERROR, no_chance)
    assert first is not None
    assert second is not None
    assert first <= second


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=5),
    st.integers(1, 10_000),
    st.floats(0, 1),
    chances,
)
def test_listed_waits_stay_within_their_jitter(
    delays: list[int], n: int, jitter: float, chance: float
) -> None:
    wait = delay_ms(
        RetryData(delays_ms=tuple(delays), jitter=jitter, cap_ms=1), n, ERROR, lambda: chance
    )
    listed = delays[min(n, len(delays)) - 1]
    assert wait is not None
    assert listed * (1 - jitter) - 1 <= wait <= listed * (1 + jitter) + 1
