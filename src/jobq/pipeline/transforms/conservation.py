"""The audit's checks of jobs, as transforms over `events`.

The events of a job follow each other by their numbers: each has the job's state before (`previous`)
and after (`state`), so the `previous` of an event must be the `state` of the one before. Lives,
attempts, failures and stalls count up as `core.records.states` says. An event that breaks these
rules gets a fault, and `jq-pipeline audit` shows it with the event before. Events without a job
(operations on a queue) are in no chain.

The audit is incremental: the last event of each job that was checked before (its tip) takes the
place of all its earlier events.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.core.records.states import BIRTHS, ENDED, TRANSITIONS, State
from jobq.pipeline.tables import WITHOUT_JOB
from jobq.pipeline.transforms.numbers import log_columns

_ENDED = [state.value for state in ENDED]
_BEGINS = [kind.value for kind in BIRTHS]
HELD = [state.value for state in State if state not in ENDED]
STATES = [state.value for state in State]
_WIDTH = 20  # digits of the longest number in an id: 2**64
_PARTS = 8  # maximum parts of an id; current ids have three to five
_LEGAL = [f"{t.kind}|{t.previous or ''}|{t.state}" for t in TRANSITIONS]

_CHAIN = {
    "job": "string",
    "number": "bigint",
    "at": "timestamp",
    "life": "int",
    "attempt": "int",
    "failures": "int",
    "stalls": "int",
    "state": "string",
    "name": "string",
    "key": "string",
    "created_at": "timestamp",
}
TIP = {
    "tenant": "string",
    "queue": "string",
    "log": "string",
    "shard": "int",
    "h": "bigint",
    **_CHAIN,
}
"""The columns of a tip: the last event of a job, and the hash by which jobs are distributed."""

_LOG = ("tenant", "queue", "log", "shard")
_JOB = ["g", "job"]
_SHOWN = ["number", "kind", "at", "life", "attempt", "previous", "state", "name"]

FAULTS = (
    "illegal transition",
    "no beginning",
    "accepted twice",
    "two ends in one life",
    "resurrected",
    "run not explained",
    "broken chain",
    "life miscounted",
    "attempt miscounted",
    "failures miscounted",
    "renamed",
    "time runs backwards",
)
"""Faults of an event, the worst first. An event gets one fault, and its job may get more."""


def in_order() -> Column:
    """A string that sorts the events of one log in their order: the id with padded numbers.

    An id is log-position-n-incarnation, and a position is one or more numbers joined by "-"
    (`core.records.wire`). The parts are padded one by one, because Spark does not compile
    `transform`."""
    parts = F.split("id", "-")
    return F.concat_ws(
        "", *(F.lpad(F.get(parts, F.lit(n)), _WIDTH, "0") for n in range(_PARTS)), "id"
    )


def to_judge(events: DataFrame, logs: DataFrame) -> DataFrame:
    """The events that an audit checks, with the number `g` of their log instead of its key.

    `logs` has `g` and the numbers to check, `after` (excluded) up to `upto`; and `seen`, the number
    up to which an earlier audit has read the same rows. Events without numbers (of jobq 0.1) are
    always checked."""
    number = F.coalesce("number", F.lit(0))
    rows = events.select(
        *log_columns(),
        "kind",
        "previous",
        "reason",
        *(name for name in _CHAIN if name != "number"),
        number.alias("number"),
        # Only events without numbers need their ids to be in order.
        F.when(number == 0, in_order()).alias("o"),
    )
    rows = rows.join(F.broadcast(logs), ["tenant", "queue", "log", "shard"])
    known = (F.col("number") == 0) | F.col("number").between(F.col("after") + 1, F.col("upto"))
    return rows.where(known).select(
        "g", "seen", "kind", "previous", "reason", *_CHAIN, "o", F.xxhash64("job").alias("h")
    )


def as_rows(tips: DataFrame, logs: DataFrame) -> DataFrame:
    """Tips as rows beside `to_judge`. Their kind is null."""
    text = F.lit(None).cast("string")
    keyed = tips.join(F.broadcast(logs), ["tenant", "queue", "log", "shard"])
    return keyed.select(
        "g",
        "seen",
        text.alias("kind"),
        text.alias("previous"),
        text.alias("reason"),
        *_CHAIN,
        text.alias("o"),
        "h",
    )


def revived(ended: DataFrame, new: DataFrame, logs: DataFrame) -> DataFrame:
    """The last tips of ended jobs that have begun another life in the rows `new`.

    Only they are looked up among all jobs that ever ended."""
    again = (F.col("kind") == "rerun") | ((F.col("kind") == "accepted") & (F.col("life") > 0))
    wanted = new.where(again).select("g", "h", "job").distinct()
    found = ended.join(F.broadcast(logs.select("g", *_LOG)), list(_LOG)).join(
        F.broadcast(wanted), ["g", "h", "job"], "left_semi"
    )
    rank = F.row_number().over(Window.partitionBy("g", "h", "job").orderBy(F.desc("number")))
    return found.withColumn("rank", rank).where("rank = 1").select(*TIP)


def judged(rows: DataFrame, horizon: str | None = None) -> DataFrame:
    """Every event with the one `before` it, whether it is the `last` of its job, and its `fault`.

    Jobs created before the day `horizon` may have lost their first events to retention. The first
    event of such a job is marked as `carried`."""
    # A hash first: sorting by a number avoids most comparisons of strings.
    line = Window.partitionBy("h", *_JOB).orderBy("number", "o")
    before = F.lag(F.struct(F.col("kind"), *(name for name in _CHAIN if name != "job"))).over(line)
    chained = rows.repartition("h").select(
        *rows.columns,
        before.alias("before"),
        F.lead("number").over(line).isNull().alias("last"),
    )
    old = F.col("created_at") < F.lit(horizon).cast("timestamp") if horizon else F.lit(False)
    # A new job under a known id has a life above 0, and retention may have removed the others.
    begun = (F.col("kind") == "accepted") & ((F.col("life") == 0) | F.lit(horizon is not None))
    first = F.col("before").isNull() & ~F.col("kind").isin(WITHOUT_JOB)
    return chained.withColumn("carried", first & ~F.col("kind").isin(_BEGINS) & old).withColumn(
        "fault", _fault(first & ~begun & ~old)
    )


def _fault(unbegun: Column) -> Column:
    kind, before, state = F.col("kind"), F.col("before"), F.col("state")
    rerun, accepted = kind == "rerun", kind == "accepted"
    was_over = before["state"].isin(_ENDED)
    over = state.isin(_ENDED)
    legal = F.concat_ws("|", "kind", F.coalesce("previous", F.lit("")), "state").isin(_LEGAL)
    up = (kind == "started").cast("int")
    next_life = before["life"] + 1
    life = (
        F.when(accepted, (F.col("life") != 0) & (F.col("life") != next_life))
        .when(rerun, F.col("life") != next_life)
        .otherwise(F.col("life") != before["life"])
    )
    same = F.lit(True)
    for name in ("name", "key", "created_at"):
        same = same & F.col(name).eqNullSafe(before[name])
    return (
        F.when(kind.isNull() | kind.isin(WITHOUT_JOB), None)
        .when(~legal, "illegal transition")
        .when(unbegun, "no beginning")
        .when(before.isNull(), None)
        .when(accepted & ~was_over, "accepted twice")
        .when(was_over & over & ~accepted & ~rerun, "two ends in one life")
        .when(was_over & ~accepted & ~rerun, "resurrected")
        .when((kind == "started") & (before["state"] == "active"), "run not explained")
        .when(~accepted & (F.col("previous") != before["state"]), "broken chain")
        .when(life, "life miscounted")
        .when(~accepted & (F.col("attempt") != before["attempt"] + up), "attempt miscounted")
        .when(~accepted & ~_counted(), "failures miscounted")
        .when(~accepted & ~same, "renamed")
        .when(F.col("at") < before["at"], "time runs backwards")
    )


def _counted() -> Column:
    """Whether failures and stalls count up as the kind says.

    A run that was asked to stop may have failed or stalled before it ended as cancelled."""
    kind, before = F.col("kind"), F.col("before")
    stalled = (kind == "stalled") | ((kind == "failed") & (F.col("reason") == "stalled"))
    stalled = F.coalesce(stalled, F.lit(False))
    ran_badly = (kind == "retried") | ((kind == "failed") & (F.col("previous") == "active"))
    failed = ran_badly & ~stalled
    return (
        F.when(kind == "rerun", (F.col("failures") == 0) & (F.col("stalls") == 0))
        .when(kind == "cancelled", True)
        .otherwise(
            (F.col("failures") == before["failures"] + failed.cast("int"))
            & (F.col("stalls") == before["stalls"] + stalled.cast("int"))
        )
    )


def excused(rows: DataFrame, gaps: DataFrame) -> DataFrame:
    """The rows; `excused` are those whose fault a gap explains, instead of their `fault`.

    `gaps` has `g`, `first`, `last` and `erased`. A gap explains the faults of an event if it lies
    between the event and the one before. Tombstones explain only that a job has no beginning. An
    illegal transition is wrong by itself."""
    since, number, fault = F.coalesce("before.number", F.lit(0)), F.col("number"), F.col("fault")
    # All gaps of a log in one row, because a join by range would compare every event with each.
    span = F.struct("first", "last", "erased")
    spans = gaps.groupBy("g").agg(F.collect_list(span).alias("spans"))
    joined = rows.join(F.broadcast(spans), "g", "left")
    explains = F.exists(
        "spans",
        lambda gap: (
            (gap["last"] > since)
            & (gap["first"] < number)
            & (~gap["erased"] | (fault == "no beginning"))
        ),
    )
    innocent = fault.isNotNull() & (fault != "illegal transition") & explains
    innocent = F.coalesce(innocent, F.lit(False))
    return joined.select(
        *(name for name in rows.columns if name != "fault"),
        F.when(~innocent, fault).alias("fault"),
        innocent.alias("excused"),
    )


def by_job(rows: DataFrame) -> DataFrame:
    """One row per job, from `excused` rows: its counts, its state before, and its tip.

    The rows are already distributed by job, so that Spark does not move them again."""
    kind = F.col("kind")
    chain = [name for name in _CHAIN if name != "job"]
    digest = F.when(
        kind.isNotNull() & (F.col("number") > 0),
        F.xxhash64("kind", "previous", "reason", *_CHAIN),
    )
    return rows.groupBy("h", *_JOB).agg(
        F.count("kind").alias("events"),
        *(F.count_if(kind == name).alias(name) for name in _COUNTED),
        F.count_if("carried").alias("carried"),
        F.count_if("excused").alias("excused"),
        *(F.count_if(F.col("fault") == fault).alias(fault) for fault in FAULTS),
        F.bit_xor(digest).alias("digest"),
        F.bit_xor(F.when(F.col("number") <= F.col("seen"), digest)).alias("seen_digest"),
        F.max(F.when(kind.isNull(), F.col("state"))).alias("was"),
        F.max(F.when(F.col("last"), F.struct(*chain))).alias("tip"),
    )


_COUNTED = ("accepted", "rerun", "completed", "failed", "cancelled")


def balance(jobs: DataFrame) -> DataFrame:
    """The counts of each log, from `by_job`.

    `jobs` and the states count changes: an old tip counts against its state."""
    is_job = F.col("job") != ""
    now, was = F.col("tip.state"), F.col("was")
    return jobs.groupBy("g").agg(
        F.sum("events").alias("events"),
        F.bit_xor("digest").alias("digest"),
        F.bit_xor("seen_digest").alias("seen_digest"),
        F.count_if(is_job & was.isNull()).alias("jobs"),
        F.count_if(is_job & now.isin(_ENDED)).alias("ended"),
        *(F.sum(name).alias(name) for name in (*_COUNTED, "carried", "excused", *FAULTS)),
        *(
            (F.count_if(is_job & (now == state)) - F.count_if(was == state)).alias(f"{state}_now")
            for state in STATES
        ),
    )


def tips(jobs: DataFrame, logs: DataFrame) -> DataFrame:
    """The tips of the jobs in `by_job`, with the keys of their logs."""
    keyed = jobs.where(F.col("job") != "").join(F.broadcast(logs), "g")
    return keyed.select("tenant", "queue", "log", "shard", "h", "job", "tip.*").select(*TIP)


def counterexamples(rows: DataFrame, logs: DataFrame, most: int) -> DataFrame:
    """The first `most` faulty events of each log, each with the event before it."""
    rank = F.row_number().over(Window.partitionBy("g").orderBy("number"))
    found = rows.where(F.col("fault").isNotNull()).withColumn("rank", rank)
    shown = F.struct(
        *(F.col(f"before.{name}") for name in ("number", "kind", "at", "life")),
        F.col("before.attempt"),
        F.col("before.state"),
        F.col("before.name"),
    )
    return (
        found.where(F.col("rank") <= most)
        .join(F.broadcast(logs), "g")
        .select(
            "tenant",
            "queue",
            "shard",
            "job",
            "fault",
            *_SHOWN,
            F.when(F.col("before").isNotNull(), shown).alias("before"),
        )
    )
