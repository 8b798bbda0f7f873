"""When schedules fire, and what becomes of times that have passed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import CatchUp, Fire, ScheduleRecord, ScheduleSpec
from jobq.core.rules.cron import GRACE_MS, after_end, first_time, next_after, plan

QUEUE = QueueName("t", "q")
TEMPLATE = JobSpec(queue=QUEUE, id="", name="digest", payload=b"[[],{}]")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_900_000_000_000  # no multiple of anything that matters


def every(interval: int, **more: Any) -> ScheduleSpec:
    return ScheduleSpec(queue=QUEUE, id="s", template=TEMPLATE, every_ms=interval, **more)


def cron(expression: str, **more: Any) -> ScheduleSpec:
    return ScheduleSpec(queue=QUEUE, id="s", template=TEMPLATE, cron=expression, **more)


def record(spec: ScheduleSpec, next_ms: int | None, **more: Any) -> ScheduleRecord:
    return ScheduleRecord(spec=spec, next_ms=next_ms, **more)


def made(fires: list[Fire]) -> list[int]:
    return [fire.at_ms for fire in fires if not fire.skipped]


# ── the first and the next ────────────────────────────────────────────────────────────────────────


def test_every_begins_one_interval_from_now() -> None:
    assert first_time(every(5000), NOW) == NOW + 5000


def test_a_start_to_come_is_the_first_time() -> None:
    assert first_time(every(5000, start_ms=NOW + 3), NOW) == NOW + 3
    assert first_time(every(5000, start_ms=NOW), NOW) == NOW


def test_a_start_in_the_past_only_sets_the_grid() -> None:
    assert first_time(every(5000, start_ms=NOW - 12_000), NOW) == NOW + 3000


def test_cron_begins_after_now_and_not_before_its_start() -> None:
    midnight = NOW // DAY * DAY
    assert first_time(cron("0 0 * * *"), NOW) == midnight + DAY
    assert first_time(cron("0 0 * * *", start_ms=midnight + 3 * DAY), NOW) == midnight + 3 * DAY
    assert first_time(cron("0 0 * * *", start_ms=midnight + 3 * DAY + 1), NOW) == midnight + 4 * DAY


def test_nothing_comes_after_the_end() -> None:
    assert first_time(every(5000, end_ms=NOW + 4999), NOW) is None
    assert first_time(every(5000, end_ms=NOW + 5000), NOW) == NOW + 5000
    assert next_after(cron("* * * * *", end_ms=NOW), NOW) is None


def test_the_next_time_lies_on_the_grid_of_the_start() -> None:
    assert next_after(every(5000, start_ms=1000), 12_345) == 16_000
    assert next_after(every(5000), 12_345, anchor_ms=2) == 15_002
    assert next_after(every(5000), 12_345) == 17_345
    assert next_after(every(5000, start_ms=50_000), 12_345) == 50_000


# ── plans ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_due_fires_and_moves_on_without_drift() -> None:
    (fire,) = plan(record(every(HOUR), NOW), NOW + 7)  # a tick that came late
    assert (fire.at_ms, fire.next_ms, fire.skipped) == (NOW, NOW + HOUR, False)
    assert (fire.queue, fire.schedule) == (QUEUE, "s")


@pytest.mark.parametrize("next_ms", [None, NOW + 1])
def test_what_is_not_due_does_not_fire(next_ms: int | None) -> None:
    assert plan(record(every(HOUR), next_ms), NOW) == []


def test_a_paused_schedule_does_not_fire() -> None:
    assert plan(record(every(HOUR), NOW, paused=True), NOW) == []


def test_skip_lets_missed_times_go() -> None:
    (fire,) = plan(
        record(cron("0 * * * *"), NOW // HOUR * HOUR - 3 * HOUR), NOW // HOUR * HOUR + 2 * MINUTE
    )
    assert fire.skipped
    assert fire.missed
    assert fire.next_ms == NOW // HOUR * HOUR + HOUR


def test_skip_still_fires_the_last_one_while_it_counts_as_on_time() -> None:
    hour = NOW // HOUR * HOUR
    fires = plan(record(cron("0 * * * *"), hour - 3 * HOUR), hour + GRACE_MS)
    assert [(fire.at_ms, fire.next_ms, fire.skipped) for fire in fires] == [
        (hour - 3 * HOUR, hour, True),
        (hour, hour + HOUR, False),
    ]


def test_one_fires_only_the_last_of_the_missed_times_however_old() -> None:
    spec = every(HOUR, catch_up="one")
    fires = plan(record(spec, NOW - 5 * HOUR - 1), NOW + 30 * MINUTE)
    assert made(fires) == [NOW - 1]
    assert fires[-1].next_ms == NOW - 1 + HOUR


@pytest.mark.parametrize("catch_up", ["skip", "one"])
def test_a_time_is_missed_if_it_is_skipped_and_no_longer_counts_as_on_time(catch_up: str) -> None:
    spec = every(1000, catch_up=catch_up)
    for late_ms, missed in ((GRACE_MS, False), (GRACE_MS + 1, True)):
        skip, fire = plan(record(spec, NOW - late_ms), NOW)
        assert (skip.skipped, skip.missed) == (True, missed)
        assert (fire.skipped, fire.missed) == (False, False)


def test_a_time_that_fires_late_is_not_missed() -> None:
    for spec in (every(HOUR, catch_up="one"), every(HOUR, catch_up="all")):
        assert [fire.missed for fire in plan(record(spec, NOW - HOUR // 2), NOW)] == [False]


def test_all_fires_each_of_them_in_bounded_passes() -> None:
    spec = every(HOUR, catch_up="all")
    first = plan(record(spec, NOW - 4 * HOUR), NOW, max_fires=3)
    assert made(first) == [NOW - 4 * HOUR, NOW - 3 * HOUR, NOW - 2 * HOUR]
    rest = plan(record(spec, first[-1].next_ms), NOW, max_fires=3)
    assert made(rest) == [NOW - HOUR, NOW]
    assert rest[-1].next_ms == NOW + HOUR


def test_a_limit_ends_the_schedule() -> None:
    spec = every(HOUR, catch_up="all", limit=5)
    fires = plan(record(spec, NOW - 9 * HOUR, fired=3), NOW)
    assert made(fires) == [NOW - 9 * HOUR, NOW - 8 * HOUR]
    assert fires[-1].next_ms is None
    (last,) = plan(record(every(HOUR, limit=1), NOW), NOW)
    assert last.next_ms is None


def test_the_end_ends_the_schedule() -> None:
    (fire,) = plan(record(every(HOUR, end_ms=NOW + HOUR - 1), NOW), NOW)
    assert fire.next_ms is None
    fires = plan(record(every(HOUR, end_ms=NOW - HOUR, catch_up="one"), NOW - 2 * HOUR), NOW)
    assert made(fires) == [NOW - HOUR]
    assert fires[-1].next_ms is None


def test_after_complete_waits_for_its_job_to_end() -> None:
    spec = every(HOUR, after_complete=True)
    (fire,) = plan(record(spec, NOW - DAY), NOW)  # late rather than not: it has only this one time
    assert (fire.at_ms, fire.next_ms, fire.skipped) == (NOW - DAY, None, False)
    assert after_end(record(spec, None, fired=1), NOW + 17) == NOW + 17 + HOUR


def test_after_complete_ends_by_limit_and_by_end() -> None:
    assert after_end(record(every(HOUR, after_complete=True, limit=1), None, fired=1), NOW) is None
    assert (
        after_end(record(every(HOUR, after_complete=True, end_ms=NOW + 1), None, fired=1), NOW)
        is None
    )
    assert after_end(record(every(HOUR), None), NOW) is None


def test_a_month_of_missed_seconds_costs_two_fires() -> None:
    fires = plan(record(cron("* * * * * *", catch_up="one"), NOW - 30 * DAY), NOW)
    assert [fire.skipped for fire in fires] == [True, False]
    assert made(fires) == [NOW // 1000 * 1000]


specs = st.one_of(
    st.builds(
        every,
        st.integers(1, DAY),
        catch_up=st.sampled_from(["skip", "one", "all"]),
        limit=st.none() | st.integers(1, 5),
    ),
    st.builds(
        cron,
        st.sampled_from(
            [
                "* * * * *",
                "*/7 * * * *",
                "30 2 * * *",
                "0 0 1 * *",
                "0 9-17 * * 1-5",
                "*/20 * * * * *",
            ]
        ),
        tz=st.sampled_from(["UTC", "Europe/Zurich", "Australia/Lord_Howe"]),
        catch_up=st.sampled_from(["skip", "one", "all"]),
        limit=st.none() | st.integers(1, 5),
    ),
)


@given(specs, st.integers(NOW, NOW + 400 * DAY), st.integers(0, 3 * DAY))
def test_fires_follow_each_other_and_leave_nothing_due_behind(
    spec: ScheduleSpec, made_ms: int, late: int
) -> None:
    due = first_time(spec, made_ms)
    assert due is not None
    now = due + late
    fires = plan(record(spec, due), now, max_fires=50)
    assert fires
    assert fires[0].at_ms == due
    for fire, following in pairwise(fires):
        assert fire.next_ms == following.at_ms
        assert fire.at_ms < following.at_ms
    assert all(fire.at_ms <= now for fire in fires)
    last = fires[-1].next_ms
    assert last is None or last > now or len(fires) == 50
    if spec.limit is not None:
        assert len(made(fires)) <= spec.limit


@given(specs, st.integers(NOW, NOW + 400 * DAY), st.lists(st.integers(0, 2 * HOUR), max_size=20))
def test_ticks_that_come_late_shift_nothing(
    spec: ScheduleSpec, made_ms: int, lates: list[int]
) -> None:
    due = first_time(spec, made_ms)
    for late in lates:
        if due is None:
            return
        for fire in plan(record(spec, due), due + late):
            if spec.cron is not None:
                assert next_after(spec, fire.at_ms - 1) == fire.at_ms
            elif spec.every_ms is not None:
                assert (fire.at_ms - made_ms) % spec.every_ms == 0
            due = fire.next_ms


@settings(max_examples=50)
@given(specs, st.integers(NOW, NOW + 400 * DAY), st.integers(0, DAY))
def test_the_policies_agree_on_the_last_time(spec: ScheduleSpec, made_ms: int, late: int) -> None:
    due = first_time(spec, made_ms)
    assert due is not None
    unlimited = msgspec.structs.replace(spec, limit=None)

    def fires(catch_up: CatchUp) -> list[Fire]:
        return plan(
            record(msgspec.structs.replace(unlimited, catch_up=catch_up), due),
            due + late,
            max_fires=10**6,
        )

    if spec.every_ms is not None and spec.every_ms < 1000:  # a day of milliseconds is a long list
        return
    assert made(fires("one")) == made(fires("all"))[-1:]
    assert made(fires("skip")) in ([], made(fires("one")))
