"""Which jobs were erased, and the tombstones that are left of their events.

The list of erased jobs contains no ids, only digests with a salt of the lake. It is needed as long
as copies of erased events can arrive, from a source that still has them: a batch turns them into
tombstones too. A job with the same id that is created after the erasure is another job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobq.pipeline.fs import Files
from jobq.pipeline.tables import ERASED, EVENTS

_KEPT = ("id", "at", "tenant", "queue", "number", "shard", "arrival", "day", "hour")
"""Columns that a tombstone keeps, so that the audit finds its number and its place."""
_EMPTY = {"job": "", "name": "", "life": 0, "attempt": 0, "failures": 0, "stalls": 0}
_HIT = "_erased_ms"


class Job(msgspec.Struct, frozen=True, order=True):
    """One job of a queue."""

    tenant: str
    queue: str
    id: str


class Erasures(msgspec.Struct, frozen=True, kw_only=True):
    """The erased jobs of a lake: digest → when its erasure began, in ms."""

    salt: str
    jobs: dict[str, int] = {}
    unfinished: tuple[str, ...] = ()  # digests whose rows may still be in a table


def load(files: Files, root: str) -> Erasures:
    """Read the list of a lake. A new list has a salt of its own."""
    if text := files.read(_path(root)):
        return msgspec.json.decode(text, type=Erasures)
    return Erasures(salt=os.urandom(16).hex())


def save(files: Files, root: str, erasures: Erasures) -> None:
    """Write the list, atomically."""
    files.write(_path(root), msgspec.json.encode(erasures).decode())


def _path(root: str) -> str:
    return f"{root}/_jobq/erasures.json"


def digests(spark: SparkSession, erasures: Erasures, jobs: Iterable[Job]) -> list[str]:
    """The digests of these jobs, computed by Spark like those of events."""
    rows = [(job.tenant, job.queue, job.id) for job in jobs]
    if not rows:
        return []
    frame = spark.createDataFrame(rows, "tenant string, queue string, job string")
    return sorted({row[0] for row in frame.select(_digest(erasures.salt, _who())).collect()})


def _who() -> list[Column]:
    return [F.col(name) for name in ("tenant", "queue", "job")]


def _digest(salt: str, who: Sequence[Column]) -> Column:
    return F.sha2(F.concat_ws("\0", F.lit(salt), *who), 256)


def with_erasures(
    rows: DataFrame, erasures: Erasures, who: Sequence[Column] | None = None
) -> DataFrame:
    """The rows with a column that is not null for those of erased jobs. See `hit`.

    `who` are the tenant, the queue and the job of a row; by default, the columns of these names."""
    listed = rows.sparkSession.createDataFrame(
        list(erasures.jobs.items()), f"_digest string, {_HIT} bigint"
    )
    found = rows.withColumn("_digest", _digest(erasures.salt, who or _who()))
    return found.join(F.broadcast(listed), "_digest", "left").drop("_digest")


def hit(*, created: bool) -> Column:
    """Whether a row of `with_erasures` belongs to an erased job.

    With `created`, the row has `created_at`: a job that was created later is another job."""
    known = F.col(_HIT).isNotNull()
    return known & (F.unix_millis("created_at") <= F.col(_HIT)) if created else known


def tombstones(events: DataFrame, erasures: Erasures) -> DataFrame:
    """Events, with a tombstone in place of each event of an erased job."""
    if not erasures.jobs:
        return events
    erased = (F.col("kind") != ERASED) & hit(created=True)
    types = {field.name: field.dataType for field in EVENTS.schema}

    def without_content(name: str) -> Column:
        if name in _KEPT or name not in types:
            return F.col(name)
        empty = F.lit(_EMPTY.get(name)).cast(types[name])
        empty = {"kind": F.lit(ERASED), "created_at": F.col("at")}.get(name, empty)
        return F.when(erased, empty).otherwise(F.col(name)).alias(name)

    return with_erasures(events, erasures).select(*map(without_content, events.columns))
