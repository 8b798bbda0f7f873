"""What the lake says since the last proof: one pass over numbers, one over jobs.

`gather` reads the rows that have arrived and returns what the audit decides from. It writes
nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from jobq.core.records.wire import GAP
from jobq.pipeline.audit import removed
from jobq.pipeline.audit.proof import (
    Arrived,
    GapEvent,
    LogKey,
    LogProof,
    Proof,
    ProofFiles,
    QueueTotals,
    advanced,
    checked,
    kept_from,
)
from jobq.pipeline.audit.removed import log_key
from jobq.pipeline.audit.store import Tip
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import ERASED, EVENTS, MARKS, QUARANTINE
from jobq.pipeline.transforms import conservation, numbers

_LOGS = (
    "g int, tenant string, queue string, log string, shard int, after bigint, upto bigint, "
    "seen bigint"
)
_LATE_HOURS = 1
"""Hours after the first kept day in which numbers may be missing because of retention: events near
midnight are not always numbered in the order of their times."""
MAX_FORKS = 1_000  # numbers of more than one event that an audit shows
EXAMPLES = 20  # counterexamples per log


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The new proof, and the rows behind it."""

    proof: Proof
    jobs: Any  # DataFrame of `conservation.by_job`
    logs: Any  # DataFrame of the logs, to name them
    faulty: Any  # DataFrame of judged rows
    ahead: Any  # DataFrame of events that wait, or None
    repeated: Sequence[Row]  # numbers of more than one event
    checked: dict[tuple[str, str], int]  # queue → events that were checked now
    ended: int  # jobs among them that have ended
    release: tuple[Any, ...]  # cached DataFrames

    def examples(self) -> Iterator[dict[str, Any]]:
        """Counterexamples, a bounded number per log."""
        found = conservation.counterexamples(self.faulty, self.logs, EXAMPLES)
        yield from (row.asDict(recursive=True) for row in found.toLocalIterator())

    def tips(self, *, every: dict[tuple[str, str], int] | None = None) -> Iterator[Tip]:
        """The last events of the jobs that were checked now; of some queues only every n-th."""
        found = conservation.tips(self.jobs.where("events > 0"), self.logs)
        for (tenant, queue), n in (every or {}).items():
            chosen = F.pmod("h", F.lit(n)) == 0
            found = found.where((F.col("tenant") != tenant) | (F.col("queue") != queue) | chosen)
        fields = [F.unix_millis("created_at") if f == "created_ms" else f for f in Tip._fields]
        yield from (Tip(*row) for row in found.select(*fields).toLocalIterator())

    def unknown(self, keys: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        """Those of these jobs (tenant, queue, id) that are neither open nor were checked now."""
        wanted = self.logs.sparkSession.createDataFrame(
            list(keys), "tenant string, queue string, job string"
        )
        known = conservation.tips(self.jobs, self.logs).select(*wanted.columns)
        return [tuple(row) for row in wanted.join(known, wanted.columns, "left_anti").collect()]

    def close(self) -> None:
        """Release the memory of the rows."""
        for frame in self.release:
            frame.unpersist()


def gather(lake: Lake, files: ProofFiles, old: Proof | None, known: Proof | None) -> Evidence:
    """Read what has arrived after `old`, or everything if it is None.

    `known` is the last proof, also if everything is read again: what it covers was in the lake."""
    proof, upto = old or Proof(), lake.state.arrivals
    rows = files.arrived(EVENTS, proof, upto)
    if (ahead := files.ahead(proof)) is not None:
        rows = rows.unionByName(ahead)
    if old is not None:
        rows = rows.persist()
    covered = {log.key: log for log in known.logs} if known is not None and old is None else {}
    before = {log.key: log for log in proof.logs}
    gone = removed.load(lake)
    arrived, twice, unnumbered = _arrived(
        lake, files, proof, rows, gone, gone.unrecorded(old), covered
    )
    after = {
        key: advanced(before.get(key) or _new(key), arrived.get(key) or Arrived())
        for key in sorted({*before, *arrived})
    }
    logs = _logs(lake, before, after, covered)
    judged = _judged(lake, files, proof, rows, logs, after)
    jobs = conservation.by_job(judged).persist()
    counted = {row.g: row for row in conservation.balance(jobs).collect()}
    if known is None or lake.state.retiring or known.first_horizon != lake.state.kept:
        covered = {}  # retention has removed rows that it has checked
    after = {
        key: checked(
            log,
            digest=(counted[g].digest or 0) if g in counted else 0,
            seen=(counted[g].seen_digest or 0) if g in counted else 0,
            known=covered.get(key),
        )
        for g, (key, log) in enumerate(after.items())
    }
    totals = {(queue.tenant, queue.queue): queue for queue in proof.queues}
    for g, key in enumerate(after):
        one = _totals(key, counted.get(g), unnumbered.get(key, 0))
        totals[key[:2]] = totals[key[:2]] + one if key[:2] in totals else one
    events: dict[tuple[str, str], int] = {}
    for g, key in enumerate(after):
        events[key[:2]] = events.get(key[:2], 0) + (counted[g].events if g in counted else 0)
    waits = any(log.ahead for log in after.values())
    done = msgspec.structs.replace(
        proof,
        arrival=upto,
        logs=tuple(after.values()),
        queues=tuple(totals[name] for name in sorted(totals)),
        horizon=lake.state.kept_since,
        first_horizon=lake.state.kept if old is None else old.first_horizon,
    )
    return Evidence(
        proof=done,
        jobs=jobs,
        logs=logs,
        faulty=judged,
        ahead=_beyond(rows, logs) if waits else None,
        repeated=twice,
        checked=events,
        ended=sum(row.ended for row in counted.values()),
        release=(jobs, rows) if old is not None else (jobs,),
    )


def _new(key: LogKey) -> LogProof:
    tenant, queue, log, shard = key
    return LogProof(tenant=tenant, queue=queue, log=log, shard=shard)


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────


def _arrived(
    lake: Lake,
    files: ProofFiles,
    proof: Proof,
    rows: DataFrame,
    gone: removed.Removed,
    unrecorded: str | None,
    covered: dict[LogKey, LogProof],
) -> tuple[dict[LogKey, Arrived], list[Row], dict[LogKey, int]]:
    """What has arrived of each log, numbers of more than one event, and events without numbers.

    `gone` is what retention has removed. Before the day `unrecorded`, it has also removed numbers
    without a record, since the last audit."""
    upto, settled = lake.state.arrivals, _settled(unrecorded)
    numbers_gone = gone.numbers
    known = covered or {log.key: log for log in proof.logs}
    found, again = removed.numbers_of_events(rows)
    twice: list[Row] = []
    forks: dict[LogKey, int] = {}
    if again:
        repeated = numbers.repeated(rows, _frame(lake, again)).persist()
        twice = repeated.limit(MAX_FORKS).collect()
        counted = repeated.groupBy(*numbers.LOG).agg(F.count(F.lit(1)).alias("n")).collect()
        forks = {log_key(row): row.n for row in counted}
        repeated.unpersist()
    more = {log_key(row): row for row in _facts(rows, settled).collect()}
    marks = files.arrived(MARKS, proof, upto)
    highest: dict[LogKey, dict[int, dict[int, int]]] = {}
    for row in numbers.highest_marks(marks).collect():
        highest.setdefault(log_key(row), {}).setdefault(row.partitions, {})[row.partition] = (
            row.number
        )
    gaps = [key for key, row in more.items() if row.gaps]
    marked: dict[LogKey, list[int]] = {}
    if gaps:
        near = marks.join(F.broadcast(_frame(lake, gaps)), list(numbers.LOG), "left_semi")
        for row in near.select(*numbers.LOG, "number").distinct().collect():
            marked.setdefault(log_key(row), []).append(row.number)
    bad = removed.numbers_of_quarantine(files.arrived(QUARANTINE, proof, upto))
    arrived = {}
    for key in {*found, *more, *highest, *covered}:
        fact = more.get(key)
        arrived[key] = Arrived(
            numbers=found.get(key, ()),
            gaps=[
                GapEvent(number=gap.number, at_ms=gap.at_ms, why=gap.reason or "")
                for gap in (fact.gaps if fact else ())
            ],
            quarantined=bad.get(key, ()),
            marked=marked.get(key, ()),
            marks=highest.get(key, {}),
            twice=forks.get(key, 0),
            proved=covered[key].proved if key in covered else 0,
            erased=((fact.erased_from, fact.erased_to),) if fact and fact.erased_to else (),
            removed=numbers_gone.get(key, ()),
            kept_from=kept_from(
                fact.kept_from if fact else None,
                fact.highest if fact else 0,
                known.get(key),
                None if settled is None else int(settled.timestamp() * 1000),
            ),
            last_at_ms=(fact.last_at_ms or 0) if fact else 0,
        )
    return arrived, twice, {key: row.unnumbered for key, row in more.items()}


def _settled(unrecorded: str | None) -> datetime | None:
    """The time from which on retention has removed nothing without a record."""
    if unrecorded is None:
        return None
    return datetime.fromisoformat(unrecorded).replace(tzinfo=UTC) + timedelta(hours=_LATE_HOURS)


def _facts(rows: DataFrame, settled: datetime | None) -> DataFrame:
    """Gaps, tombstones, events without numbers, the last event, and the first that is `settled`."""
    number, kind = F.coalesce("number", F.lit(0)), F.col("kind")
    gap = F.struct("number", F.unix_millis("at").alias("at_ms"), "reason")
    kept = F.lit(None).cast("bigint")
    if settled is not None:
        kept = F.when((F.col("at") >= F.lit(settled)) & (number > 0), number)
    return (
        rows.select(*numbers.log_columns(), "number", "kind", "at", "reason")
        .groupBy(*numbers.LOG)
        .agg(
            F.count_if(number == 0).alias("unnumbered"),
            F.min(F.when(kind == ERASED, number)).alias("erased_from"),
            F.max(F.when(kind == ERASED, number)).alias("erased_to"),
            F.min(kept).alias("kept_from"),
            F.max(number).alias("highest"),
            F.max_by(F.unix_millis("at"), number).alias("last_at_ms"),
            F.collect_list(F.when(kind == GAP, gap)).alias("gaps"),
        )
    )


def _frame(lake: Lake, keys: Sequence[LogKey]) -> DataFrame:
    return lake.spark.createDataFrame(
        list(keys), "tenant string, queue string, log string, shard int"
    )


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def _logs(
    lake: Lake,
    before: dict[LogKey, LogProof],
    after: dict[LogKey, LogProof],
    covered: dict[LogKey, LogProof],
) -> DataFrame:
    rows = [
        (
            g,
            *key,
            before[key].proved if key in before else 0,
            log.proved,
            covered[key].proved if key in covered else None,
        )
        for g, (key, log) in enumerate(after.items())
    ]
    return lake.spark.createDataFrame(rows, _LOGS)


def _judged(
    lake: Lake,
    files: ProofFiles,
    proof: Proof,
    rows: DataFrame,
    logs: DataFrame,
    after: dict[LogKey, LogProof],
) -> DataFrame:
    new = conservation.to_judge(rows, logs)
    lines = new
    if (tips := files.open(proof)) is not None:
        lines = lines.unionByName(conservation.as_rows(tips, logs))
    if (tips := files.ended(proof)) is not None:
        lines = lines.unionByName(conservation.as_rows(conservation.revived(tips, new, logs), logs))
    judged = conservation.judged(lines, lake.state.kept_since)
    gaps = [
        (g, first, last, erased)
        for g, log in enumerate(after.values())
        for first, last, erased in (
            *((gap.first, gap.last, False) for gap in log.gaps),
            *((first, last, True) for first, last in log.erased),
        )
    ]
    return conservation.excused(
        judged, lake.spark.createDataFrame(gaps, "g int, first bigint, last bigint, erased boolean")
    )


def _totals(key: LogKey, row: Row | None, unnumbered: int) -> QueueTotals:
    if row is None:
        return QueueTotals(tenant=key[0], queue=key[1], unnumbered=unnumbered)
    fields = row.asDict()
    plain = ("events", "jobs", "accepted", "rerun", "carried", "completed", "failed", "cancelled")
    return QueueTotals(
        tenant=key[0],
        queue=key[1],
        unnumbered=unnumbered,
        excused=fields["excused"],
        states={state: fields[f"{state}_now"] for state in conservation.STATES},
        faults={fault: fields[fault] for fault in conservation.FAULTS if fields[fault]},
        **{name: fields[name] for name in plain},
    )


def _beyond(rows: DataFrame, logs: DataFrame) -> DataFrame:
    """The events that wait for earlier ones."""
    bounds = logs.select(
        *(F.col(name).alias(f"_{name}") for name in numbers.LOG), F.col("upto").alias("_upto")
    )
    keys = dict(zip(numbers.LOG, numbers.log_columns(), strict=True))
    same = F.lit(True)
    for name, column in keys.items():
        same = same & (column == F.col(f"_{name}"))
    return (
        rows.join(F.broadcast(bounds), same)
        .where(F.col("number") > F.col("_upto"))
        .select(*EVENTS.columns)
    )
