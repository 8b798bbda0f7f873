"""Add one batch of a source to `events`, `marks` and `quarantine`, without duplicates."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from jobq.pipeline import erasure
from jobq.pipeline.formats import PARQUET_OPTIONS, Part
from jobq.pipeline.lake import Batch, Lake, Totals
from jobq.pipeline.tables import EVENTS, MARKS, QUARANTINE
from jobq.pipeline.transforms import dedupe, parse

LATENESS_MS = 600_000
"""Milliseconds. An event this much older than the latest event before its batch is late."""


def ingest(lake: Lake, rows: DataFrame, batch: Batch) -> Totals:
    """Add a batch of WIRE rows to the lake, once. After a crash, call it again with them."""
    finished = lake.finish()
    if lake.is_done(batch):
        again = finished is not None and (finished.run, finished.number) == (
            batch.run,
            batch.number,
        )
        return finished.totals if finished is not None and again else Totals()
    staged = lake.staging("batch")
    routed = parse.routed(rows, lake.state.arrivals + 1)
    _writer(routed).partitionBy(parse.ROUTE, "day", "hour").parquet(staged)
    new = _new_events(lake, f"{staged}/table=events")
    bad = f"{staged}/table=quarantine"
    quarantined = (
        lake.spark.read.schema(QUARANTINE.schema).parquet(bad).count()
        if lake.files.exists(bad)
        else 0
    )
    totals = Totals(
        read=new.read + quarantined,
        events=new.events,
        duplicates=new.read - new.events,
        late=new.late,
        quarantined=quarantined,
    )
    folders = {
        EVENTS.name: new.folder,
        MARKS.name: f"{staged}/table=marks",
        QUARANTINE.name: bad,
    }
    lake.publish(
        batch,
        folders,
        totals,
        hours=new.hours if new.events else (),
        marks=[Part.of(day) for day in lake.files.children(folders[MARKS.name])],
        max_at_ms=new.max_at_ms,
    )
    lake.files.delete(staged)
    return totals


class _New(NamedTuple):
    """The new events of a batch: `events` of the `read` ones are new, and in `folder`."""

    folder: str
    hours: list[Part]
    read: int = 0
    events: int = 0
    late: int = 0
    max_at_ms: int = 0


def _new_events(lake: Lake, folder: str) -> _New:
    """Compare the staged events with the stored ones.

    Events are counted here. Observing them while they are staged costs about 1 CPU s more per 1M
    rows."""
    hours = [
        Part.of(f"{day}/{hour}")
        for day in lake.files.children(folder)
        for hour in lake.files.children(f"{folder}/{day}")
    ]
    if not hours:
        return _New(folder, [])
    erased = erasure.load(lake.files, lake.root)
    known = {*lake.space.parts(EVENTS)} if lake.state.totals.events else set()
    shared = [hour for hour in hours if hour in known]
    stored = lake.read(EVENTS, shared) if shared else None
    batch = lake.spark.read.schema(EVENTS.schema).parquet(folder)
    if erased.jobs:  # a copy, or a late event, of a job that was erased
        tombs = lake.staging("tombstones")
        _writer(erasure.tombstones(batch, erased)).partitionBy("day", "hour").parquet(tombs)
        folder, batch = tombs, lake.spark.read.schema(EVENTS.schema).parquet(tombs)
    seen = dedupe.census(batch, stored, lake.state.max_at_ms - LATENESS_MS).first()
    assert seen is not None
    new = _New(folder, hours, seen["events"], seen["events"], seen["late"], seen["max_at_ms"])
    if not seen["repeated"]:
        return new
    fresh, observation = lake.staging("fresh"), Observation()
    found = dedupe.suspects(batch, stored).localCheckpoint()
    kept = dedupe.without_copies(batch, stored, found).observe(
        observation, F.count(F.lit(1)).alias("n")
    )
    _writer(kept).partitionBy("day", "hour").parquet(fresh)
    return new._replace(folder=fresh, events=int(observation.get["n"]))


def _writer(rows: DataFrame) -> Any:
    return rows.write.mode("overwrite").options(partitionOverwriteMode="static", **PARQUET_OPTIONS)
