"""The derived tables are correct, and do not depend on how events are split into batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from jobq.errors import ConfigError
from jobq.pipeline import synthetic
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.jobs.upkeep import compact, rebuild
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import DEFAULTS, Target, load_targets
from jobq.pipeline.tables import (
    ATTEMPTS,
    ERRORS,
    EVENTS,
    QUEUE_MINUTE,
    SLO,
    TABLES,
    TASK_HOUR,
    TENANT_DAY,
    WORKER_MINUTE,
    Table,
)
from tests.pipeline.conftest import History, take_in


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Some columns of a table, sorted."""
    return sorted(map(tuple, frame.selectExpr(*columns).collect()), key=str)


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with one small day and its derived tables."""
    h = History()
    h.life("a", at=10, wait=1, run=2)
    h.life("b", at=30, wait=3, run=40)  # from 0:33 to 1:13: two minutes
    h.event("accepted", "c", "waiting", at=50).event("started", "c", "active", at=61, worker="w-2")
    h.event(
        "retried",
        "c",
        "delayed",
        at=62,
        worker="w-2",
        reason="error",
        error="KeyError: 'x'",
        fingerprint="f1",
        due_ms=h.START + 64_000,
    )
    h.event("promoted", "c", "waiting", at=64, due_ms=h.START + 64_000)
    h.event("started", "c", "active", at=65, worker="w-3", due_ms=h.START + 64_000)
    h.event(
        "stalled", "c", "waiting", at=80, worker="w-1", reason="stalled"
    )  # the worker that noticed, not the one that ran it
    h.event("accepted", "d", "delayed", at=90)
    h.life("e", at=3 * 3600 - 10, wait=5, run=10)  # ends in the next hour
    lake = Lake(spark, str(tmp_path_factory.mktemp("made") / "lake"))
    take_in(lake, h.lines)
    derive(lake, (*DEFAULTS, Target(name="quick", queue="mail", run_within="3s", objective=0.5)))
    return lake


def test_a_run_is_joined_with_its_own_start_after_a_purge(lake: Lake) -> None:
    """Two jobs of one id, one after the other, both in life 0, in one millisecond."""
    h = History()
    for worker, due in (("w-1", 1), ("w-2", 2), ("w-3", 3)):
        job: dict[str, Any] = {
            "worker": worker,
            "due_ms": h.START + due,
            "attempt": 1,
            "life": 0,
            "failures": 0,
        }
        h.event("accepted", "a", "waiting", at=9, life=0, attempt=0, failures=0)
        h.event("started", "a", "active", at=9, **job)
        h.event("snoozed", "a", "waiting", at=9, **{**job, "due_ms": h.START + 70_000})
        h.event("cancelled", "a", "cancelled", at=9, **job)
    take_in(lake, h.lines)
    derive(lake, ())
    ran = lake.read(ATTEMPTS).where("outcome = 'snoozed'")
    assert rows(ran, "worker", "unix_millis(due_at)") == [
        ("w-1", h.START + 1), ("w-2", h.START + 2), ("w-3", h.START + 3)
    ]  # fmt: skip


def test_every_table_has_its_declared_schema(made: Lake) -> None:
    for table in TABLES:
        assert made.read(table).schema == table.schema, table.name


def test_an_attempt_is_a_run_that_ended(made: Lake) -> None:
    assert rows(
        made.read(ATTEMPTS),
        "job",
        "attempt",
        "worker",
        "outcome",
        "wait_ms",
        "run_ms",
        "fingerprint",
    ) == [
        ("a", 1, "w-1", "completed", 1000, 2000, None),
        ("b", 1, "w-1", "completed", 3000, 40_000, None),
        ("c", 1, "w-2", "retried", 11_000, 1000, "f1"),
        ("c", 2, "w-3", "stalled", 1000, 15_000, None),
        ("e", 1, "w-1", "completed", 5000, 10_000, None),
    ]


def test_a_minute_has_rates_percentiles_and_the_backlog_at_its_end(made: Lake) -> None:
    found = made.read(QUEUE_MINUTE).where("hour(minute) = 0")
    columns = (
        "minute(minute)",
        "accepted",
        "started",
        "completed",
        "retried",
        "stalled",
        "wait_p50",
        "run_p99",
        "waiting",
        "held",
    )
    assert rows(found, *columns) == [
        (0, 3, 2, 1, 0, 0, 1000.0, 2000.0, 1, 2),
        (1, 1, 2, 1, 1, 1, 1000.0, 40_000.0, 1, 2),
    ]


def test_the_usage_of_a_day_is_summed_up(made: Lake) -> None:
    columns = ("tenant", "queue", "accepted", "started", "completed", "retried", "run_ms", "held")
    assert rows(made.read(TENANT_DAY), *columns) == [("acme", "mail", 5, 5, 3, 1, 68_000, 2)]


def test_a_worker_is_busy_in_every_minute_its_runs_touch(made: Lake) -> None:
    found = made.read(WORKER_MINUTE).where("worker = 'w-1'")
    assert rows(found, "hour", "minute(minute)", "runs", "busy_ms", "covered_ms") == [
        (0, 0, 2, 29_000, 29_000),
        (0, 1, 1, 13_000, 13_000),
        (2, 59, 1, 5_000, 5_000),
        (3, 0, 1, 5_000, 5_000),
    ]
    assert rows(made.read(WORKER_MINUTE).where("worker = 'w-3'"), "busy_ms") == [(15_000,)]


def test_errors_are_grouped_by_cause_with_an_example(made: Lake) -> None:
    assert rows(
        made.read(ERRORS),
        "name",
        "reason",
        "fingerprint",
        "count",
        "final",
        "example",
        "example_job",
    ) == [("send", "error", "f1", 1, 0, "KeyError: 'x'", "c")]


def test_attainment_is_counted_against_each_target(made: Lake) -> None:
    assert rows(made.read(SLO).where("hour = 0"), "target", "good", "total", "met") == [
        ("quick", 1, 2, True),
        ("starts within 5 s", 3, 4, False),
        ("succeeds", 2, 2, True),
    ]


def contents(lake: Lake, table: Table) -> list[Any]:
    """The rows of a table without `arrival`, which is the batch that an event came with."""
    return rows(lake.read(table), *(name for name in table.columns if name != "arrival"))


def test_several_batches_give_the_same_tables_as_one(spark: Any, tmp_path: Path) -> None:
    lines: list[Any] = list(
        synthetic.lines(synthetic.Plan(jobs=400, start_ms=History.START + 23 * 3_600_000, hours=2))
    )  # over midnight
    late = [line for n, line in enumerate(lines) if n % 7 == 0]
    once, bits = Lake(spark, str(tmp_path / "once")), Lake(spark, str(tmp_path / "bits"))
    take_in(once, lines)
    derive(once, DEFAULTS)
    third = len(lines) // 3
    for number, part in enumerate((lines[third:], [*lines[:third], *late, *late])):
        take_in(bits, part, number)
        derive(bits, DEFAULTS)
    assert bits.state.totals.duplicates == 2 * len(late)
    for table in (EVENTS, ATTEMPTS, QUEUE_MINUTE, TENANT_DAY, WORKER_MINUTE, TASK_HOUR, SLO):
        assert contents(bits, table) == contents(once, table), table.name
    assert derive(bits, DEFAULTS) == []
    assert compact(bits)["events"][0] > compact(bits).get("events", (0, 0))[0]
    assert rebuild(bits, DEFAULTS, since="2025-11-16")
    for table in (EVENTS, ATTEMPTS, TENANT_DAY):
        assert contents(bits, table) == contents(once, table), table.name


def test_without_targets_the_table_slo_is_empty(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a").lines)
    assert derive(lake, ())
    assert rows(lake.read(SLO), *SLO.columns) == []


def test_a_target_without_a_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text("targets:\n  - {name: odd, objective: 0.9}\n")
    with pytest.raises(ConfigError, match="must have exactly one of start_within"):
        load_targets(str(file))
    file.write_text(
        "targets:\n  - {name: fast, queue: mail, start_within: 250ms, objective: 0.9}\n"
    )
    assert load_targets(str(file))[0].within_ms == 250
    file.write_text("targets:\n  - {name: fast, start_within: soon, objective: 0.9}\n")
    with pytest.raises(ConfigError, match="not a duration"):
        load_targets(str(file))
