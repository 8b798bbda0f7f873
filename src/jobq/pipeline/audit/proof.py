"""What the audit has proved about each log, how a proof advances, and its files.

The events of a log are numbered from 1 without holes. A proof covers a prefix of these numbers: for
each of them, its event is in the lake and was checked, or a `gap` says that the store dropped it
unread, or it is lost.

- A number that is missing although it was shipped is lost: the log is violated. Marks say what was
  shipped (`core.records.marks`): everything up to the lowest mark that the lake has read over all
  partitions.
- A number that is missing beyond that is not here yet. The prefix ends before it, and later events
  wait.
- A log without marks comes from a relay of jobq 0.1. Any missing number may be late or lost, so its
  prefix ends before the first one.
- A number whose record is in quarantine is neither proved nor lost.
- A gap excuses the missing numbers before it, back to the last mark before the gap: what was marked
  was shipped, so the store cannot have dropped it unread.
- Retention excuses the numbers that it has removed (`jobq.pipeline.audit.removed`). Versions that
stored
  no numbers excuse those of events that may be older than the first kept day, if days were removed
  since the last audit (`kept_from`).
- Two events under one number, in the same log and shard, are a fork: the store lost its last writes
  and used the number again, or somebody added an event. Jobs may be lost or run again either way,
  so the log is violated.

Nothing here waits or reads: `advanced` decides.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobq.pipeline.audit import number_sets
from jobq.pipeline.audit.number_sets import Range
from jobq.pipeline.formats import Part
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS, MARKS, Table, struct
from jobq.pipeline.transforms.conservation import HELD, TIP

MAX_RANGES = 1_000
"""Ranges of one log that are kept one by one, so that the proof stays small. The rest is joined, so
the lost numbers of such a log are an upper bound."""

LogKey = tuple[str, str, str, int]
"""Tenant, queue, log (the first part of event ids) and shard."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that are missing for a known reason: the log dropped them unread, or retention."""

    first: int
    last: int
    at_ms: int | None = None
    why: str = ""


class GapEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A `gap` in the log: `number` is the last one that was dropped."""

    number: int
    at_ms: int
    why: str


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """What has arrived of a log since the last audit, and the events that waited.

    `numbers` are those of events, without gaps."""

    numbers: Sequence[Range] = ()
    gaps: Sequence[GapEvent] = ()
    quarantined: Sequence[Range] = ()  # numbers of records in quarantine
    marked: Sequence[int] = ()  # numbers of new marks, needed only if there are gaps
    marks: Mapping[int, Mapping[int, int]] = {}  # partitions → partition → highest mark
    erased: Sequence[Range] = ()  # from the first to the last tombstone
    twice: int = 0  # numbers of more than one event, among what has arrived
    proved: int = 0  # an earlier proof, which this audit repeats, covered the numbers up to here
    removed: Sequence[Range] = ()  # retention has removed these numbers, at any time
    # Retention may have removed any number below without a record, since the last audit.
    kept_from: int = 1
    last_at_ms: int = 0  # the time of the event with the highest number


class LogProof(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of one shard of a log."""

    tenant: str
    queue: str
    log: str
    shard: int
    proved: int = 0  # the last number of the prefix
    last: int = 0  # the highest number in the lake
    last_at_ms: int = 0  # the time of its event; 0 if it is not known
    lost: tuple[Range, ...] = ()
    gaps: tuple[Gap, ...] = ()
    ahead: tuple[Range, ...] = ()  # arrived, but after a number that is not here yet
    marks: dict[int, dict[int, int]] = {}  # partitions → partition → highest mark
    marked: int = 0  # the highest mark of any partition
    erased: tuple[Range, ...] = ()  # from the first to the last tombstone
    digest: int = 0  # a checksum of the events that were checked, in any order
    altered: bool = False  # an audit of everything found that checked events have changed
    twice: int = 0  # numbers of more than one event
    refilled: int = 0  # events that arrived after they had been reported as lost

    @property
    def key(self) -> LogKey:
        """The key of the log."""
        return (self.tenant, self.queue, self.log, self.shard)

    @property
    def shipped(self) -> int:
        """Everything up to this number was shipped: the lowest mark over all partitions.

        Topics grow: marks for 4 and for 8 partitions are compared apart. 0 without marks."""
        return max(
            (
                min(found.get(partition, 0) for partition in range(count))
                for count, found in self.marks.items()
            ),
            default=0,
        )

    @property
    def waiting(self) -> list[Range]:
        """The numbers that are not here yet, although later ones are."""
        known = [(gap.first, gap.last) for gap in self.gaps]
        return number_sets.missing(number_sets.union(self.ahead, known), self.proved + 1, self.last)


def advanced(log: LogProof, new: Arrived) -> LogProof:
    """The proof after `new` has arrived."""
    marks = {
        count: {
            partition: max(
                log.marks.get(count, {}).get(partition, 0),
                new.marks.get(count, {}).get(partition, 0),
            )
            for partition in {*log.marks.get(count, {}), *new.marks.get(count, {})}
        }
        for count in {*log.marks, *new.marks}
    }
    log = msgspec.structs.replace(log, marks=marks)
    here = number_sets.union(log.ahead, new.numbers)
    shipped = max(log.shipped, new.proved)
    last = max([log.last, *(last for _, last in here), *(gap.number for gap in new.gaps)])
    known = [(gap.first, gap.last) for gap in log.gaps]
    holes = number_sets.minus(number_sets.missing(here, log.proved + 1, max(last, shipped)), known)
    gaps = _removed(holes, new)
    holes = number_sets.minus(holes, [(gap.first, gap.last) for gap in gaps])
    gaps += [
        *_dropped(log, holes, new),
        *(
            Gap(first=first, last=end, why="in quarantine")
            for first, end in number_sets.both(holes, new.quarantined)
        ),
    ]
    holes = number_sets.minus(holes, [(gap.first, gap.last) for gap in gaps])
    lost = [(first, min(end, shipped)) for first, end in holes if first <= shipped]
    late = [max(first, shipped + 1) for first, end in holes if end > shipped]
    proved = late[0] - 1 if late else max(last, shipped)
    again = number_sets.both(new.numbers, [(1, log.proved)])
    return msgspec.structs.replace(
        log,
        proved=proved,
        last=last,
        last_at_ms=new.last_at_ms if last > log.last else log.last_at_ms,
        lost=tuple(_bounded(number_sets.union(number_sets.minus(log.lost, new.numbers), lost))),
        gaps=(*log.gaps, *gaps)[-MAX_RANGES:],
        erased=_hull((*log.erased, *new.erased)),
        ahead=tuple(number_sets.minus(here, [(0, proved)])),
        marked=max([log.marked, *new.marked, *(n for of in marks.values() for n in of.values())]),
        twice=log.twice
        + new.twice
        + number_sets.size(number_sets.minus(number_sets.minus(again, log.lost), known)),
        refilled=log.refilled + number_sets.size(number_sets.both(again, log.lost)),
    )


def checked(log: LogProof, *, digest: int, seen: int, known: LogProof | None) -> LogProof:
    """The log with the checksum of its events, which `digest` continues.

    `known` is an earlier proof that this audit repeats, and `seen` the checksum of the events that
    it covered. A log that was altered keeps the checksum of what was proved, so that audits of
    everything find the difference until the rows are restored."""
    digest ^= log.digest
    if known is None or known.twice or known.refilled or known.digest == seen:
        return msgspec.structs.replace(log, digest=digest)
    return msgspec.structs.replace(log, digest=digest ^ seen ^ known.digest, altered=True)


def _hull(found: Sequence[Range]) -> tuple[Range, ...]:
    return ((min(found)[0], max(last for _, last in found)),) if found else ()


def kept_from(
    settled: int | None, highest: int, known: LogProof | None, settled_ms: int | None
) -> int:
    """The first number that retention cannot have removed without a record.

    `settled` is the lowest number of an event in the lake that is younger than everything that was
    removed, and `highest` the highest number of any event in the lake. `known` is an earlier proof
    of the same events. `settled_ms` is the time from which on nothing was removed, or None if
    retention has removed nothing without a record since the last audit."""
    if settled_ms is None:
        return 1
    found = [] if settled is None else [settled]
    if known is not None and known.last_at_ms >= settled_ms:
        found.append(known.last)
    # All events that are in the lake, or were there, are old: a queue that has been idle.
    return min(found, default=max(highest, known.proved if known is not None else 0) + 1)


def _removed(holes: Sequence[Range], new: Arrived) -> list[Gap]:
    """What retention removed before an audit could read it, or before an audit of everything."""
    unrecorded = [(1, new.kept_from - 1)] if new.kept_from > 1 else []
    gone = number_sets.both(holes, number_sets.union(new.removed, unrecorded))
    return [Gap(first=first, last=last, why="removed by retention") for first, last in gone]


def _dropped(log: LogProof, holes: Sequence[Range], new: Arrived) -> list[Gap]:
    """The numbers that gaps of the store's log excuse."""
    marked = sorted({log.marked, *new.marked})
    found = []
    for gap in new.gaps:
        floor = max((number for number in marked if number < gap.number), default=0)
        found += [
            Gap(first=max(first, floor + 1), last=gap.number, at_ms=gap.at_ms, why=gap.why)
            for first, last in holes
            if first <= gap.number <= last
        ]
    return found


def _bounded(found: Sequence[Range]) -> list[Range]:
    rest = list(found[MAX_RANGES - 1 :])
    return [*found[: MAX_RANGES - 1], (rest[0][0], rest[-1][1])] if len(rest) > 1 else list(found)


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one queue up to what is proved. Lives are counted: a rerun starts a new one."""

    tenant: str
    queue: str
    events: int = 0
    jobs: int = 0
    accepted: int = 0  # lives started by enqueueing
    rerun: int = 0  # lives started by a rerun
    carried: int = 0  # jobs whose first events were removed by retention
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    unnumbered: int = 0  # events of jobq 0.1, which have no numbers
    states: dict[str, int] = {}  # state → jobs that are in it
    faults: dict[str, int] = {}
    excused: int = 0  # faults that a gap explains

    def __add__(self, other: QueueTotals) -> QueueTotals:
        """The counts of both together."""
        mine, more = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return QueueTotals(**{name: _sum(mine[name], more[name]) for name in mine})


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}
    return one if isinstance(one, str) else one + other


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison with the store found wrong in a queue."""

    tenant: str
    queue: str
    problem: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the next audit needs. The jobs are in files beside it (see below)."""

    version: int = 1
    arrival: int = 0  # batches that were read
    at_ms: int = 0  # when the audit began
    day: str = ""  # the day on which the last of them was published
    logs: tuple[LogProof, ...] = ()
    queues: tuple[QueueTotals, ...] = ()
    disputes: tuple[Dispute, ...] = ()  # found by this audit, or by one that it continues
    verdict: str = ""
    horizon: str | None = None  # of the lake
    # `LakeState.kept` when the proof began: its checksums cover those rows.
    first_horizon: str | None = None
    open: str = ""  # the folder of the last events of jobs that have not ended
    ahead: str = ""  # the folder of events that wait for earlier ones
    ended: tuple[tuple[str, int], ...] = ()  # folders of the last events of ended jobs, with rows


# The audit's own files in a lake: what is proved, and the jobs at that point.
#
# LAKE/_jobq/audit/proof.json          the proof (`proof.Proof`), written last and atomically
# LAKE/_jobq/audit/proof/N/open/       the last events of jobs that have not ended
# LAKE/_jobq/audit/proof/N/ended/      the last events of jobs that ended in this audit
# LAKE/_jobq/audit/proof/N/ahead/      events that wait for earlier ones
#
# An audit that is killed leaves the previous proof as it was. Folders that no proof names any more
# are deleted by the audit after the next one, because another audit may be reading them.
#
# Every audit adds a folder of ended jobs. Ten folders of about the same size are merged into one,
# so that their number grows with the logarithm of the jobs.

_MERGE = 10  # folders of ended jobs of about the same size that become one

Folders = tuple[tuple[str, int], ...]


class ProofFiles:
    """The proof of one lake."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.root = lake, f"{lake.root}/_jobq/audit"
        self._name = uuid.uuid4().hex[:12]

    def load(self) -> Proof | None:
        """The last proof, or None if there is none that this version can continue."""
        text = self.lake.files.read(f"{self.root}/proof.json")
        proof = None if text is None else msgspec.json.decode(text, type=Proof)
        return proof if proof is not None and proof.version == Proof().version else None

    def forget(self) -> None:
        """Remove the proof. The next audit reads everything."""
        self.lake.files.delete(f"{self.root}/proof.json")

    # ── what to read ──────────────────────────────────────────────────────────────────────────────

    def arrived(self, table: Table, proof: Proof, upto: int) -> DataFrame:
        """The rows of a table that arrived after the proof, in batches up to `upto`.

        Rows of lakes before arrivals were counted belong to batch 0."""
        if not proof.arrival:
            found = self.lake.read(table)
            return found.where(F.coalesce("arrival", F.lit(0)) <= upto)
        found = self.lake.read(table, self._touched(table, proof, upto))
        return found.where(F.col("arrival").between(proof.arrival + 1, upto))

    def _touched(self, table: Table, proof: Proof, upto: int) -> list[Part] | None:
        """The partitions that these batches touched, from the notes about them. None for all.

        Without them, every audit would list all files of the table."""
        name = {EVENTS.name: "hours", MARKS.name: "marks"}.get(table.name)
        if name is None:
            return None
        found = [note.get(name) for note in self._notes(proof, upto)]
        if len(found) != upto - proof.arrival or None in found:
            return None
        return sorted({Part.of(path) for paths in found for path in paths or ()})

    def _notes(self, proof: Proof, upto: int) -> list[dict[str, list[str] | None]]:
        base = f"{self.lake.root}/_jobq/batches"
        names = [
            f"{base}/{day}/{name}"
            for day in self.lake.files.children(base)
            if day >= f"day={proof.day}"
            for name in self.lake.files.children(f"{base}/{day}")
            if name[:12].isdigit() and proof.arrival < int(name[:12]) <= upto
        ]
        return [msgspec.json.decode(self.lake.files.read(name) or "{}") for name in names]

    def open(self, proof: Proof) -> DataFrame | None:
        """The tips of jobs that had not ended."""
        return self._tips(proof.open) if proof.open else None

    def ended(self, proof: Proof) -> DataFrame | None:
        """The tips of jobs that had ended. A job that was rerun has several."""
        return self._tips(*(name for name, _ in proof.ended)) if proof.ended else None

    def ahead(self, proof: Proof) -> DataFrame | None:
        """The events that waited for earlier ones."""
        if not proof.ahead:
            return None
        return self.lake.spark.read.schema(EVENTS.schema).parquet(self._path(proof.ahead))

    def _tips(self, *names: str) -> DataFrame:
        return self.lake.spark.read.schema(struct(TIP)).parquet(*map(self._path, names))

    def _path(self, name: str) -> str:
        return f"{self.root}/proof/{name}"

    # ── what to write ─────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        proof: Proof,
        old: Proof | None,
        tips: DataFrame,
        *,
        ended: int,
        ahead: DataFrame | None,
    ) -> Proof:
        """Store a proof that continues `old`.

        `tips` are those of all jobs that are open or were checked, `ended` of which have ended, and
        `ahead` the events that wait."""
        is_open = F.col("state").isin(HELD)
        folders: Folders = () if old is None else old.ended
        name = f"{self._name}/open"
        self._write(tips.where(is_open), name)
        if ended:
            fresh = f"{self._name}/ended"
            self._write(tips.where(~is_open), fresh)
            folders = self._merged((*folders, (fresh, ended)))
        waits = ""
        if ahead is not None:
            waits = f"{self._name}/ahead"
            self._write(ahead, waits)
        done = msgspec.structs.replace(proof, open=name, ahead=waits, ended=folders)
        text = msgspec.json.format(msgspec.json.encode(done)).decode()
        self.lake.files.write(f"{self.root}/proof.json", text)
        self._sweep(done, old)
        return done

    def _write(self, rows: DataFrame, name: str) -> None:
        rows.coalesce(8).write.mode("overwrite").parquet(self._path(name))

    def _merged(self, folders: Folders) -> Folders:
        """Merge folders of about the same size, by the number of digits of their rows."""
        sizes = [len(str(rows)) for _, rows in folders]
        for size in sorted({*sizes}):
            same = [folder for folder, digits in zip(folders, sizes, strict=True) if digits == size]
            if len(same) >= _MERGE:
                name = f"{self._name}/ended-{size}"
                self._write(self._tips(*(folder for folder, _ in same)), name)
                rest = tuple(folder for folder in folders if folder not in same)
                return self._merged((*rest, (name, sum(rows for _, rows in same))))
        return folders

    def _sweep(self, proof: Proof, old: Proof | None) -> None:
        """Delete folders that neither this proof nor the one before it names."""
        named: Sequence[str] = [
            name
            for kept in (proof, old)
            if kept is not None
            for name in (kept.open, kept.ahead, *(folder for folder, _ in kept.ended))
        ]
        used = {name.split("/")[0] for name in named}
        for folder in self.lake.files.children(f"{self.root}/proof"):
            if folder not in used:
                self.lake.files.delete(f"{self.root}/proof/{folder}")
