"""Find the events of a batch that are new.

An event's id and time never change, so all copies of an event belong to the same hour. It is enough
to compare a batch with the stored events of its hours, no matter how late a copy arrives, and no
state is kept between batches. Copies are rare: a restarted relay sends a few events again. So ids
are first compared as 64-bit hashes (`census`), and by id only if their hashes are equal.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_HASH = "h"
_BUCKETS = 1024  # groups of hashes: a power of two, because the bucket is a bit mask


def census(batch: DataFrame, stored: DataFrame | None, watermark_ms: int) -> DataFrame:
    """Count the batch, in one row.

    The columns are the number of `events`, how many of them are `late`, the time of the latest
    (`max_at_ms`), and whether a hash is `repeated` in the batch or in the stored events.

    Hashes are collected in buckets and compared there. Grouping by hash would create a group for
    nearly every event, and took 3.3 CPU s for 3M events instead of 1.3."""
    none = F.lit(None).cast("bigint")
    rows = batch.select(
        F.xxhash64("id").alias("new"), none.alias("known"), F.unix_millis("at").alias("at_ms")
    )
    gathered, repeated = ["new"], F.size(F.array_distinct("new")) < F.size("new")
    if stored is not None:
        rows = rows.unionByName(
            stored.select(none.alias("new"), F.xxhash64("id").alias("known"), none.alias("at_ms"))
        )
        gathered, repeated = ["new", "known"], repeated | F.arrays_overlap("new", "known")
    bucket = F.coalesce("new", "known").bitwiseAND(_BUCKETS - 1)
    buckets = rows.groupBy(bucket.alias("bucket")).agg(
        *(F.collect_list(name).alias(name) for name in gathered),
        F.count_if(F.col("at_ms") < watermark_ms).alias("late"),
        F.max("at_ms").alias("at_ms"),
    )
    return buckets.agg(
        F.sum(F.size("new")).alias("events"),
        F.sum("late").alias("late"),
        F.max("at_ms").alias("max_at_ms"),
        F.bool_or(repeated).alias("repeated"),
    )


def suspects(batch: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Hashes of ids that occur more than once in the batch and the stored events together."""
    hashes, repeated = batch.select(F.xxhash64("id").alias(_HASH)), F.col("n") > 1
    measures = [F.count(F.lit(1)).alias("n")]
    if stored is not None:
        known = stored.select(F.xxhash64("id").alias(_HASH), F.lit(False).alias("new"))
        hashes = hashes.withColumn("new", F.lit(True)).unionByName(known)
        measures, repeated = [*measures, F.max("new").alias("new")], repeated & F.col("new")
    # Repartition first: Spark would also count before the shuffle, which is wasted because nearly
    # all hashes differ (10M events: 16.5 instead of 12.7 CPU s).
    return hashes.repartition(_HASH).groupBy(_HASH).agg(*measures).where(repeated).select(_HASH)


def without_copies(batch: DataFrame, stored: DataFrame | None, found: DataFrame) -> DataFrame:
    """The batch without stored events, and with one event per id. `found` comes from `suspects`."""
    hashed = batch.withColumn(_HASH, F.xxhash64("id"))
    doubtful = hashed.join(found, _HASH, "left_semi").dropDuplicates(["id"])
    if stored is not None:
        doubtful = doubtful.join(stored.select("id"), "id", "left_anti")
    fresh = hashed.join(found, _HASH, "left_anti")
    return fresh.unionByName(doubtful).select(*batch.columns)
