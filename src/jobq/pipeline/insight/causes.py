"""Failures by cause, over the whole lake: dead letters, and failures that are new since a time."""

from __future__ import annotations

import shlex

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of one cause in one queue. Times are in ms since the epoch."""

    tenant: str
    queue: str
    tasks: list[str]
    reason: str | None
    fingerprint: str | None
    failures: int  # runs that failed, and jobs that failed without a run
    dead: int  # jobs that failed for good; some may have been rerun since
    first_ms: int
    last_ms: int
    example: str | None
    example_job: str | None

    @property
    def command(self) -> str:
        """The command that reruns the dead letters of this cause."""
        return rerun_command(self.tenant, self.queue, self.fingerprint or self.reason)


def rerun_command(tenant: str, queue: str, error: str | None) -> str:
    """The `jq-ctl` command that reruns the failed jobs of a cause. Names are quoted for a shell.

    A failure without fingerprint and reason has nothing to select by: the command then reruns all
    failed jobs of the queue, after it has asked."""
    words = ["jq-ctl", "--tenant", tenant, "job", "rerun", "-q", queue]
    words += ["--where", f"error={error}" if error else "state=failed"]
    return shlex.join(words)


def causes(errors: DataFrame) -> DataFrame:
    """One row per queue and cause, of rows of `errors`."""
    grouped = errors.groupBy("tenant", "queue", "reason", "fingerprint").agg(
        F.sort_array(F.collect_set("name")).alias("tasks"),
        F.sum("count").alias("failures"),
        F.sum("final").alias("dead"),
        F.min(F.unix_millis("first_at")).alias("first_ms"),
        F.max(F.unix_millis("last_at")).alias("last_ms"),
        F.max_by(F.struct("example", "example_job"), F.struct("last_at", "example_job")).alias("e"),
    )
    return grouped.select("*", "e.example", "e.example_job").select(*Cause.__struct_fields__)


def dead_letters(errors: DataFrame, limit: int) -> list[Cause]:
    """The causes that failed jobs for good, those with the most jobs first."""
    found = causes(errors).where("dead > 0")
    return _read(found.orderBy(F.desc("dead"), F.desc("last_ms"), "fingerprint"), limit)


def new_failures(errors: DataFrame, since_ms: int, limit: int) -> list[Cause]:
    """The causes that were first seen at this time or later, the newest first.

    `errors` must have all days: a cause that was seen before `since_ms` is not new."""
    found = causes(errors).where(F.col("first_ms") >= since_ms)
    return _read(found.orderBy(F.desc("first_ms"), "fingerprint"), limit)


def _read(frame: DataFrame, limit: int) -> list[Cause]:
    return [Cause(**row.asDict()) for row in frame.limit(limit).collect()]
