"""The documents that `--output json|yaml` prints. Keys may be added, but never renamed or dropped.

Every key is always present, with null for no value. Times are ISO 8601 in UTC. Durations are in
milliseconds, in keys that end with `_ms`.
"""

from __future__ import annotations

import base64
from enum import Enum
from typing import Any

import msgspec

from jobq.cli.output import plain
from jobq.cli.text import iso
from jobq.core.records.events import FIELDS, EventRecord, values
from jobq.core.records.jobs import Failure, JobKey, JobRecord
from jobq.core.records.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.core.rules.deferral import sentence
from jobq.core.rules.options import APPLIED, Option
from jobq.core.rules.waits import StepRecord, readable
from jobq.core.values.codec import get_codec

Document = dict[str, Any]


def decode(data: bytes | None, codec: str) -> Any:
    """Decode a stored value. Bytes that cannot be decoded here are returned as base64."""
    if data is None:
        return None
    try:
        return plain(get_codec(codec).decode(data, Any))
    except Exception:  # a custom codec may raise anything, and the job must still be shown
        return {"codec": codec, "base64": base64.b64encode(data).decode()}


def arguments(record: JobRecord) -> tuple[Any, Any]:
    """A job's args and kwargs. A payload that cannot be decoded is shown whole, as args."""
    try:
        args, kwargs = get_codec(record.codec).for_task(record.name).decode_call(record.payload)
        return plain(args), plain(kwargs)
    except Exception:  # a custom codec may raise anything, and the job must still be shown
        return decode(record.payload, record.codec), {}


def job(record: JobRecord) -> Document:
    """Everything about a job."""
    args, kwargs = arguments(record)
    return {
        "tenant": record.queue.tenant,
        "queue": record.queue.queue,
        "id": record.id,
        "name": record.name,
        "state": record.state.value,
        "args": args,
        "kwargs": kwargs,
        "result": decode(record.result, record.codec),
        "failure": failure(record.failure),
        "errors": [failure(error) for error in record.errors],
        "reason": record.reason,
        "deferred": sentence(record),
        "priority": record.priority,
        "key": record.key,
        "life": record.life,
        "attempt": record.attempt,
        "failures": record.failures,
        "stalls": record.stalls,
        "created_at": iso(record.created_ms),
        "due_at": iso(record.due_ms),
        "started_at": iso(record.started_ms),
        "finished_at": iso(record.finished_ms),
        "worker": record.worker,
        "progress": decode(record.progress, record.codec),
        "saved": decode(record.saved, record.codec),
        "steps": [step(name, each, record.codec) for name, each in readable(record.steps)],
        "cancel_asked": record.cancel_asked,
        "meta": record.meta or {},
        "options": options(record),
        "schedule": record.schedule,
        "origin": record.origin,
        "parents": [_ref(key) for key in record.parents],
        "children": [_ref(key) for key in record.children],
    }


def options(record: JobRecord) -> Document:
    """The options in effect. `"worker"` means that the task's declaration in the worker decides."""
    return {
        option.name if option.kind == "moment" else option.field: _value(option, record)
        for option in APPLIED
    }


def _value(option: Option, record: JobRecord) -> Any:
    value = option.of(record)
    if value is None:
        return "worker" if option.by_worker else None
    match option.kind:
        case "span":
            return value or None
        case "moment":
            return iso(value)
        case "retry" | "unique":
            return plain(msgspec.structs.asdict(value))
        case _:
            return value


def failure(value: Failure | None) -> Document | None:
    """A failed run: its error, and where and when it happened."""
    if value is None:
        return None
    return {
        "reason": value.reason,
        "type": value.type,
        "message": value.message,
        "traceback": value.traceback,
        "attempt": value.attempt,
        "at": iso(value.at_ms),
        "fingerprint": value.fingerprint,
        "worker": value.worker,
        "exhausted": value.exhausted,
    }


def step(name: str, record: StepRecord, codec: str) -> Document:
    """What a step of a job has recorded."""
    return {
        "name": name,
        "result": decode(record.result, codec),
        "attempt": record.attempt,
        "at": iso(record.at_ms),
    }


def queue(record: QueueRecord, stats: StatsRecord) -> Document:
    """A queue's counts and settings."""
    retention = record.retention
    return {
        "tenant": record.queue.tenant,
        "queue": record.queue.queue,
        "mode": record.mode,
        "paused": stats.paused,
        "counts": {state.value: stats.counts.get(state, 0) for state in State},
        "workers": stats.workers,
        "oldest_waiting_ms": stats.oldest_waiting_ms,
        "next_due_ms": stats.next_due_ms,
        "held_until": iso(stats.held_until_ms),
        "partitions": record.partitions,
        "limits": plain(record.limits.effective),
        "retention": {
            "completed_ms": retention.completed_ms,
            "failed_ms": retention.failed_ms,
            "cancelled_ms": retention.cancelled_ms,
            "count": retention.count,
        },
        "dead_letters": record.dead_letters,
        "defaults": {
            "max_retries": record.defaults.max_retries,
            "ttl_ms": record.defaults.ttl_ms,
        },
    }


def minute(record: MinuteRecord) -> Document:
    """A queue's counters for one minute."""
    return {
        "minute": iso(record.minute_ms),
        "accepted": record.accepted,
        "started": record.started,
        "completed": record.completed,
        "failed": record.failed,
        "cancelled": record.cancelled,
        "retried": record.retried,
        "stalled": record.stalled,
        "wait_ms": record.wait_ms,
        "run_ms": record.run_ms,
    }


def worker(record: WorkerRecord) -> Document:
    """A worker, as of its last heartbeat."""
    return {
        "name": record.name,
        "host": record.host,
        "pid": record.pid,
        "queues": [{"tenant": q.tenant, "queue": q.queue} for q in record.queues],
        "concurrency": record.concurrency,
        "active": record.active,
        "paused": record.paused,
        "draining": record.draining,
        "started_at": iso(record.started_ms),
        "seen_at": iso(record.seen_ms),
    }


def event(record: EventRecord) -> Document:
    """One event of the log."""
    made = {"id": "", "number": 0, "shard": 0, "position": record.position}  # in their order
    for field, value in zip(FIELDS, values(record), strict=True):
        if field.word == "time":
            value = iso(value)
        made[field.shown] = value.value if isinstance(value, Enum) else value
    return {**made, "meta": record.meta or {}}


def _ref(key: JobKey) -> Document:
    return {"queue": key.queue.queue, "id": key.id}
