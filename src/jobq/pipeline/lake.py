"""The lake: tables in one folder, a record of their batches, and the lock of its writer.

    LAKE/events/day=…/hour=…/…    a table; the others are next to it (`tables.py`)
    LAKE/_jobq/state.json         finished batches, hours to derive again, totals
    LAKE/_jobq/batches/day=…/     a JSON file about each batch, named by its arrival
    LAKE/_jobq/checkpoints/…      Spark's position in each source
    LAKE/_jobq/writer.json        the current writer
    LAKE/_jobq/erasures.json      digests of the jobs that were erased (`erasure.py`)
    LAKE/_jobq/removed/…          numbers that retention has removed (`audit/removed.py`)
    LAKE/_jobq/swaps/…            partitions of Parquet tables that are being replaced
    LAKE/_staging/SESSION/…       unfinished files

A batch is added in four steps: stage its files, record the batch in the state as `pending`, move
the files to their tables, record the batch as done. After a crash before the second step, Spark
repeats the batch. After a crash later on, the next writer finishes it from the record. Readers
leave out the files of a pending batch. A lake has one writer at a time.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

import msgspec
from pyspark.sql import DataFrame, SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.formats import Part, tablespace
from jobq.pipeline.fs import Files, is_local, open_files
from jobq.pipeline.session import Format
from jobq.pipeline.tables import BY_NAME, Table

# The lock of a lake's only writer: a file that names the writer and that it renews.
#
# A claim ends when its owner releases it, when the owner's process is gone (noticed at once on the
# same machine), or when it was not renewed for a minute. An owner that was considered dead notices
# before its next batch, and stops. Its unfinished files are in its own folder under `_staging`, so
# they cannot mix with those of its successor.

RENEW_S = 10.0  # seconds between renewals
EXPIRES_S = 60.0  # seconds without renewal until a claim expires: five missed renewals


class LakeInUse(ConfigError):
    """Another command is writing to the lake."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lock file."""

    owner: str
    command: str
    host: str
    pid: int
    at_ms: int

    def is_dead(self, now_ms: int) -> bool:
        """Whether the owner has died or stopped renewing its claim."""
        if self.host == _host() and not _runs(self.pid):
            return True
        return now_ms - self.at_ms > EXPIRES_S * 1000


def _host() -> str:
    """This machine and its process namespace (container), in which process ids are valid."""
    with suppress(OSError):
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process belongs to another user
    return True


class Lock:
    """`with Lock(files, path, "run"): …`. Raises LakeInUse if another writer has the lake."""

    def __init__(self, files: Files, path: str, command: str) -> None:
        self.files, self.path, self.command = files, path, command
        self.owner = uuid.uuid4().hex
        self._ended = threading.Event()
        # A file that is being written may look empty, so the thread that renews the claim and the
        # one that checks it take turns.
        self._turn = threading.RLock()
        self._renewing: threading.Thread | None = None

    def acquire(self) -> None:
        """Claim the lake."""
        found = self._read()
        if found is not None and not found.is_dead(_now_ms()):
            raise LakeInUse(_in_use(found))
        self._write()
        self.check()  # if two writers came at once, the one whose claim was overwritten gives up
        self._renewing = threading.Thread(target=self._renew, name="jobq-lake-lock", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raise LakeInUse if this writer has lost the lake."""
        with self._turn:
            found = self._read()
        if found is None or found.owner != self.owner:
            raise LakeInUse(
                _in_use(found)
                if found
                else "the lock of the lake was removed: run the command again"
            )

    def release(self) -> None:
        """Release the lake, if this writer still has it."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        found = self._read()
        if found is not None and found.owner == self.owner:
            self.files.delete(self.path)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            # A file system that fails now may work at the next renewal.
            with suppress(Exception), self._turn:
                self.check()
                self._write()

    def _read(self) -> Claim | None:
        text = self.files.read(self.path)
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Claim) if text else None
        return None

    def _write(self) -> None:
        claim = Claim(
            owner=self.owner, command=self.command, host=_host(), pid=os.getpid(), at_ms=_now_ms()
        )
        self.files.write(self.path, msgspec.json.encode(claim).decode())

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _in_use(claim: Claim) -> str:
    seen, who = (
        max(0, _now_ms() - claim.at_ms) / 1000,
        f"process {claim.pid} on {claim.host.split()[0]}",
    )
    return (
        f"`jq-pipeline {claim.command}` ({who}) is writing to this lake: stop it first. "
        f"It was last seen {seen:.0f} s ago; if it has died, its lock expires {EXPIRES_S:.0f} s "
        "after it was last seen"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what is in the lake, or of one batch."""

    read: int = 0  # records read from the source
    events: int = 0  # new events
    duplicates: int = 0  # events that the lake already had
    # Events, with duplicates, that were older than the watermark when they arrived. They are
    # stored like all others.
    late: int = 0
    quarantined: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            **{name: getattr(self, name) - getattr(other, name) for name in self.__struct_fields__}
        )


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A completely staged batch that is being published, with everything needed to finish it."""

    run: str
    number: int
    folders: dict[str, str]  # table → folder of its staged files
    totals: Totals
    hours: tuple[str, ...]  # hours of its events, as paths of partitions
    marks: tuple[str, ...] | None = None  # days of its marks; None if an older version staged it
    max_at_ms: int


class LakeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the lake. It is written atomically."""

    format: Format = "parquet"
    totals: Totals = Totals()
    done: dict[str, int] = {}  # run (a checkpoint's lifetime) → number of its last batch
    max_at_ms: int = 0  # time of the latest event
    dirty: tuple[str, ...] = ()  # hours whose derived tables are out of date, as paths
    pending: Pending | None = None  # the batch that is being published
    arrivals: int = 0  # batches that were published, of all runs
    horizon: str | None = None  # retention has removed all days before this one
    retiring: str | None = None  # retention is removing all days before this one
    removed: str | None = (
        None  # the file with the numbers that retention removed (`audit/removed.py`)
    )
    catalog: str | None = None  # CATALOG.SCHEMA in which Delta and Iceberg tables are registered

    @property
    def kept_since(self) -> str | None:
        """The first day that is complete, also if retention is still removing the days before."""
        return max((day for day in (self.horizon, self.retiring) if day), default=None)

    @property
    def kept(self) -> str | None:
        """A name for what retention has kept. It changes when retention removes rows."""
        if self.retiring is not None:
            return f"{self.kept_since}, unfinished"
        return self.horizon if self.removed is None else f"{self.horizon}, {self.removed}"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch. `run` names the checkpoint's lifetime, and `number` counts batches within it."""

    run: str
    number: int

    @property
    def name(self) -> str:
        """The prefix of the batch's files."""
        return f"{self.run}-{self.number:09d}"


def _batch(pending: Pending) -> Batch:
    return Batch(run=pending.run, number=pending.number)


class Lake:
    """The tables and the state of one lake."""

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        format: Format | None = None,
        catalog: str | None = None,
    ) -> None:
        """Open a lake. A new one gets this format (default: Parquet) and catalog (default: none).

        Raises ConfigError if an existing lake has another format or catalog."""
        self.spark, self.files = spark, open_files(spark)
        # Delta and Iceberg take a relative path for a name.
        self.root = self.files.absolute(root.rstrip("/"))
        self.session = uuid.uuid4().hex[:12]
        self.state = LakeState(format=format or "parquet", catalog=catalog)
        self.reload()
        if format and format != self.state.format:
            raise ConfigError(
                f"the lake {root} has the format {self.state.format}: "
                f"use --format {self.state.format}, or another folder"
            )
        if catalog and catalog != self.state.catalog:
            raise ConfigError(
                f"the lake {root} is registered in {self.state.catalog or 'no catalog'}: "
                "a lake keeps the catalog that it was made with"
            )
        self.space = tablespace(
            spark,
            self.files,
            self.root,
            self.state.format,
            self.staging("tables"),
            self.state.catalog,
        )

    @property
    def _state_path(self) -> str:
        return f"{self.root}/_jobq/state.json"

    def reload(self) -> None:
        """Read the state again, because another writer may have changed it."""
        if stored := self.files.read(self._state_path):
            self.state = msgspec.json.decode(stored, type=LakeState)

    def require(self) -> Lake:
        """Return the lake. Raises ConfigError if the folder is not a lake."""
        if not self.files.exists(self._state_path):
            raise ConfigError(f"there is no lake in {self.root}: `jq-pipeline run` creates one")
        return self

    def writing(self, command: str) -> Lock:
        """The lock of the lake's only writer. `command` names it in the error of others."""
        return Lock(self.files, f"{self.root}/_jobq/writer.json", command)

    def check_new(self) -> None:
        """Raise ConfigError if a new lake could not keep its promises where it is to be made.

        A Parquet table publishes files by renaming them, which only a local disk does at once."""
        if self.files.exists(self._state_path):
            return
        if self.state.format == "parquet" and not is_local(self.root):
            raise ConfigError(
                f"a Parquet lake must be on a local disk, and {self.root} is not: "
                "use --format delta or --format iceberg"
            )
        if self.state.format == "parquet" and self.state.catalog:
            raise ConfigError(
                "a Parquet lake cannot be registered in a catalog: "
                "use --format delta or --format iceberg"
            )

    def begin(self) -> None:
        """Prepare for writing, as the lake's only writer: finish what a crash has interrupted."""
        self.reload()
        self.space.recover()
        self.finish()
        self.sweep()

    def sweep(self) -> None:
        """Delete unfinished files of earlier sessions. Call it as the writer, after `finish`."""
        for session in self.files.children(f"{self.root}/_staging"):
            if session != self.session:
                self.files.delete(f"{self.root}/_staging/{session}")

    def checkpoint(self, source: str) -> str:
        """The folder of Spark's checkpoint for a source."""
        return f"{self.root}/_jobq/checkpoints/{source}"

    def staging(self, name: str) -> str:
        """A folder for unfinished files.

        Each session has its own, because Spark's executors may continue to write for a while after
        their driver was killed."""
        return f"{self.root}/_staging/{self.session}/{name}"

    def save(self, state: LakeState) -> None:
        """Store a new state."""
        self.files.write(self._state_path, msgspec.json.format(msgspec.json.encode(state)).decode())
        self.state = state

    def read(self, table: Table, parts: Sequence[Part] | None = None) -> DataFrame:
        """Read a table, or some partitions of it, as of the last complete batch."""
        pending = self.state.pending
        return self.space.read(
            table, parts, without=None if pending is None else _batch(pending).name
        )

    def is_done(self, batch: Batch) -> bool:
        """Whether the lake has the batch. Spark repeats the last batch after a crash."""
        return self.state.done.get(batch.run, -1) >= batch.number

    def publish(
        self,
        batch: Batch,
        folders: dict[str, str],
        totals: Totals,
        *,
        hours: Sequence[Part],
        marks: Sequence[Part],
        max_at_ms: int,
    ) -> None:
        """Add the staged files of a batch (table → folder) to the tables.

        `hours` are the partitions of its events, and `marks` those of its marks."""
        note = Pending(
            run=batch.run,
            number=batch.number,
            folders=folders,
            totals=totals,
            hours=tuple(part.path() for part in hours),
            marks=tuple(part.path() for part in marks),
            max_at_ms=max_at_ms,
        )
        self.save(msgspec.structs.replace(self.state, pending=note))
        self.finish()

    def finish(self) -> Pending | None:
        """Finish a pending batch and return it, or None if there is none. Idempotent."""
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
        arrival = self.state.arrivals + 1
        note = {
            "arrival": arrival,
            "run": pending.run,
            "batch": pending.number,
            "at_ms": int(now * 1000),
            **msgspec.to_builtins(pending.totals),
        }
        parts = {"hours": pending.hours, "marks": pending.marks}
        line = msgspec.json.encode({**note, **parts}).decode()
        day = time.strftime("%Y-%m-%d", time.gmtime(now))
        path = f"{self.root}/_jobq/batches/day={day}/{arrival:012d}-{name}.json"
        self.files.write(path, line)
        self.save(
            msgspec.structs.replace(
                self.state,
                totals=self.state.totals + pending.totals,
                done={**self.state.done, pending.run: pending.number},
                max_at_ms=max(self.state.max_at_ms, pending.max_at_ms),
                dirty=tuple(sorted({*self.state.dirty, *pending.hours})),
                arrivals=arrival,
                pending=None,
            )
        )

    @property
    def dirty(self) -> list[Part]:
        """The hours whose derived tables are out of date."""
        return [Part.of(path) for path in self.state.dirty]

    def outdated(self, hours: Sequence[Part]) -> None:
        """Record that the derived tables are out of date for these hours."""
        paths = {*self.state.dirty, *(part.path() for part in hours)}
        self.save(msgspec.structs.replace(self.state, dirty=tuple(sorted(paths))))

    def derived(self, hours: Sequence[Part]) -> None:
        """Record that the derived tables are up to date for these hours."""
        known = {part.path() for part in hours}
        self.save(
            msgspec.structs.replace(
                self.state, dirty=tuple(path for path in self.state.dirty if path not in known)
            )
        )
