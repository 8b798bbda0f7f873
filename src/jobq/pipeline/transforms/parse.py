"""Parse lines of JSON into events, with a reason for each line that is not a valid event."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq.core.records import marks, wire
from jobq.core.records.events import FIELDS
from jobq.core.records.states import Kind, State
from jobq.pipeline import tables
from jobq.pipeline.tables import EVENTS, MARKS, QUARANTINE, struct

CORRUPT = "_corrupt"  # column in which Spark puts a line that it cannot parse
LINE = "_line"  # column with the line itself

_TYPES = {"text": "string", "int": "int", "long": "bigint", "time": "bigint"}

WIRE = struct(
    {
        "v": "int",
        **{field.name: _TYPES.get(field.word, "map<string,string>") for field in FIELDS},
        **{name: "string" if name == "log" else "int" for name in marks.FIELDS},
        CORRUPT: "string",
    }
)
"""A line as Spark reads it: the fields of an event or a mark, and the line if it is not JSON."""

_REQUIRED = ("v", "id", "kind", "at_ms", "tenant", "queue", "job", "life", "attempt", "created_ms")
# A tombstone is written by `jq-pipeline erase` only: from a source, it could hide a lost event.
_STATELESS = [*(kind for kind in tables.WITHOUT_JOB if kind != tables.ERASED), marks.MARK]
_KINDS = [*(kind.value for kind in Kind), *_STATELESS]
_STATES = [state.value for state in State]
# The years 2000 and 2100. A clock outside is wrong.
_EARLIEST_MS, _LATEST_MS = 946_684_800_000, 4_102_444_800_000
_YEAR_10000_MS = 253_402_300_800_000  # a job may be due at any time that a datetime can represent
_TIMES = {field.name: field.shown for field in FIELDS if field.word == "time"}

EVENT, MARKED, BAD = EVENTS.name, MARKS.name, QUARANTINE.name
ROUTE = "table"


def from_json_lines(lines: DataFrame, *, origin: Column | None = None) -> DataFrame:
    """Parse the lines in the string column `value` into WIRE rows, with an `origin` and the line.

    A line that is not UTF-8 is corrupt: Spark would replace the bytes, and change a name."""
    origin = F.lit(None).cast("string") if origin is None else origin
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = lines.select(
        F.from_json(F.col("value"), WIRE, options).alias("e"),
        origin.alias("origin"),
        F.col("value").alias(LINE),
    )
    corrupt = F.when(F.is_valid_utf8(LINE), F.col(f"e.{CORRUPT}")).otherwise(F.col(LINE))
    fields = [F.col(f"e.{name}") for name in WIRE.names if name != CORRUPT]
    return parsed.select(*fields, corrupt.alias(CORRUPT), "origin", LINE)


def problem() -> Column:
    """The first problem of a WIRE row, or null. Checks are ordered from the worst to the least."""
    checks = [(F.col(CORRUPT).isNotNull(), F.lit("not JSON of the event's shape"))]
    checks += [(F.col("v") != wire.VERSION, F.concat(F.lit("unknown version "), F.col("v")))]
    checks += [(F.col(name).isNull(), F.lit(f"{name} is missing")) for name in _REQUIRED]
    checks += [
        (~F.col("kind").isin(_KINDS), F.concat(F.lit("unknown kind "), F.col("kind"))),
        (~F.col("state").isin(_STATES), F.concat(F.lit("unknown state "), F.col("state"))),
        (~F.col("previous").isin(_STATES), F.concat(F.lit("unknown state "), F.col("previous"))),
        (
            F.col("state").isNull() & ~F.col("kind").isin(_STATELESS),
            F.lit("state is missing"),
        ),
        (
            (F.col("kind") == marks.MARK)
            & (F.col("number") + F.col("partition") + F.col("partitions")).isNull(),
            F.lit("the mark is incomplete"),
        ),
        (
            ~F.col("at_ms").between(_EARLIEST_MS, _LATEST_MS),
            F.lit("at_ms is not a time of this century"),
        ),
    ]
    checks += [
        (
            ~F.col(name).between(0, _YEAR_10000_MS - 1),
            F.lit(f"{name} is not a time from 1970 to 9999"),
        )
        for name in _TIMES
        if name != "at_ms"
    ]
    first: Column = F.lit(None).cast("string")
    for wrong, why in reversed(checks):
        first = F.when(wrong, why).otherwise(first)
    return first


def routed(rows: DataFrame, arrival: int) -> DataFrame:
    """WIRE rows with the columns of EVENTS, MARKS and QUARANTINE, and the `table` of each row.

    `arrival` is the number of the batch. The tables share one DataFrame, so that a batch is read
    and parsed once. The write separates them by the column `table`."""
    checked = rows.withColumn("problem", problem())
    good = F.col("problem").isNull()
    # Only for good rows: Spark raises an error for a number out of range, and the batch would fail
    # every time.
    times = {shown: F.when(good, F.timestamp_millis(name)) for name, shown in _TIMES.items()}
    made = {
        **times,
        "arrival": F.lit(arrival).cast("bigint"),
        "more": _unknown_fields(),
    }
    body = [
        made.get(name, F.col(name)).alias(name) for name in (column.name for column in EVENTS.body)
    ]
    # Replace bytes that are not UTF-8: readers of Parquet fail on an invalid string.
    raw = F.when(~good, F.make_valid_utf8(LINE))
    return checked.select(
        *body,
        *marks.FIELDS,
        F.col("problem"),
        raw.alias("raw"),
        F.when(~good, F.col("origin")).alias("origin"),
        F.when(~good, BAD).when(F.col("kind") == marks.MARK, MARKED).otherwise(EVENT).alias(ROUTE),
        # Integer arithmetic: to_date and hour would look up the time zone for every row.
        F.when(good, F.date_from_unix_date(F.expr("int(at_ms div 86400000)")))
        .otherwise(F.current_date())
        .alias("day"),
        F.when(good, F.expr("int(at_ms div 3600000 % 24)")).otherwise(0).alias("hour"),
    )


def _unknown_fields() -> Column:
    """The fields of the line that WIRE does not have, as text, or null if there are none.

    Parsing a line again is expensive, so it is done only if the line has more colons than known
    fields: every field needs one."""
    colons = F.octet_length(LINE) - F.octet_length(F.replace(LINE, F.lit(":")))
    known = F.coalesce(F.cardinality("meta"), F.lit(0))
    for name in wire.FIELDS:
        known = known + F.col(name).isNotNull().cast("int")
    everything = F.from_json(F.col(LINE), "map<string,string>")
    unknown = F.map_filter(everything, lambda name, _: ~name.isin(list(wire.FIELDS)))
    return F.when((colons > known) & (F.cardinality(unknown) > 0), unknown)
