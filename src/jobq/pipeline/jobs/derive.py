"""Update the derived tables for hours with new events. It can be repeated after a crash."""

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
    TASK_HOUR,
    TENANT_DAY,
    WORKER_MINUTE,
    Table,
)
from jobq.pipeline.transforms.queues import (
    COUNTS,
    changes,
    last_levels,
    queue_minute,
    spans,
    steps,
    tenant_day,
)
from jobq.pipeline.transforms.runs import (
    LOOK_BACK_HOURS,
    attempts,
    errors,
    special,
    starts_found,
    starts_wanted,
    task_hour,
    worker_minute,
)
from jobq.pipeline.transforms.slo import slo


def derive(
    lake: Lake, targets: Sequence[Target], hours: Sequence[Part] | None = None
) -> list[Part]:
    """Derive all tables from `events` for these hours, by default those that are out of date.

    Returns the hours."""
    hours = lake.dirty if hours is None else hours
    if not hours:
        return []
    events = lake.read(EVENTS, hours)
    few, made = special(events).persist(), steps(events, targets).persist()
    try:
        # In parallel: small tables spend most of their time on planning and on single tasks.
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
    """Run functions in parallel threads. Raises the first error after all have ended."""
    with ThreadPoolExecutor(len(works)) as pool:
        begin: Any = inheritable_thread_target(lake.spark)
        for done in [pool.submit(begin(work)) for work in works]:
            done.result()


class _Span(NamedTuple):
    """Runs that started in one hour and ended in another, in hours since the epoch."""

    began: int
    ended: int
    irregular: bool  # some of them did not complete


def _runs(
    lake: Lake, events: DataFrame, few: DataFrame, made: DataFrame, hours: Sequence[Part]
) -> None:
    reached = [_Span(*row) for row in spans(made).collect()]
    start_hours = sorted({_hour_of(span.began) for span in reached if span.irregular})
    starts = (
        starts_found(starts_wanted(few), lake.read(EVENTS, start_hours)) if start_hours else None
    )
    lake.space.replace(ATTEMPTS, attempts(events, few, starts), hours)
    _all_at_once(
        lake,
        lambda: _workers(lake, reached, hours),
        lambda: _replace_hours(lake, TASK_HOUR, task_hour(lake.read(ATTEMPTS, hours)), hours),
    )


def _queues(lake: Lake, made: DataFrame, hours: Sequence[Part]) -> None:
    """Update `queue_minute` and `tenant_day`.

    Minutes of these hours are derived again, and other minutes of these days are kept. The levels
    of every day from the first one on are computed again, because they depend on earlier days."""
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
    # Rows without any count only mark the level at the start of a day. They are written again.
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
    """Update `worker_minute` for all hours in which runs were active that ended in these hours."""
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
    """Replace hours of a small table that is partitioned by day. Other hours are kept."""
    days = sorted({Part(hour.day) for hour in hours})
    keep = lake.read(table, days).where(f"NOT ({any_of(hours)})")
    lake.space.replace(table, rows.unionByName(keep), days)


# Arithmetic uses hours since the epoch: Spark collects timestamps in the driver's time zone.
def _number(part: Part) -> int:
    return int(datetime.fromisoformat(part.day).replace(tzinfo=UTC).timestamp()) // 3600 + (
        part.hour or 0
    )


def _hour_of(number: int) -> Part:
    at = datetime.fromtimestamp(number * 3600, UTC)
    return Part(at.date().isoformat(), at.hour)
