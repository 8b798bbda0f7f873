"""The lake: tables under one folder, and a small record of what has been put in.

    LAKE/events/day=…/hour=…/…    and the other tables of `tables.py`
    LAKE/_jobq/state.json         which batches are in, which hours have to be derived anew, totals
    LAKE/_jobq/batches/day=…/     one line about every batch
    LAKE/_jobq/checkpoints/…      Spark's position in each source
    LAKE/_jobq/writer.json        who is writing (`lock`)
    LAKE/_staging/SESSION/…       being written

A batch goes in by four steps, and may be broken off after any of them: stage its files, note in the state what is going to
be published (`pending`), move the files to their place, note it as done. Before the second step nothing has happened, and the
batch is made again; after it, whoever comes next finishes it from the note. Readers leave out a batch that is not whole.
One `run` per lake at a time: a second one is refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec
from pyspark.sql import DataFrame, SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.formats import Part, tablespace
from jobq.pipeline.fs import Files
from jobq.pipeline.lock import Lock
from jobq.pipeline.session import Format
from jobq.pipeline.tables import BY_NAME, Table


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What went into the lake, or what one batch brought."""

    read: int = 0  # records of the source
    events: int = 0  # new events
    duplicates: int = 0  # events that were there already
    late: int = 0  # events (copies too) older than the watermark when they came; they go where they belong all the same
    quarantined: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is staged whole and is being published: all that is needed to finish it."""

    run: str
    number: int
    folders: dict[str, str]  # table → staged files
    totals: Totals
    hours: tuple[str, ...]  # it has events of these, as paths
    max_at_ms: int


class LakeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the lake stands. Written whole, so that it is never half true."""

    format: Format = "parquet"
    totals: Totals = Totals()
    done: dict[str, int] = {}  # per run (a checkpoint's life), its last batch
    max_at_ms: int = 0  # the latest event
    dirty: tuple[
        str, ...
    ] = ()  # hours with events that the derived tables do not know yet, as paths
    pending: Pending | None = None  # the batch that is being published
    horizon: str | None = None  # retention has removed all days before this one


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch in the making. `run` names the checkpoint's life, `number` counts within it."""

    run: str
    number: int

    @property
    def name(self) -> str:
        """What its files begin with."""
        return f"{self.run}-{self.number:09d}"


def _batch(pending: Pending) -> Batch:
    return Batch(run=pending.run, number=pending.number)


class Lake:
    """The tables, and the record."""

    def __init__(self, spark: SparkSession, root: str, *, format: Format | None = None) -> None:
        self.spark, self.root = spark, root.rstrip("/")
        self.files = Files(spark)
        self.session = uuid.uuid4().hex[:12]
        self.state = LakeState(format=format or "parquet")
        self.reload()
        if format and format != self.state.format:
            raise ConfigError(
                f"the lake {root} is kept as {self.state.format}: run with --format {self.state.format}, or use another folder"
            )
        self.space = tablespace(
            spark, self.files, self.root, self.state.format, self.staging("tables")
        )

    @property
    def _state_path(self) -> str:
        return f"{self.root}/_jobq/state.json"

    def reload(self) -> None:
        """What the state is now: another writer may have been at work since it was read."""
        if stored := self.files.read(self._state_path):
            self.state = msgspec.json.decode(stored, type=LakeState)

    def require(self) -> Lake:
        """Itself, if something was ever put in; ConfigError for a folder that is no lake."""
        if not self.files.exists(self._state_path):
            raise ConfigError(f"there is no lake in {self.root}: `jq-pipeline run` makes one")
        return self

    def writing(self, command: str) -> Lock:
        """The right to write, for the command of that name."""
        return Lock(self.files, f"{self.root}/_jobq/writer.json", command)

    def sweep(self) -> None:
        """Remove what earlier sessions left half written. Only for who has the right to write, and after `finish`."""
        for session in self.files.children(f"{self.root}/_staging"):
            if session != self.session:
                self.files.delete(f"{self.root}/_staging/{session}")

    def checkpoint(self, source: str) -> str:
        """Where Spark keeps its position in a source."""
        return f"{self.root}/_jobq/checkpoints/{source}"

    def staging(self, name: str) -> str:
        """A folder for what is not in place yet. Of this session only: Spark may outlive a driver that was killed, and write on
        for a while."""
        return f"{self.root}/_staging/{self.session}/{name}"

    def save(self, state: LakeState) -> None:
        """Put a new state in the place of the old one."""
        self.files.write(self._state_path, msgspec.json.format(msgspec.json.encode(state)).decode())
        self.state = state

    def read(self, table: Table, parts: Sequence[Part] | None = None) -> DataFrame:
        """A table, or some partitions of it, as of the last whole batch."""
        pending = self.state.pending
        return self.space.read(
            table, parts, without=None if pending is None else _batch(pending).name
        )

    def is_done(self, batch: Batch) -> bool:
        """Whether the batch is in already: Spark repeats its last one after a crash."""
        return self.state.done.get(batch.run, -1) >= batch.number

    def publish(
        self,
        batch: Batch,
        folders: dict[str, str],
        totals: Totals,
        *,
        hours: Sequence[Part],
        max_at_ms: int,
    ) -> None:
        """Put the staged files (table → folder) in the tables, as this batch's."""
        paths = tuple(part.path() for part in hours)
        note = Pending(
            run=batch.run,
            number=batch.number,
            folders=folders,
            totals=totals,
            hours=paths,
            max_at_ms=max_at_ms,
        )
        self.save(msgspec.structs.replace(self.state, pending=note))
        self.finish()

    def finish(self) -> Pending | None:
        """Finish the batch that was being published, if there is one; answers which. Done again, it changes nothing."""
        pending = self.state.pending
        if pending is None:
            return None
        for name, folder in pending.folders.items():
            self.space.append(
                BY_NAME[name], folder, batch=_batch(pending).name, number=pending.number
            )
        self._commit(pending)
        for folder in pending.folders.values():
            self.files.delete(folder)
        return pending

    def _commit(self, pending: Pending) -> None:
        now, name = time.time(), _batch(pending).name
        note = {
            "run": pending.run,
            "batch": pending.number,
            "at_ms": int(now * 1000),
            **msgspec.to_builtins(pending.totals),
        }
        line = msgspec.json.encode({**note, "hours": pending.hours}).decode()
        self.files.write(
            f"{self.root}/_jobq/batches/day={time.strftime('%Y-%m-%d', time.gmtime(now))}/{name}.json",
            line,
        )
        self.save(
            msgspec.structs.replace(
                self.state,
                totals=self.state.totals + pending.totals,
                done={**self.state.done, pending.run: pending.number},
                max_at_ms=max(self.state.max_at_ms, pending.max_at_ms),
                dirty=tuple(sorted({*self.state.dirty, *pending.hours})),
                pending=None,
            )
        )

    @property
    def dirty(self) -> list[Part]:
        """The hours whose derived tables are out of date."""
        return [Part.of(path) for path in self.state.dirty]

    def derived(self, hours: Sequence[Part]) -> None:
        """The derived tables are up to date for these hours."""
        known = {part.path() for part in hours}
        self.save(
            msgspec.structs.replace(
                self.state, dirty=tuple(path for path in self.state.dirty if path not in known)
            )
        )
