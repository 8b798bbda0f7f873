"""A lake does the same in every format. `make faults` adds Delta, `make test-iceberg` Iceberg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.audit import removed
from jobq.pipeline.formats import ParquetSpace, Part
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.jobs.upkeep import compact, free, retain
from jobq.pipeline.lake import Batch, Lake
from jobq.pipeline.session import Format, packages
from jobq.pipeline.tables import EVENTS, Table
from tests.pipeline.conftest import EACH_FORMAT, History, take_in, wire_rows

DAY = 86_400  # seconds


class Broken(Exception):
    """The crash of a test."""


def jobs(lake: Lake) -> list[str]:
    return sorted(row.job for row in lake.read(EVENTS).where("kind = 'completed'").collect())


def days_on_disk(lake: Lake) -> set[str]:
    """The days of the data files of `events`, in use or not."""
    files = Path(lake.root, "events").rglob("day=*/**/*.parquet")
    return {Part.of(str(file)).day for file in files}


@pytest.fixture(params=EACH_FORMAT)
def made(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path / "lake"), format=request.param)


@pytest.mark.parametrize("format", EACH_FORMAT)
def test_a_batch_is_added_once_and_upkeep_keeps_every_event_and_frees_the_files(
    spark: SparkSession,
    tmp_path: Path,
    format: Format,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lake is opened by a path relative to this process, and later by the whole path."""
    made = Lake(spark, os.path.relpath(tmp_path / "lake"), format=format)
    history.life("a").life("b", at=60)
    take_in(made, history.lines, number=0)
    rows = wire_rows(made.spark, history.life("c", at=90).lines)

    def stop(*_: object) -> None:
        raise Broken

    monkeypatch.setattr(made, "_commit", stop)
    with pytest.raises(Broken):
        ingest(made, rows, Batch(run="test", number=1))
    monkeypatch.undo()
    lake = Lake(made.spark, made.root)
    lake.begin()
    assert jobs(lake) == ["a", "b", "c"], "the next writer finishes the batch, and adds it once"
    assert ingest(lake, rows, Batch(run="test", number=1)).events == 0
    take_in(lake, history.life("d", at=5 * DAY).lines[9:], number=2)

    small, merged = compact(lake)["events"]
    assert small > merged > 0
    assert compact(lake) == {}
    assert jobs(lake) == ["a", "b", "c", "d"]
    removed = retain(lake, keep_days=1, today=date(2025, 11, 20))
    assert removed["events"] == 1
    assert jobs(lake) == ["d"]
    free(lake, hours=0)
    assert days_on_disk(lake) == {"2025-11-20"}
    assert jobs(lake) == ["d"]
    assert (lake.state.horizon, lake.state.retiring) == ("2025-11-19", None)


def test_the_horizon_moves_when_the_old_days_are_gone(
    made: Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in(made, history.life("a").life("b", at=5 * DAY).lines)
    drop, numbers = made.space.drop, {("acme", "mail", "log", 0): ((1, 3),)}

    def stop(table: Table, parts: Sequence[Part]) -> None:
        drop(table, parts)
        raise Broken

    monkeypatch.setattr(made.space, "drop", stop)
    with pytest.raises(Broken):
        retain(made, keep_days=1, today=date(2025, 11, 20))
    monkeypatch.undo()
    lake = Lake(made.spark, made.root)
    assert (lake.state.horizon, lake.state.retiring) == (None, "2025-11-19")
    assert (removed.load(lake).before, removed.load(lake).numbers) == (None, numbers)
    retain(lake, keep_days=30, today=date(2025, 11, 20))
    assert (lake.state.horizon, lake.state.retiring) == ("2025-11-19", None)
    assert removed.load(lake).numbers == numbers, "they are known after the rows are gone"
    assert jobs(lake) == ["b"]


def test_columns_are_added_to_a_lake_of_an_older_version(made: Lake, history: History) -> None:
    take_in(made, history.life("old").lines, number=0)
    if not isinstance(made.space, ParquetSpace):
        space: Any = made.space
        name = space.name(EVENTS) if hasattr(space, "name") else f"delta.`{space.path(EVENTS)}`"
        if hasattr(space, "name"):
            made.spark.sql(f"ALTER TABLE {name} DROP COLUMN meta")
            assert "meta" not in made.spark.table(name).columns
    take_in(made, history.life("new", at=9, meta={"subject": "ann"}).lines[3:], number=1)
    found = made.read(EVENTS).where("kind = 'completed'").select("job", "meta").collect()
    assert {row.job: row.meta for row in found} == {"old": None, "new": {"subject": "ann"}}


@pytest.mark.parametrize("at", ["delete", "move"])
def test_a_crash_while_a_partition_is_replaced_loses_no_event(
    lake: Lake, history: History, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for number in range(2):
        take_in(lake, history.life(f"j{number}", at=number).lines[3 * number :], number=number)
    real = lake.files.move

    def move(source: str, target: str) -> None:
        """Die when the old folder is gone, before or after the new one has its place."""
        lake.files.delete(target)
        if at == "move":
            real(source, target)
        raise Broken

    monkeypatch.setattr(lake.files, "move", move)
    with pytest.raises(Broken):
        compact(lake)
    monkeypatch.undo()
    again = Lake(lake.spark, lake.root)
    again.begin()
    assert jobs(again) == ["j0", "j1"]
    assert compact(again) == {}


def test_a_parquet_lake_must_be_on_a_local_disk(spark: SparkSession) -> None:
    lake = Lake.__new__(Lake)
    lake.files = type("None", (), {"exists": staticmethod(lambda _: False)})()
    lake.root = "s3a://bucket/lake"
    from jobq.pipeline.lake import LakeState

    lake.state = LakeState()
    with pytest.raises(ConfigError, match="use --format delta or --format iceberg"):
        lake.check_new()
    lake.state = LakeState(format="delta")
    lake.check_new()


@pytest.mark.parametrize(("format", "says"), [("delta", "4.2"), ("iceberg", "4.1")])
def test_a_spark_without_a_connector_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, format: Format, says: str
) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    with pytest.raises(ConfigError, match=rf"no {format} connector for pyspark 4.3.0.*{says}"):
        packages(format=format)
