"""The store's time is what core/rules/clock.py says, however the clock is moved."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from jobq_conformance.examples import examples
from jobq_conformance.kit import HOUR, MINUTE, SECOND, Desk
from tests.rules.kit import StoreTime, Table

moves = st.sampled_from(
    [1, 999, SECOND, MINUTE, 11 * MINUTE, 2 * HOUR, -1, -999, -SECOND, -MINUTE, -HOUR, -25 * HOUR]
)


@examples(40)
@given(script=st.lists(moves, min_size=1, max_size=20))
@example([-HOUR, MINUTE, 11 * MINUTE, 2 * HOUR, MINUTE])
@example([-HOUR, MINUTE, -HOUR, MINUTE, -1])
def test_the_time_of_a_store_is_what_core_says(table: Table, script: list[int]) -> None:
    async def play(q: Desk) -> None:
        time = StoreTime(q.clock)
        for n, ms in enumerate([0, *script]):
            q.clock.advance(ms)
            await q.put(f"j{n}")
            now = time.now()
            assert (await q.get(f"j{n}")).created_ms == now

    table.play(play)


@examples(40)
@given(
    delay=st.sampled_from([SECOND, 15 * SECOND, 10 * MINUTE, HOUR]),
    script=st.lists(moves, min_size=1, max_size=20),
)
def test_a_delay_ends_at_the_stores_time(table: Table, delay: int, script: list[int]) -> None:
    async def play(q: Desk) -> None:
        time = StoreTime(q.clock)
        due = time.now() + delay
        await q.put_one("a", delay_ms=delay)
        for ms in script:
            q.clock.advance(ms)
            now = time.now()
            leases = await q.claim(lease_ms=10_000 * HOUR)
            if leases or now >= due:
                assert (bool(leases), now >= due) == (True, True)
                return

    table.play(play)
