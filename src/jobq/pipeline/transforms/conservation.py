"""The audit's checks, as transforms over `events`.

The events of a job form a chain: each has the job's state before (`previous`) and after (`state`),
so the `previous` of an event must be the `state` of the one before. A life starts with `accepted`
or `rerun` and ends at most once. An event that breaks these rules gets a fault, and
`jq-pipeline audit` shows it with the event before. Events without a job (operations on a queue) are
in no chain.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from jobq.core.states import ENDED, TRANSITIONS, State
from jobq.pipeline.tables import WITHOUT_JOB

_JOB = ["tenant", "queue", "job"]
_ENDED = [state.value for state in ENDED]
_BEGINS = ["accepted", "rerun"]
HELD = [state.value for state in State if state not in ENDED]
_SHOWN = ["id", "kind", "at", "life", "attempt", "previous", "state"]
_WIDTH = 20  # digits of the longest number in an id: 2**64
_PARTS = 8  # maximum parts of an id; current ids have three to five
_RETURNS = ["retried", "snoozed", "stalled", "released", "limited", "blocked"]
_LEGAL = [f"{t.kind}|{t.previous or ''}|{t.state}" for t in TRANSITIONS]

# Fault → whether a gap in the store's log could explain it. Such a fault alone is no violation.
FAULTS: dict[str, bool] = {
    "illegal transition": False,
    "no beginning": True,
    "two ends in one life": True,
    "resurrected": True,
    "run not explained": True,
    "attempt miscounted": True,
    "broken chain": True,
}


def in_order(id: str = "id") -> Column:
    """A string that sorts the events of one log in their order: the id with padded numbers.

    An id is log-position-n-incarnation, and a position is one or more numbers joined by "-"
    (`core.wire`). The parts are padded one by one, because Spark does not compile `transform`."""
    parts = F.split(id, "-")
    return F.concat_ws(
        "", *(F.lpad(F.get(parts, F.lit(n)), _WIDTH, "0") for n in range(_PARTS)), id
    )


def judged(events: DataFrame, horizon: str | None = None) -> DataFrame:
    """Every event with the one `before` it, whether it is the `last` of its job, and its `fault`.

    Jobs created before the day `horizon` may have lost their first events to retention. The first
    event of such a job is marked as `carried`."""
    rows = events.select(
        *_JOB, *_SHOWN, "created_at", in_order().alias("o"), F.xxhash64(*_JOB).alias("h")
    )
    # A hash first: sorting by a number avoids most comparisons of strings.
    line = Window.partitionBy("h", *_JOB).orderBy("o")
    so_far = line.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    opened = F.count_if(F.col("kind").isin(*_BEGINS, *_RETURNS))
    chained = rows.repartition("h").select(
        *_JOB,
        *_SHOWN,
        "created_at",
        F.lag(F.struct("id", "kind", "at", "state", "life", "attempt")).over(line).alias("before"),
        F.lead("id").over(line).isNull().alias("last"),
        (F.count_if(F.col("kind") == "started").over(so_far) - opened.over(so_far)).alias("excess"),
    )
    old = F.col("created_at") < F.lit(horizon).cast("timestamp") if horizon else F.lit(False)
    chained = chained.withColumn(
        "carried", F.col("before").isNull() & ~F.col("kind").isin(*_BEGINS, *WITHOUT_JOB) & old
    )
    return chained.select(*_JOB, *_SHOWN, "before", "last", "carried", _fault(old).alias("fault"))


def _fault(old: Column) -> Column:
    kind, before = F.col("kind"), F.col("before")
    begins = kind.isin(*_BEGINS)
    was_over = before["state"].isin(_ENDED)
    legal = F.concat_ws("|", "kind", F.coalesce("previous", F.lit("")), "state").isin(_LEGAL)
    step = F.when(kind == "started", 1).otherwise(0)
    continues = F.when(kind == "accepted", was_over).otherwise(F.col("previous") == before["state"])
    return (
        F.when(kind.isin(WITHOUT_JOB), None)
        .when(~legal, "illegal transition")
        .when(before.isNull() & ~old & (kind != "accepted"), "no beginning")
        .when(before.isNull(), None)
        .when(was_over & F.col("state").isin(_ENDED) & ~begins, "two ends in one life")
        .when(was_over & ~begins, "resurrected")
        .when((kind == "started") & (F.col("excess") > 0) & ~old, "run not explained")
        .when(~continues, "broken chain")
        .when(
            ~begins
            & (F.col("life") == before["life"])
            & (F.col("attempt") != before["attempt"] + step),
            "attempt miscounted",
        )
    )


def balance(rows: DataFrame) -> DataFrame:
    """The counts of each queue, from `judged` rows.

    They are: lives started and ended, jobs still held (by the last event of each job), faults by
    kind, and gaps."""
    kind, last = F.col("kind"), F.col("last") & ~F.col("kind").isin(WITHOUT_JOB)
    return (
        rows.groupBy("tenant", "queue")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.count_if(last).alias("jobs"),
            *(
                F.count_if(kind == name).alias(name)
                for name in ("accepted", "rerun", "completed", "failed", "cancelled")
            ),
            F.count_if("carried").alias("carried"),
            F.count_if(last & ~F.col("state").isin(_ENDED)).alias("held"),
            *(F.count_if(last & (F.col("state") == state)).alias(f"{state}_now") for state in HELD),
            *(F.count_if(F.col("fault") == fault).alias(fault) for fault in FAULTS),
            F.count_if(kind == "gap").alias("gaps"),
            F.min(F.when(kind == "gap", F.unix_millis("at"))).alias("gap_from_ms"),
            F.max(F.when(kind == "gap", F.unix_millis("at"))).alias("gap_to_ms"),
        )
        .orderBy("tenant", "queue")
    )


def counterexamples(rows: DataFrame) -> DataFrame:
    """The faulty events, each with the event before it."""
    return rows.where(F.col("fault").isNotNull()).select(*_JOB, "fault", *_SHOWN, "before")
