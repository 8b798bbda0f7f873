"""Which of a batch's events are new.

An event's id and time never change, so its copies always fall in the same hour: comparing with that hour of the lake is
enough, however late a copy comes, and no state has to be kept between batches. Copies are rare (a relay that was
restarted sends a few again), so ids are first compared as 64-bit hashes, and only what shares a hash is looked at.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_HASH = "h"


def suspects(batch: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Hashes of the batch's ids that occur more than once in it and the stored events together."""
    hashes, repeated = batch.select(F.xxhash64("id").alias(_HASH)), F.col("n") > 1
    measures = [F.count(F.lit(1)).alias("n")]
    if stored is not None:
        known = stored.select(F.xxhash64("id").alias(_HASH), F.lit(False).alias("new"))
        hashes = hashes.withColumn("new", F.lit(True)).unionByName(known)
        measures, repeated = [*measures, F.max("new").alias("new")], repeated & F.col("new")
    # Nearly all differ, so counting before the shuffle as well, as Spark would, only costs: 16.5 against 12.7 CPU s for 10M.
    return hashes.repartition(_HASH).groupBy(_HASH).agg(*measures).where(repeated).select(_HASH)


def without_copies(batch: DataFrame, stored: DataFrame | None, found: DataFrame) -> DataFrame:
    """The batch less the events stored already and all but one of each id. `found` is what `suspects` answered."""
    hashed = batch.withColumn(_HASH, F.xxhash64("id"))
    doubtful = hashed.join(found, _HASH, "left_semi").dropDuplicates(["id"])
    if stored is not None:
        doubtful = doubtful.join(stored.select("id"), "id", "left_anti")
    fresh = hashed.join(found, _HASH, "left_anti")
    return fresh.unionByName(doubtful).select(*batch.columns)
