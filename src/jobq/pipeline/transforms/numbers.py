"""Which numbers of each log are there, from a scan of three columns.

Numbers are collected as words of 64 bits, and words in buckets. A bucket without holes and
repetitions is one row of the result, so the driver gets about one row per 32,768 events."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.core.records.wire import GAP

LOG = ("tenant", "queue", "log", "shard")
_WORDS = 512  # words per bucket


def log_columns() -> list[Column]:
    """The key of the log of an event."""
    log = F.substring_index("id", "-", 1).alias("log")
    return [F.col("tenant"), F.col("queue"), log, F.coalesce("shard", F.lit(0)).alias("shard")]


def _numbered(events: DataFrame) -> DataFrame:
    return events.where((F.col("number") > 0) & (F.col("kind") != GAP))


def words(events: DataFrame) -> DataFrame:
    """The numbers of each log, 64 per row: a bit mask, and how many events the row stands for.

    Without gaps, which have the number of a dropped event."""
    number = F.col("number")
    numbered = _numbered(events).select(*log_columns(), "number")
    return numbered.groupBy(*LOG, F.expr("number div 64").alias("word")).agg(
        F.bit_or(F.expr("shiftleft(1L, int(number % 64))")).alias("mask"),
        F.count(F.lit(1)).alias("rows"),
        F.min(number).alias("first"),
        F.max(number).alias("last"),
    )


def buckets(words: DataFrame) -> DataFrame:
    """The words in buckets: first and last number, how many events, and how many numbers."""
    return words.groupBy(*LOG, F.expr(f"word div {_WORDS}").alias("bucket")).agg(
        F.sum("rows").alias("rows"),
        F.sum(F.bit_count("mask")).alias("numbers"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    )


def words_of(words: DataFrame, holey: DataFrame) -> DataFrame:
    """The words of some buckets, to look at their holes."""
    keyed = words.withColumn("bucket", F.expr(f"word div {_WORDS}"))
    return keyed.join(F.broadcast(holey), [*LOG, "bucket"], "left_semi").select(
        *LOG, "word", "mask"
    )


def repeated(events: DataFrame, where: DataFrame) -> DataFrame:
    """Numbers of more than one event, in these logs."""
    rows = _numbered(events).select(*log_columns(), "number", "id", "job", "kind")
    rows = rows.join(F.broadcast(where), list(LOG), "left_semi")
    same = rows.groupBy(*LOG, "number").agg(
        F.count(F.lit(1)).alias("rows"),
        F.slice(F.sort_array(F.collect_list(F.struct("id", "kind", "job"))), 1, 3).alias("events"),
    )
    return same.where(F.col("rows") > 1)


def highest_marks(marks: DataFrame) -> DataFrame:
    """The highest mark of each log in each partition."""
    return marks.groupBy(*LOG, "partitions", "partition").agg(F.max("number").alias("number"))
