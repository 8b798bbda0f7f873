"""The lake: tables under one folder, and a small record of what has been put in.

    LAKE/events/day=…/hour=…/…    and the other tables of `tables.py`
    LAKE/_jobq/state.json         which batches are in, which hours have to be derived anew, totals
    LAKE/_jobq/batches/day=…/     one line about every batch
    LAKE/_jobq/checkpoints/…      Spark's position in each source
    LAKE/_staging/…               being written

A batch goes in by four steps, and may be broken off and repeated after any of them: stage its files, note its name in the
state (`publishing`), move the files to their place, note it as done. What a batch that was not finished has published is
left out by readers and taken back when it is repeated. One `run` per lake at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.formats import Part, tablespace
from jobq.pipeline.fs import Files
from jobq.pipeline.session import Format
from jobq.pipeline.tables import Table


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What went into the lake, or what one batch brought."""

    read: int = 0  # records of the source
    events: int = 0  # new events
    duplicates: int = 0  # events that were there already
    late: int = 0  # events (copies too) older than the watermark when they came; they go where they belong all the same
    quarantined: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class LakeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the lake stands. Written whole, so that it is never half true."""

    format: Format = "parquet"
    totals: Totals = Totals()
    done: dict[str, int] = {}  # per run (a checkpoint's life), its last batch
    max_at_ms: int = 0  # the latest event
    dirty: tuple[str, ...] = ()  # hours with events that the derived tables do not know yet, as paths
    publishing: str | None = None  # the batch that is being moved in
    horizon: str | None = None  # retention has removed all days before this one


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch in the making. `run` names the checkpoint's life, `number` counts within it."""

    run: str
    number: int

    @property
    def name(self) -> str:
        """What its files begin with."""
        return f"{self.run}-{self.number:09d}"


class Lake:
    """The tables, and the record."""

    def __init__(self, spark: SparkSession, root: str, *, format: Format | None = None) -> None:
        self.spark, self.root = spark, root.rstrip("/")
        self.files = Files(spark)
        stored = self.files.read(self._state_path)
        self.state = msgspec.json.decode(stored, type=LakeState) if stored else LakeState(format=format or "parquet")
        if format and format != self.state.format:
            raise ConfigError(
                f"the lake {root} is kept as {self.state.format}: run with --format {self.state.format}, or use another folder"
            )
        self.space = tablespace(spark, self.files, self.root, self.state.format)

    @property
    def _state_path(self) -> str:
        return f"{self.root}/_jobq/state.json"

    def checkpoint(self, source: str) -> str:
        """Where Spark keeps its position in a source."""
        return f"{self.root}/_jobq/checkpoints/{source}"

    def staging(self, name: str) -> str:
        """A folder for what is not in place yet."""
        return f"{self.root}/_staging/{name}"

    def save(self, state: LakeState) -> None:
        """Put a new state in the place of the old one."""
        self.files.write(self._state_path, msgspec.json.format(msgspec.json.encode(state)).decode())
        self.state = state

    def read(self, table: Table, parts: Sequence[Part] | None = None) -> DataFrame:
        """A table, or some partitions of it, as of the last whole batch."""
        return self.space.read(table, parts, without=self.state.publishing)

    def is_done(self, batch: Batch) -> bool:
        """Whether the batch is in already: Spark repeats its last one after a crash."""
        return self.state.done.get(batch.run, -1) >= batch.number

    def publish(self, batch: Batch, staged: Sequence[tuple[Table, str]]) -> None:
        """Move the staged files into the tables, as this batch's."""
        self.save(msgspec.structs.replace(self.state, publishing=batch.name))
        for table, folder in staged:
            self.space.append(table, folder, batch=batch.name, number=batch.number)

    def take_back(self, tables: Iterable[Table]) -> None:
        """Undo what a broken-off batch had published."""
        if self.state.publishing:
            for table in tables:
                self.space.retract(table, batch=self.state.publishing)
            self.save(msgspec.structs.replace(self.state, publishing=None))

    def commit(self, batch: Batch, totals: Totals, *, hours: Sequence[Part], max_at_ms: int) -> None:
        """The batch is in."""
        now = time.time()
        day, line = (
            time.strftime("%Y-%m-%d", time.gmtime(now)),
            {"run": batch.run, "batch": batch.number, "at_ms": int(now * 1000)},
        )
        note = {**line, **msgspec.to_builtins(totals), "hours": [part.path() for part in hours]}
        self.files.write(f"{self.root}/_jobq/batches/day={day}/{batch.name}.json", msgspec.json.encode(note).decode())
        self.save(
            msgspec.structs.replace(
                self.state,
                totals=self.state.totals + totals,
                done={**self.state.done, batch.run: batch.number},
                max_at_ms=max(self.state.max_at_ms, max_at_ms),
                dirty=tuple(sorted({*self.state.dirty, *(part.path() for part in hours)})),
                publishing=None,
            )
        )

    @property
    def dirty(self) -> list[Part]:
        """The hours whose derived tables are out of date."""
        return [Part.of(path) for path in self.state.dirty]

    def derived(self, hours: Sequence[Part]) -> None:
        """The derived tables are up to date for these hours."""
        known = {part.path() for part in hours}
        self.save(msgspec.structs.replace(self.state, dirty=tuple(path for path in self.state.dirty if path not in known)))
