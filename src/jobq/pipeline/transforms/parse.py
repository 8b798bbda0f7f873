"""From lines of JSON to events: the declared types, and a reason for everything that is not one."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.core import wire
from jobq.core.states import Kind, State
from jobq.pipeline.tables import EVENTS, QUARANTINE, struct

CORRUPT = "_corrupt"  # where Spark's JSON reader puts a line that is not JSON of this shape

_INTEGERS = {"life", "attempt", "failures", "stalls", "v"}
WIRE = struct(
    {
        **{name: "int" if name in _INTEGERS else "bigint" if name.endswith("_ms") else "string" for name in wire.FIELDS},
        CORRUPT: "string",
    }
)
"""A line as Spark reads it: every field of the wire, and the line itself if it could not be read."""

_REQUIRED = ("v", "id", "kind", "at_ms", "tenant", "queue", "job", "life", "attempt", "created_ms")
_KINDS = [*(kind.value for kind in Kind), wire.GAP]
_STATES = [state.value for state in State]
_EARLIEST_MS, _LATEST_MS = 946_684_800_000, 4_102_444_800_000  # 2000 and 2100: a clock outside is broken

EVENT, BAD = "events", "quarantine"
ROUTE = "table"


def from_json_lines(lines: DataFrame, value: str = "value", origin: Column | None = None) -> DataFrame:
    """Lines in a string column, read as WIRE rows with an `origin`."""
    origin = F.lit(None).cast("string") if origin is None else origin
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = lines.select(F.from_json(F.col(value), WIRE, options).alias("e"), origin.alias("origin"))
    return parsed.select("e.*", "origin")


def problem() -> Column:
    """What is wrong with a WIRE row, or null. The checks go from the worst to the smallest, and the first one speaks."""
    checks = [(F.col(CORRUPT).isNotNull(), F.lit("not JSON of the event's shape"))]
    checks += [(F.col("v") != wire.VERSION, F.concat(F.lit("unknown version "), F.col("v")))]
    checks += [(F.col(name).isNull(), F.lit(f"{name} is missing")) for name in _REQUIRED]
    checks += [
        (~F.col("kind").isin(_KINDS), F.concat(F.lit("unknown kind "), F.col("kind"))),
        (~F.col("state").isin(_STATES), F.concat(F.lit("unknown state "), F.col("state"))),
        (~F.col("previous").isin(_STATES), F.concat(F.lit("unknown state "), F.col("previous"))),
        (F.col("state").isNull() & (F.col("kind") != wire.GAP), F.lit("state is missing")),
        (~F.col("at_ms").between(_EARLIEST_MS, _LATEST_MS), F.lit("at_ms is not a time of this century")),
    ]
    first: Column = F.lit(None).cast("string")
    for wrong, why in reversed(checks):
        first = F.when(wrong, why).otherwise(first)
    return first


def routed(rows: DataFrame) -> DataFrame:
    """WIRE rows as EVENTS rows, with the table each belongs in and, for the bad ones, QUARANTINE's columns.

    One frame for both, so that a batch is read and parsed once: the write puts them apart by the column `table`."""
    checked = rows.withColumn("problem", problem())
    good = F.col("problem").isNull()
    at = F.timestamp_millis(F.col("at_ms"))
    times = {
        "at": F.when(good, at),
        "created_at": F.timestamp_millis(F.col("created_ms")),
        "due_at": F.timestamp_millis(F.col("due_ms")),
        "started_at": F.timestamp_millis(F.col("started_ms")),
        "finished_at": F.timestamp_millis(F.col("finished_ms")),
    }
    body = [times.get(name, F.col(name)).alias(name) for name in (column.name for column in EVENTS.body)]
    raw = F.when(~good, F.coalesce(F.col(CORRUPT), F.to_json(F.struct(*wire.FIELDS))))
    return checked.select(
        *body,
        F.col("problem"),
        raw.alias("raw"),
        F.when(~good, F.col("origin")).alias("origin"),
        F.when(good, EVENT).otherwise(BAD).alias(ROUTE),
        # By number, and not by to_date and hour, which ask the time zone for every row.
        F.when(good, F.date_from_unix_date(F.expr("int(at_ms div 86400000)"))).otherwise(F.current_date()).alias("day"),
        F.when(good, F.expr("int(at_ms div 3600000 % 24)")).otherwise(0).alias("hour"),
    )


def events(staged: DataFrame) -> DataFrame:
    """The events among staged rows."""
    return staged.where(F.col(ROUTE) == EVENT).select(*EVENTS.columns)


def quarantine(staged: DataFrame) -> DataFrame:
    """The rest of the staged rows."""
    return staged.where(F.col(ROUTE) == BAD).select(*QUARANTINE.columns)
