"""Maintenance of a lake: compaction of small files, retention, and rebuilding derived tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec

from jobq.pipeline.formats import DeltaSpace, ParquetSpace, Part
from jobq.pipeline.fs import File
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import Target
from jobq.pipeline.tables import ATTEMPTS, EVENTS, MARKS, QUARANTINE, TABLES, Table

TARGET_BYTES = 128 * 1024 * 1024  # the size of a Parquet row group, and of Spark's read splits


def compact(lake: Lake, *, target: int = TARGET_BYTES) -> dict[str, tuple[int, int]]:
    """Merge small files. Returns (files before, files after) for each table that changed.

    Must not run while a `run` writes to the same Parquet lake. After a crash nothing is lost,
    because each partition is swapped as a whole. `target` is the size of the new files in bytes."""
    space = lake.space
    if isinstance(space, DeltaSpace):
        return {
            table.name: changed for table in TABLES if (changed := _optimise(lake, space, table))
        }
    assert isinstance(space, ParquetSpace)
    lake.finish()
    return {
        table.name: changed for table in TABLES if (changed := _merge(lake, space, table, target))
    }


def _merge(lake: Lake, space: ParquetSpace, table: Table, target: int) -> tuple[int, int] | None:
    before = after = 0
    for part in space.parts(table):
        files = lake.files.files(f"{space.path(table)}/{part.path()}")
        wanted = _file_count(files, target)
        if len(files) > wanted:
            space.replace(table, space.read(table, [part]).repartition(wanted), [part])
            before, after = before + len(files), after + wanted
    return (before, after) if before else None


def _file_count(files: Sequence[File], target: int) -> int:
    return max(1, -(-sum(file.size for file in files) // target))


def _optimise(lake: Lake, space: DeltaSpace, table: Table) -> tuple[int, int] | None:
    if not lake.files.exists(f"{space.path(table)}/_delta_log"):
        return None
    metrics = (
        lake.spark.sql(f"OPTIMIZE delta.`{space.path(table)}`")
        .select("metrics.numFilesRemoved", "metrics.numFilesAdded")
        .first()
    )
    return (int(metrics[0]), int(metrics[1])) if metrics and metrics[0] else None


def retain(
    lake: Lake, *, keep_days: int, today: date | None = None, all_tables: bool = False
) -> dict[str, int]:
    """Remove days older than `keep_days` from the tables of rows, or from all tables.

    Returns the number of removed partitions per table. The first kept day is stored as the lake's
    horizon, so that the audit does not miss the first events of jobs that are older."""
    first = ((today or datetime.now(UTC).date()) - timedelta(days=keep_days)).isoformat()
    tables = TABLES if all_tables else (EVENTS, ATTEMPTS, MARKS, QUARANTINE)
    removed: dict[str, int] = {}
    if any(part.day < first for part in lake.space.parts(EVENTS)):
        lake.save(
            msgspec.structs.replace(lake.state, horizon=max(first, lake.state.horizon or first))
        )
    for table in tables:
        old = [part for part in lake.space.parts(table) if part.day < first]
        lake.space.drop(table, old)
        if old:
            removed[table.name] = len(old)
    if dirty := [part for part in lake.dirty if part.day < first]:
        lake.derived(dirty)
    return removed


def rebuild(lake: Lake, targets: Sequence[Target], *, since: str | None = None) -> list[Part]:
    """Derive every hour again, or every hour since a day. Returns the hours."""
    return derive(
        lake,
        targets,
        [part for part in lake.space.parts(EVENTS) if since is None or part.day >= since],
    )
