"""The derived tables, made anew for the hours that have new events. Broken off, it starts over; repeated, it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from jobq.pipeline.formats import Part, any_of, empty
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import Target
from jobq.pipeline.tables import (
    ATTEMPTS,
    ERRORS,
    EVENTS,
    QUEUE_MINUTE,
    SLO,
    TENANT_DAY,
    WORKER_MINUTE,
    Table,
)
from jobq.pipeline.transforms.attempts import attempts, special, starts_found, starts_wanted
from jobq.pipeline.transforms.errors import errors
from jobq.pipeline.transforms.queues import (
    COUNTS,
    changes,
    last_levels,
    queue_minute,
    spans,
    steps,
    tenant_day,
)
from jobq.pipeline.transforms.slo import slo
from jobq.pipeline.transforms.workers import LOOK_BACK_HOURS, worker_minute


def derive(
    lake: Lake, targets: Sequence[Target], hours: Sequence[Part] | None = None
) -> list[Part]:
    """Bring every derived table up to date with `events` for these hours (None: those that need it); answers which it were."""
    hours = lake.dirty if hours is None else hours
    if not hours:
        return []
    events = lake.read(EVENTS, hours)
    few, made = special(events).persist(), steps(events, targets).persist()
    try:
        # Beside each other: most of the small tables' time is planning and waiting for single tasks.
        _all_at_once(
            lake,
            lambda: _runs(lake, events, few, made, hours),
            lambda: _queues(lake, made, hours),
            lambda: _replace_hours(lake, ERRORS, errors(few), hours),
            lambda: _replace_hours(
                lake, SLO, slo(made, targets) if targets else empty(lake.spark, SLO), hours
            ),
        )
    finally:
        few.unpersist()
        made.unpersist()
    lake.derived(hours)
    return list(hours)


def _all_at_once(lake: Lake, *works: Callable[[], None]) -> None:
    """Do all of them in threads that are stopped with this one; the first error is raised when all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        begin: Any = inheritable_thread_target(lake.spark)
        for done in [pool.submit(begin(work)) for work in works]:
            done.result()


class _Span(NamedTuple):
    """Runs that began and ended in these hours since the epoch. `told`: not all of them simply completed."""

    began: int
    ended: int
    told: bool


def _runs(
    lake: Lake, events: DataFrame, few: DataFrame, made: DataFrame, hours: Sequence[Part]
) -> None:
    reached = [_Span(*row) for row in spans(made).collect()]
    begun = sorted({_hour_of(span.began) for span in reached if span.told})
    starts = starts_found(starts_wanted(few), lake.read(EVENTS, begun)) if begun else None
    lake.space.replace(ATTEMPTS, attempts(events, few, starts), hours)
    _workers(lake, reached, hours)


def _queues(lake: Lake, made: DataFrame, hours: Sequence[Part]) -> None:
    """Minutes of these hours anew, the other minutes of those days as they are, and the levels of every day from the first on."""
    first = min(hour.day for hour in hours)
    known = lake.space.parts(QUEUE_MINUTE)
    days = sorted(
        {Part(hour.day) for hour in hours} | {part for part in known if part.day >= first}
    )
    earlier = [part for part in known if part.day < first]
    keep = lake.read(QUEUE_MINUTE, [day for day in days if day in known])
    stale = " OR ".join(
        f"(day = DATE'{hour.day}' AND hour(minute) = {hour.hour})" for hour in hours
    )
    # Rows in which nothing happened are only marks of the level at the start of a day; they are made again.
    happened = " OR ".join(f"{name} <> 0" for name in COUNTS)
    keep = keep.where(f"NOT ({stale}) AND ({happened})")
    minutes = changes(made).unionByName(keep.drop("waiting", "held", "day")).persist()
    before = last_levels(lake.read(QUEUE_MINUTE, earlier[-1:]))
    wanted = lake.spark.sql(
        "SELECT * FROM VALUES " + ", ".join(f"(DATE'{day.day}')" for day in days) + " AS days(day)"
    )
    try:
        lake.space.replace(QUEUE_MINUTE, queue_minute(minutes, before, wanted), days)
    finally:
        minutes.unpersist()
    lake.space.replace(TENANT_DAY, tenant_day(lake.read(QUEUE_MINUTE, days)), days)


def _workers(lake: Lake, reached: Sequence[_Span], hours: Sequence[Part]) -> None:
    """The hours that runs ended in these hours reach back to, from all runs that touch them."""
    touched = {
        _hour_of(n) for a, b, _ in reached for n in range(max(a, b - LOOK_BACK_HOURS), b + 1)
    } | {*hours}
    near = {
        _hour_of(n)
        for part in touched
        for n in range(_number(part), _number(part) + LOOK_BACK_HOURS + 1)
    }
    rows = worker_minute(lake.read(ATTEMPTS, sorted(near))).where(any_of(sorted(touched)))
    _replace_hours(lake, WORKER_MINUTE, rows, sorted(touched))


def _replace_hours(lake: Lake, table: Table, rows: DataFrame, hours: Sequence[Part]) -> None:
    """Hours of a small table that is partitioned by day: the day's other hours are written again as they are."""
    days = sorted({Part(hour.day) for hour in hours})
    keep = lake.read(table, days).where(f"NOT ({any_of(hours)})")
    lake.space.replace(table, rows.unionByName(keep), days)


# Hours are counted since the epoch where arithmetic is done on them: a collected timestamp would come in the driver's zone.
def _number(part: Part) -> int:
    return int(datetime.fromisoformat(part.day).replace(tzinfo=UTC).timestamp()) // 3600 + (
        part.hour or 0
    )


def _hour_of(number: int) -> Part:
    at = datetime.fromtimestamp(number * 3600, UTC)
    return Part(at.date().isoformat(), at.hour)
