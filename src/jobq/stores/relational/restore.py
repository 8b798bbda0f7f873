"""Stores failed jobs of another store."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core import copies
from jobq.core.records import JobRecord, JobSpec
from jobq.core.states import Kind
from jobq.stores.relational import ending, new_jobs, put, steps
from jobq.stores.relational.codes import ERRED, FAILED, GIVEN, TTL
from jobq.stores.relational.options import pack_failure
from jobq.stores.relational.tx import Tx


def restore(tx: Tx, checked: Sequence[tuple[JobRecord, JobSpec]]) -> list[bool]:
    """Implements `Store.restore`, for what `check_restored` returns."""
    return [_restore(tx, record, spec) for record, spec in checked]


def _restore(tx: Tx, record: JobRecord, spec: JobSpec) -> bool:
    assert record.failure is not None  # check_restored
    queue = put.checked(tx.ensure_queue(record.queue), [spec])
    old, life = put.old_job_and_life(tx, queue, record.id)
    if old is not None:
        return False
    job = new_jobs.insert(tx, queue.qid, spec, life, None, blocked=True)
    if job is None:  # another transaction has just taken the id
        return False
    job.created_ms, job.due_ms = min(record.created_ms, tx.now), _past(tx, record.due_ms)
    job.attempt, job.failures = record.attempt, record.failures
    job.stalls = copies.stalls_before(record)
    tx.record(job, Kind.ACCEPTED, None)
    job.stalls = record.stalls
    job.started_ms, job.worker = _past(tx, record.started_ms), record.worker
    job.finished_ms = tx.now
    for error in record.errors:
        tx.execute(tx.sql.ties["add_error"], (job.pk, error.attempt, pack_failure(error)))
        job.flags |= ERRED
    if record.steps:
        steps.put(tx, job.pk, record.steps)
        job.flags |= steps.FLAGS
    job.keep = 1 if job.flags & (GIVEN | TTL) else 0
    job.at_ms = ending.keep_until(queue.settings, FAILED, tx.now, result_ttl_ms=spec.result_ttl_ms)
    tx.move(job, Kind.FAILED, FAILED, failure=record.failure)
    return True


def _past(tx: Tx, ms: int | None) -> int | None:
    """A time of the other store, whose clock may be ahead: nothing has happened after now."""
    return None if ms is None else min(ms, tx.now)
