"""Which numbers rows have, and which ones retention has removed: the audit excuses exactly these.

    LAKE/_jobq/removed/NAME.json   the numbers of each log that retention has removed so far

The lake's state names the file. `retention` writes a new file before it removes anything, and names
it together with the day up to which it removes.

Versions before this one stored only the day. What they removed is known by time alone
(`proof.kept_from`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from jobq.core.records.wire import GAP
from jobq.pipeline.audit import number_sets
from jobq.pipeline.audit.number_sets import Range, Ranges
from jobq.pipeline.audit.proof import MAX_RANGES, LogKey, Proof
from jobq.pipeline.formats import Part
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS, QUARANTINE
from jobq.pipeline.transforms import numbers

# The numbers that rows have, per log, collected as ranges.

MAX_QUARANTINED = 100_000  # records in quarantine whose numbers are looked at


def log_key(row: Row) -> LogKey:
    """The log of a row that has the columns `numbers.LOG`."""
    return (row.tenant, row.queue, row.log, row.shard)


def numbers_of_events(
    rows: DataFrame,
) -> tuple[dict[LogKey, list[number_sets.Range]], list[LogKey]]:
    """The numbers of each log, and the logs in which a number occurs more than once."""
    words = numbers.words(rows).persist()
    try:
        return _of_words(words)
    finally:
        words.unpersist()


def _of_words(words: DataFrame) -> tuple[dict[LogKey, list[number_sets.Range]], list[LogKey]]:
    found: dict[LogKey, list[number_sets.Range]] = {}
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
            found.setdefault(key, []).extend(number_sets.of_words(words_of))
    return {key: number_sets.union(of) for key, of in found.items()}, sorted(again)


def numbers_of_quarantine(rows: DataFrame) -> dict[LogKey, list[number_sets.Range]]:
    """The numbers of records in quarantine, as far as the records have them."""
    found: dict[LogKey, list[number_sets.Range]] = {}
    known = rows.where("tenant IS NOT NULL AND queue IS NOT NULL AND number > 0")
    for row in known.select(*numbers.log_columns(), "number").limit(MAX_QUARANTINED).collect():
        if row.log:
            found.setdefault(log_key(row), []).append((row.number, row.number))
    return {key: number_sets.union(of) for key, of in found.items()}


class RemovedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed of one shard of a log."""

    tenant: str
    queue: str
    log: str
    shard: int
    numbers: tuple[Range, ...]

    @property
    def key(self) -> LogKey:
        """The key of the log."""
        return (self.tenant, self.queue, self.log, self.shard)


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What retention has removed from a lake."""

    before: str | None = None  # numbers of days before this one were removed without a record
    logs: tuple[RemovedLog, ...] = ()

    @property
    def numbers(self) -> dict[LogKey, tuple[Range, ...]]:
        """The removed numbers of each log."""
        return {log.key: log.numbers for log in self.logs}

    def unrecorded(self, old: Proof | None) -> str | None:
        """The day before which numbers were removed without a record, after the proof `old`.

        None if an audit has read the lake since, or if there is no such day."""
        known = old is not None and (old.horizon or "") >= (self.before or "")
        return None if known else self.before


def plus(
    known: Removed, events: Mapping[LogKey, Ranges], gaps: Mapping[LogKey, Sequence[int]]
) -> Removed:
    """What is removed after the numbers `events` and the gaps with these numbers are gone too.

    With a gap goes the reason why the numbers before it are missing, so they count as removed."""
    found = {key: number_sets.union(of) for key, of in known.numbers.items()}
    for key in {*events, *gaps}:
        here = number_sets.union(found.get(key, ()), events.get(key, ()))
        dropped = [hole for number in gaps.get(key, ()) for hole in _ending_at(here, number)]
        found[key] = number_sets.union(here, dropped)
    return Removed(
        before=known.before,
        logs=tuple(
            RemovedLog(tenant=key[0], queue=key[1], log=key[2], shard=key[3], numbers=_bounded(of))
            for key, of in sorted(found.items())
        ),
    )


def _ending_at(here: Ranges, number: int) -> list[Range]:
    """The missing numbers that end with this one."""
    return [hole for hole in number_sets.missing(here, 1, number)[-1:] if hole[1] == number]


def _bounded(found: Sequence[Range]) -> tuple[Range, ...]:
    """Join the oldest ranges, so that the file stays small. Holes between them are excused."""
    many, last = found[: 1 - MAX_RANGES], found[1 - MAX_RANGES :]
    return ((many[0][0], many[-1][1]), *last) if many else tuple(last)


def load(lake: Lake) -> Removed:
    """What retention has removed from the lake, or is removing."""
    text = None if lake.state.removed is None else lake.files.read(_path(lake, lake.state.removed))
    if text is None:
        return Removed(before=lake.state.kept_since)
    return msgspec.json.decode(text, type=Removed)


def record(lake: Lake, events: Sequence[Part], quarantine: Sequence[Part]) -> str:
    """Write down the numbers in these partitions, beside those removed earlier.

    Returns the name of the file, for the lake's state."""
    rows = lake.read(EVENTS, events)
    found, _ = numbers_of_events(rows)
    for key, more in numbers_of_quarantine(lake.read(QUARANTINE, quarantine)).items():
        found[key] = number_sets.union(found.get(key, ()), more)
    gaps: dict[LogKey, list[int]] = {}
    for row in rows.where(F.col("kind") == GAP).select(*numbers.log_columns(), "number").collect():
        gaps.setdefault(log_key(row), []).append(row.number)
    name = uuid.uuid4().hex[:12]
    text = msgspec.json.encode(plus(load(lake), found, gaps)).decode()
    lake.files.write(_path(lake, name), text)
    return name


def sweep(lake: Lake, before: str | None) -> None:
    """Delete earlier files, except the one that the state named `before`: an audit may read it."""
    for file in lake.files.children(f"{lake.root}/_jobq/removed"):
        if file.removesuffix(".json") not in (before, lake.state.removed):
            lake.files.delete(f"{lake.root}/_jobq/removed/{file}")


def _path(lake: Lake, name: str) -> str:
    return f"{lake.root}/_jobq/removed/{name}.json"
