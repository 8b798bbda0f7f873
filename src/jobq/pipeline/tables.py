"""The tables of the lake: a name, columns with their types and meaning, and how it is partitioned.

The guide's tables are written from this file (`jq-pipeline tables`). Times are UTC timestamps; day and hour are those of
the row's own time, so that an event always lands in the same partition, however late or often it arrives.
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
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobq.core.states import QueueKind
from jobq.core.wire import GAP

# By hand and not by StructType.fromDDL, which needs a running session.
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}


def struct(fields: dict[str, str]) -> StructType:
    """A schema from names and types."""
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
        """Names, in order."""
        return [column.name for column in (*self.body, *self.partitions)]

    @property
    def partition_names(self) -> list[str]:
        """The columns it is partitioned by."""
        return [column.name for column in self.partitions]

    @property
    def schema(self) -> StructType:
        """Its schema."""
        return struct({column.name: column.type for column in (*self.body, *self.partitions)})


_C = Column
_DAY = _C("day", "date", "the day (UTC)")
_HOUR = _C("hour", "int", "the hour of the day (UTC)")
_WHO = (_C("tenant", "string", "the tenant"), _C("queue", "string", "the queue"))

WITHOUT_JOB = [*(kind.value for kind in QueueKind), GAP]
"""Kinds of events that have no job and no state: what was done to a queue, and gaps."""

EVENTS = Table(
    "events",
    "The audit log: one row per transition and per operation on a queue, each exactly once.",
    (
        _C(
            "id",
            "string",
            "never used for another event; by its numbers, the events of one job are in order",
        ),
        _C(
            "kind",
            "string",
            "what happened: accepted, started, completed, …; paused, limits, cleared, … of a queue; or `gap`",
        ),
        _C("at", "timestamp", "when, by the store's clock"),
        *_WHO,
        _C("job", "string", "the job's id"),
        _C("life", "int", "how often the job was begun anew"),
        _C("name", "string", "the task"),
        _C("key", "string", "its concurrency key"),
        _C("attempt", "int", "runs begun so far"),
        _C("failures", "int", "runs of this life that failed"),
        _C("stalls", "int", "runs of this life whose lease was lost"),
        _C("state", "string", "where the job stands now"),
        _C("previous", "string", "where it stood before; null for `accepted`"),
        _C("worker", "string", "the worker that made the call"),
        _C("reason", "string", "why it failed or was cancelled"),
        _C("error", "string", "type and message of the error"),
        _C("fingerprint", "string", "the same for errors of one cause"),
        _C("created_at", "timestamp", "when the job was accepted"),
        _C("due_at", "timestamp", "when it was (or is) due"),
        _C("started_at", "timestamp", "when its latest run began"),
        _C("finished_at", "timestamp", "when it ended"),
        _C(
            "number",
            "bigint",
            "counts the events of a shard of the queue's log from 1 without gaps; null or 0 before jobq 0.2",
        ),
        _C("shard", "int", "the partition of a partitioned queue, else 0"),
        _C("actor", "string", "who gave the command"),
    ),
    (_DAY, _HOUR),
)

ATTEMPTS = Table(
    "attempts",
    "One row per run that has ended.",
    (
        *_WHO,
        _C("job", "string", "the job's id"),
        _C("life", "int", "its life"),
        _C("attempt", "int", "which run of the job this was, from 1"),
        _C("name", "string", "the task"),
        _C("key", "string", "its concurrency key"),
        _C("worker", "string", "who ran it; for a stalled run, who had begun it"),
        _C(
            "outcome",
            "string",
            "the event that ended the run: completed, retried, failed, stalled, snoozed, released, limited, blocked, cancelled",
        ),
        _C("reason", "string", "why, if it did not complete"),
        _C("fingerprint", "string", "of its error"),
        _C("due_at", "timestamp", "when it should have begun"),
        _C("started_at", "timestamp", "when it began"),
        _C("ended_at", "timestamp", "when it ended"),
        _C(
            "wait_ms",
            "bigint",
            "due to start (never below 0); null if the event of its start is not in the lake",
        ),
        _C("run_ms", "bigint", "start to end"),
        _C("failures", "int", "runs of this life that failed, this one included"),
        _C("stalls", "int", "runs of this life that stalled, this one included"),
    ),
    (_DAY, _HOUR),
)

QUEUE_MINUTE = Table(
    "queue_minute",
    "What happened in each minute of each queue. Minutes in which nothing happened are left out, except the first of a day.",
    (
        *_WHO,
        _C("minute", "timestamp", "its start"),
        _C("accepted", "bigint", "jobs accepted"),
        _C("rerun", "bigint", "ended jobs begun anew"),
        _C("started", "bigint", "runs begun"),
        _C("completed", "bigint", "jobs completed"),
        _C("failed", "bigint", "jobs failed for good"),
        _C("cancelled", "bigint", "jobs cancelled"),
        _C("retried", "bigint", "runs that failed and will be retried"),
        _C("stalled", "bigint", "runs whose lease was lost and that go back to the line"),
        _C(
            "returned",
            "bigint",
            "runs that went back at no cost: snoozed, released, limited, blocked",
        ),
        _C(
            "wait_p50",
            "double",
            "ms from due to start, of the runs begun (percentiles are exact, by nearest rank)",
        ),
        _C("wait_p95", "double", ""),
        _C("wait_p99", "double", ""),
        _C("wait_ms", "bigint", "the sum"),
        _C("run_p50", "double", "ms from start to end, of the runs ended"),
        _C("run_p95", "double", ""),
        _C("run_p99", "double", ""),
        _C("run_ms", "bigint", "the sum"),
        _C("waiting_change", "bigint", "jobs that became waiting, less those that ceased to be"),
        _C("held_change", "bigint", "jobs begun, less those ended"),
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
        _C("rerun", "bigint", "ended jobs begun anew"),
        _C("started", "bigint", "runs begun"),
        _C("completed", "bigint", "jobs completed"),
        _C("failed", "bigint", "jobs failed for good"),
        _C("cancelled", "bigint", "jobs cancelled"),
        _C("retried", "bigint", "runs that failed and were retried"),
        _C("run_ms", "bigint", "time spent running, of the runs that ended this day"),
        _C("wait_ms", "bigint", "time spent waiting, of the runs begun this day"),
        _C("held", "bigint", "jobs accepted and not ended at the end of the day"),
    ),
    (_DAY,),
)

WORKER_MINUTE = Table(
    "worker_minute",
    "How busy each worker was in each minute. A run counts in every minute it touches, back to 24 hours before its end.",
    (
        _C("worker", "string", "the worker"),
        _C("minute", "timestamp", "its start"),
        _C("runs", "bigint", "runs that touched the minute"),
        _C("busy_ms", "bigint", "time spent in runs, added up over runs at the same time"),
        _C("covered_ms", "bigint", "time with at least one run under way"),
        _C("concurrency", "double", "busy_ms / 60,000: runs at a time, on average"),
        _C(
            "utilisation",
            "double",
            "covered_ms / 60,000: the share of the minute in which it was working",
        ),
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
        _C("fingerprint", "string", "the same for errors of one cause"),
        _C("count", "bigint", "how many"),
        _C("final", "bigint", "of them, those that ended their job as failed"),
        _C("first_at", "timestamp", "the first in the hour"),
        _C("last_at", "timestamp", "the last in the hour"),
        _C("example", "string", "the text of the last one"),
        _C("example_job", "string", "the job of the last one"),
        _HOUR,
    ),
    (_DAY,),
)

SLO = Table(
    "slo",
    "Attainment of each target, per queue and hour.",
    (
        *_WHO,
        _C("target", "string", "the target's name in the configuration"),
        _C("good", "bigint", "those within the target"),
        _C("total", "bigint", "those it applies to"),
        _C("attainment", "double", "good / total"),
        _C("objective", "double", "the share that was wanted"),
        _C("met", "boolean", "attainment ≥ objective"),
        _HOUR,
    ),
    (_DAY,),
)

QUARANTINE = Table(
    "quarantine",
    "Records that are no events, with the reason. They are never counted, and never stop the stream.",
    (
        _C("problem", "string", "what is wrong with it"),
        _C(
            "raw",
            "string",
            "the record as it came, with bytes that are not UTF-8 replaced; of a file's line that is JSON, only the fields of "
            "an event (`origin` has the line itself)",
        ),
        _C("origin", "string", "where it came from: file, or topic/partition/offset"),
    ),
    (_C("day", "date", "the day it was read (UTC)"),),
)

TABLES: tuple[Table, ...] = (
    EVENTS,
    ATTEMPTS,
    QUEUE_MINUTE,
    TENANT_DAY,
    WORKER_MINUTE,
    ERRORS,
    SLO,
    QUARANTINE,
)
BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}


def as_markdown(table: Table) -> str:
    """The table's page in the guide."""
    by = ", ".join(table.partition_names)
    head = f"### `{table.name}`\n\n{table.doc} Partitioned by {by}.\n\n| column | type | meaning |\n|---|---|---|\n"
    return head + "".join(
        f"| `{c.name}` | {c.type} | {c.doc} |\n" for c in (*table.body, *table.partitions)
    )
