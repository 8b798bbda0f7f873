"""Maintenance of a lake: compaction, retention, unused files, and rebuilding derived tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec

from jobq.pipeline.audit import removed
from jobq.pipeline.formats import Part
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import Target
from jobq.pipeline.tables import ATTEMPTS, EVENTS, MARKS, QUARANTINE, TABLES

TARGET_BYTES = 128 * 1024 * 1024  # the size of a Parquet row group, and of Spark's read splits


def compact(lake: Lake, *, target: int = TARGET_BYTES) -> dict[str, tuple[int, int]]:
    """Merge small files. Returns (files before, files after) for each table that changed.

    Must not run while a `run` writes to the same lake, except to a Delta lake. `target` is the size
    of the new files in bytes. After a crash nothing is lost: the next writer finishes the swap of a
    Parquet partition, and the other formats change a table in one transaction."""
    return {
        table.name: changed for table in TABLES if (changed := lake.space.compact(table, target))
    }


def free(lake: Lake, *, hours: float) -> None:
    """Delete files that no table has used for this many hours (Delta and Iceberg)."""
    for table in TABLES:
        lake.space.free(table, hours)


def retain(
    lake: Lake, *, keep_days: int, today: date | None = None, all_tables: bool = False
) -> dict[str, int]:
    """Remove days older than `keep_days` from the tables of rows, or from all tables.

    Returns the number of removed partitions per table. The first kept day is stored as the lake's
    horizon, so that the audit does not miss the first events of jobs that are older; the numbers of
    the removed events are stored too. The horizon moves when all partitions are gone. Until then
    the state has the day as `retiring`, and the next call finishes a removal that a crash has
    interrupted."""
    first = ((today or datetime.now(UTC).date()) - timedelta(days=keep_days)).isoformat()
    first = max(first, lake.state.retiring or first)
    tables = TABLES if all_tables else (EVENTS, ATTEMPTS, MARKS, QUARANTINE)
    old = {
        table: parts
        for table in tables
        if (parts := [part for part in lake.space.parts(table) if part.day < first])
    }
    if not old and lake.state.retiring is None:
        return {}
    before = lake.state.removed
    name = removed.record(lake, old.get(EVENTS, ()), old.get(QUARANTINE, ()))
    lake.save(msgspec.structs.replace(lake.state, retiring=first, removed=name))
    for table, parts in old.items():
        lake.space.drop(table, parts)
    lake.derived([part for part in lake.dirty if part.day < first])
    horizon = max(first, lake.state.horizon or first)
    lake.save(msgspec.structs.replace(lake.state, horizon=horizon, retiring=None))
    removed.sweep(lake, before)
    return {table.name: len(parts) for table, parts in old.items()}


def rebuild(lake: Lake, targets: Sequence[Target], *, since: str | None = None) -> list[Part]:
    """Derive every hour again, or every hour since a day. Returns the hours."""
    return derive(
        lake,
        targets,
        [part for part in lake.space.parts(EVENTS) if since is None or part.day >= since],
    )
