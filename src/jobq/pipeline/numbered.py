"""The numbers that rows have, per log, collected as ranges."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row

from jobq.pipeline import ranges
from jobq.pipeline.proof import LogKey
from jobq.pipeline.transforms import numbers

MAX_QUARANTINED = 100_000  # records in quarantine whose numbers are looked at


def log_key(row: Row) -> LogKey:
    """The log of a row that has the columns `numbers.LOG`."""
    return (row.tenant, row.queue, row.log, row.shard)


def of_events(rows: DataFrame) -> tuple[dict[LogKey, list[ranges.Range]], list[LogKey]]:
    """The numbers of each log, and the logs in which a number occurs more than once."""
    words = numbers.words(rows).persist()
    try:
        return _of_words(words)
    finally:
        words.unpersist()


def _of_words(words: DataFrame) -> tuple[dict[LogKey, list[ranges.Range]], list[LogKey]]:
    found: dict[LogKey, list[ranges.Range]] = {}
    holey, again = [], set()
    for row in numbers.buckets(words).collect():
        if row.rows > row.numbers:
            again.add(log_key(row))
        if row.numbers == row.last - row.first + 1:
            found.setdefault(log_key(row), []).append((row.first, row.last))
        else:
            holey.append((*log_key(row), row.bucket))
    if holey:
        frame = words.sparkSession.createDataFrame(
            holey, "tenant string, queue string, log string, shard int, bucket bigint"
        )
        masks: dict[LogKey, list[tuple[int, int]]] = {}
        for row in numbers.words_of(words, frame).toLocalIterator():
            masks.setdefault(log_key(row), []).append((row.word, row.mask))
        for key, words_of in masks.items():
            found.setdefault(key, []).extend(ranges.of_words(words_of))
    return {key: ranges.union(of) for key, of in found.items()}, sorted(again)


def of_quarantine(rows: DataFrame) -> dict[LogKey, list[ranges.Range]]:
    """The numbers of records in quarantine, as far as the records have them."""
    found: dict[LogKey, list[ranges.Range]] = {}
    known = rows.where("tenant IS NOT NULL AND queue IS NOT NULL AND number > 0")
    for row in known.select(*numbers.log_columns(), "number").limit(MAX_QUARANTINED).collect():
        if row.log:
            found.setdefault(log_key(row), []).append((row.number, row.number))
    return {key: ranges.union(of) for key, of in found.items()}
