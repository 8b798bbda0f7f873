"""The tables of the lake: names, columns with types and meanings, and partitions.

`jq-pipeline tables` prints this for the guide. Times are UTC timestamps. `day` and `hour` are those
of the row's own time, so an event always belongs to the same partition, no matter how late or how
often it arrives.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobq.core.records.events import FIELDS
from jobq.core.records.states import QueueKind
from jobq.core.records.wire import GAP

# Not StructType.fromDDL, which needs a running Spark session.
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def struct(fields: dict[str, str]) -> StructType:
    """Build a schema from names and types."""
    return StructType([StructField(name, _TYPES[type]) for name, type in fields.items()])


class Column(NamedTuple):
    """A column and what it means."""

    name: str
    type: str
    doc: str


class Table(NamedTuple):
    """A table: a DataFrame with these columns, in this order, the partition columns last."""

    name: str
    doc: str
    body: tuple[Column, ...]
    partitions: tuple[Column, ...]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [column.name for column in (*self.body, *self.partitions)]

    @property
    def partition_names(self) -> list[str]:
        """The names of the partition columns."""
        return [column.name for column in self.partitions]

    @property
    def schema(self) -> StructType:
        """The Spark schema of the table."""
        return struct({column.name: column.type for column in (*self.body, *self.partitions)})


_C = Column
_DAY = _C("day", "date", "the day (UTC)")
_HOUR = _C("hour", "int", "the hour of the day (UTC)")
_WHO = (_C("tenant", "string", "the tenant"), _C("queue", "string", "the queue"))

_ARRIVAL = _C(
    "arrival",
    "bigint",
    "the batch that brought the row, counted from 1 in each lake; null in rows of jobq 0.2",
)

ERASED = "erased"
"""The kind of a tombstone: an event whose content `jq-pipeline erase` has removed.

It keeps `id`, `number`, `shard`, `at`, `tenant`, `queue`, `day` and `hour`. Like an operation on a
queue, it has no job (an empty string) and no state. No source delivers this kind."""

WITHOUT_JOB = [*(kind.value for kind in QueueKind), GAP, ERASED]
"""Kinds of events without a job and a state: operations on a queue, gaps, and tombstones."""

_EVENT_TYPES = {
    "text": "string",
    "int": "int",
    "long": "bigint",
    "time": "timestamp",
    "map": "map<string,string>",
}
_ADDED = ("number", "shard", "actor", "meta")
"""Columns that the first lakes did not have. They and later ones follow the others."""

_IN_LAKE = {
    "id": "unique, never used again; sorted by its numbers, a job's events are in order",
    "kind": "what happened to a job (accepted, started, completed, …) or to a queue (paused, "
    "limits, cleared, …); or `gap`; or `erased`, for an event without its content",
}
"""Where the lake has more to say than the definition of the field."""


def _event_columns() -> list[Column]:
    """The fields of an event as columns."""
    found = {
        field.shown: _C(
            field.shown,
            _EVENT_TYPES[field.word],
            _IN_LAKE.get(field.name)
            or field.meaning[0].lower() + field.meaning[1:].removesuffix("."),
        )
        for field in FIELDS
    }
    names = list(found)
    first = [name for name in names[: names.index("meta")] if name not in _ADDED]
    return [found[name] for name in dict.fromkeys((*first, *_ADDED, *names))]


EVENTS = Table(
    "events",
    "The audit log: one row per transition and per operation on a queue, each exactly once.",
    (
        *_event_columns(),
        _C(
            "more",
            "map<string,string>",
            "fields that this version of jobq does not know, as text; null if there are none",
        ),
        _ARRIVAL,
    ),
    (_DAY, _HOUR),
)

ATTEMPTS = Table(
    "attempts",
    "One row per run that has ended.",
    (
        *_WHO,
        _C("job", "string", "the job's id"),
        _C("life", "int", "how often the job had been rerun"),
        _C("attempt", "int", "the number of the run within the job, from 1"),
        _C("name", "string", "the task"),
        _C("key", "string", "its concurrency key"),
        _C(
            "worker",
            "string",
            "the worker that ran it; for a stalled run, the worker that started it",
        ),
        _C(
            "outcome",
            "string",
            "the event that ended the run: completed, retried, failed, stalled, snoozed, released, "
            "limited, blocked, cancelled",
        ),
        _C("reason", "string", "why the run did not complete"),
        _C("fingerprint", "string", "the fingerprint of its error"),
        _C("due_at", "timestamp", "when the run was due"),
        _C("started_at", "timestamp", "when the run started"),
        _C("ended_at", "timestamp", "when the run ended"),
        _C(
            "wait_ms",
            "bigint",
            "milliseconds from due to start, at least 0; null if the lake does not have the start",
        ),
        _C("run_ms", "bigint", "milliseconds from start to end"),
        _C("failures", "int", "runs of this life that failed, including this one"),
        _C("stalls", "int", "runs of this life that stalled, including this one"),
    ),
    (_DAY, _HOUR),
)

QUEUE_MINUTE = Table(
    "queue_minute",
    "What happened in each minute of each queue. Minutes without events are left out, except the "
    "first of a day.",
    (
        *_WHO,
        _C("minute", "timestamp", "start of the minute"),
        _C("accepted", "bigint", "jobs accepted"),
        _C("rerun", "bigint", "ended jobs that were rerun"),
        _C("started", "bigint", "runs started"),
        _C("completed", "bigint", "jobs completed"),
        _C("failed", "bigint", "jobs failed for good"),
        _C("cancelled", "bigint", "jobs cancelled"),
        _C("retried", "bigint", "runs that failed and will be retried"),
        _C("stalled", "bigint", "runs whose lease was lost; their jobs wait again"),
        _C(
            "returned",
            "bigint",
            "runs that ended without using up a retry: snoozed, released, limited, blocked",
        ),
        _C(
            "wait_p50",
            "double",
            "median of the milliseconds from due to start, of the runs started; percentiles are "
            "exact, by nearest rank",
        ),
        _C("wait_p95", "double", "95th percentile"),
        _C("wait_p99", "double", "99th percentile"),
        _C("wait_ms", "bigint", "sum"),
        _C("run_p50", "double", "median of the milliseconds from start to end, of the runs ended"),
        _C("run_p95", "double", "95th percentile"),
        _C("run_p99", "double", "99th percentile"),
        _C("run_ms", "bigint", "sum"),
        _C(
            "waiting_change", "bigint", "jobs that became waiting, minus those that stopped waiting"
        ),
        _C("held_change", "bigint", "jobs accepted or rerun, minus jobs ended"),
        _C("waiting", "bigint", "backlog: jobs waiting at the end of the minute"),
        _C("held", "bigint", "jobs accepted and not ended at the end of the minute"),
    ),
    (_DAY,),
)

TENANT_DAY = Table(
    "tenant_day",
    "Usage per tenant and queue, for billing.",
    (
        *_WHO,
        _C("accepted", "bigint", "jobs accepted"),
        _C("rerun", "bigint", "ended jobs that were rerun"),
        _C("started", "bigint", "runs started"),
        _C("completed", "bigint", "jobs completed"),
        _C("failed", "bigint", "jobs failed for good"),
        _C("cancelled", "bigint", "jobs cancelled"),
        _C("retried", "bigint", "runs that failed and were retried"),
        _C("run_ms", "bigint", "milliseconds spent running, of the runs that ended on this day"),
        _C("wait_ms", "bigint", "milliseconds spent waiting, of the runs started on this day"),
        _C("held", "bigint", "jobs accepted and not ended at the end of the day"),
    ),
    (_DAY,),
)

WORKER_MINUTE = Table(
    "worker_minute",
    "How busy each worker was in each minute. A run counts in every minute that it touches, up to "
    "24 hours before its end.",
    (
        _C("worker", "string", "the worker"),
        _C("minute", "timestamp", "start of the minute"),
        _C("runs", "bigint", "runs that touched the minute"),
        _C("busy_ms", "bigint", "milliseconds spent in runs; parallel runs are added up"),
        _C("covered_ms", "bigint", "milliseconds in which at least one run was active"),
        _C("concurrency", "double", "busy_ms / 60,000: average number of parallel runs"),
        _C(
            "utilisation",
            "double",
            "covered_ms / 60,000: share of the minute in which the worker was busy",
        ),
        _HOUR,
    ),
    (_DAY,),
)

TASK_HOUR = Table(
    "task_hour",
    "The runs of each task on each worker that ended in an hour. Each run is in exactly one of the "
    "counts from `completed` to `returned`.",
    (
        *_WHO,
        _C("name", "string", "the task"),
        _C("worker", "string", "the worker; null if the lake does not have the start of the run"),
        _C("runs", "bigint", "runs that ended"),
        _C("completed", "bigint", "runs that completed"),
        _C("retried", "bigint", "runs that failed and will be retried"),
        _C("failed", "bigint", "runs that failed their job for good, except stalled ones"),
        _C("stalled", "bigint", "runs whose lease was lost, also those that failed their job"),
        _C("cancelled", "bigint", "runs that were cancelled"),
        _C("returned", "bigint", "runs that were snoozed, released, limited or blocked"),
        _C("run_ms", "bigint", "milliseconds spent running"),
        _C("lost_ms", "bigint", "milliseconds of the runs that were retried, failed or stalled"),
        _C("wait_ms", "bigint", "milliseconds from due to start"),
        _HOUR,
    ),
    (_DAY,),
)

ERRORS = Table(
    "errors",
    "Failures by cause and hour, with an example.",
    (
        *_WHO,
        _C("name", "string", "the task"),
        _C(
            "reason",
            "string",
            "error, timeout, stalled, expired, rejected, child, crashed, unknown",
        ),
        _C("fingerprint", "string", "equal for errors with the same cause"),
        _C("count", "bigint", "number of failures"),
        _C("final", "bigint", "failures that ended their job"),
        _C("first_at", "timestamp", "the first failure in the hour"),
        _C("last_at", "timestamp", "the last failure in the hour"),
        _C("example", "string", "the error of the last failure"),
        _C("example_job", "string", "the job of the last failure"),
        _HOUR,
    ),
    (_DAY,),
)

SLO = Table(
    "slo",
    "Attainment of each target, per queue and hour.",
    (
        *_WHO,
        _C("target", "string", "the name of the target"),
        _C("good", "bigint", "runs or jobs that met the target"),
        _C("total", "bigint", "runs or jobs that the target applies to"),
        _C("attainment", "double", "good / total"),
        _C("objective", "double", "the share to reach"),
        _C("met", "boolean", "attainment ≥ objective"),
        _HOUR,
    ),
    (_DAY,),
)

MARKS = Table(
    "marks",
    "How far each log was shipped: every event up to `number` was written to the partition before "
    "the mark. What is missing below the lowest mark of all partitions is lost, not late.",
    (
        *_WHO,
        _C("log", "string", "the log, as it appears in event ids"),
        _C("shard", "int", "the shard of the log"),
        _C("number", "bigint", "the number of the last event before the mark"),
        _C("partition", "int", "the partition of the topic with the mark; 0 for files"),
        _C("partitions", "int", "how many partitions got the mark"),
        _C("at", "timestamp", "when the last event before the mark happened"),
        _ARRIVAL,
    ),
    (_DAY,),
)

QUARANTINE = Table(
    "quarantine",
    "Records that are not valid events, with the reason. They never stop the stream, and no other "
    "table counts them.",
    (
        _C("problem", "string", "what is wrong with the record"),
        _C(
            "raw",
            "string",
            "the record, with bytes that are not UTF-8 replaced",
        ),
        _C("origin", "string", "where the record came from: a file, or topic/partition/offset"),
        _C("tenant", "string", "the tenant, if the record names one"),
        _C("queue", "string", "the queue, if the record names one"),
        _C("id", "string", "the event's id, if the record has one"),
        _C("number", "bigint", "the event's number, if the record has one"),
        _C("shard", "int", "the shard of the log, if the record has one"),
        _ARRIVAL,
    ),
    (_C("day", "date", "the day on which the record was read (UTC)"),),
)

TABLES: tuple[Table, ...] = (
    EVENTS,
    ATTEMPTS,
    QUEUE_MINUTE,
    TENANT_DAY,
    WORKER_MINUTE,
    TASK_HOUR,
    ERRORS,
    SLO,
    MARKS,
    QUARANTINE,
)
BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}


def as_markdown(table: Table) -> str:
    """The table's section in the guide."""
    by = ", ".join(table.partition_names)
    head = f"### `{table.name}`\n\n{table.doc} Partitioned by {by}.\n\n"
    head += "| column | type | meaning |\n|---|---|---|\n"
    return head + "".join(
        f"| `{c.name}` | {c.type} | {c.doc} |\n" for c in (*table.body, *table.partitions)
    )
