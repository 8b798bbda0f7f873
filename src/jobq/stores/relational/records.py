"""Makes the records that readers get from rows of the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core.records.event_log import STATES
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import LimitsRecord, QueueRecord, ScheduleRecord, ScheduleSpec
from jobq.core.rules.outcomes import legible
from jobq.stores.relational import keys, packed
from jobq.stores.relational.packed import (
    BROKEN,
    given_options,
    unpack_failure,
    unpack_options,
)
from jobq.stores.relational.rows import CANCEL, GIVEN, DamagedJob, Job, QueueRow, ScheduleRow
from jobq.stores.relational.tx import Tx


def record(job: Job, queue: QueueName) -> JobRecord:
    """The record of a job, without its parents, children and errors. See `legible`."""
    options = unpack_options(job.options)
    found = JobRecord(
        queue=queue,
        id=job.id,
        name=job.name,
        state=STATES[job.state],
        payload=job.payload,
        codec=job.codec,
        priority=job.priority,
        key=job.key,
        life=job.life,
        attempt=job.attempt,
        failures=job.failures,
        stalls=job.stalls,
        created_ms=job.created_ms,
        due_ms=job.due_ms,
        started_ms=job.started_ms,
        finished_ms=job.finished_ms,
        worker=job.worker,
        result=job.result,
        failure=unpack_failure(job.failure),
        reason=job.reason,
        progress=job.progress,
        saved=job.saved,
        cancel_asked=bool(job.flags & CANCEL),
        schedule=options.schedule,
        origin=options.origin,
        meta=options.meta,
        options=given_options(options),
        given_id=bool(job.flags & GIVEN),
        deferred=options.deferred,
    )
    return legible(found, damaged=options is BROKEN or isinstance(job, DamagedJob))


def queue_record(tx: Tx, queue: QueueRow) -> QueueRecord:
    """The record of a queue."""
    stored = queue.settings if tx.readable(queue) else packed.DEFAULT_SETTINGS
    limits = LimitsRecord(
        declared=stored.limits,
        version=stored.version,
        changed=stored.changed,
        keys=keys.all_overrides(tx, queue.qid),
    )
    return QueueRecord(
        queue=queue.qname,
        mode=queue.mode,
        limits=limits,
        retention=stored.retention,
        dead_letters=stored.dead_letters,
        max_stalls=stored.max_stalls,
        event_meta=stored.event_meta,
        defaults=stored.defaults,
        paused=bool(queue.paused),
    )


def schedule_record(row: Sequence[Any]) -> ScheduleRecord:
    """The record of a row of schedules."""
    found = ScheduleRow(*row)
    return ScheduleRecord(
        spec=msgspec.msgpack.decode(found.spec, type=ScheduleSpec),
        next_ms=found.next_ms,
        fired=found.fired,
        last_ms=found.last_ms,
        paused=bool(found.paused),
        created_ms=found.created_ms,
    )
