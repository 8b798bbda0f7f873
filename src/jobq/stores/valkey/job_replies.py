"""Jobs in replies: leases, records, and completed jobs that the server published."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from jobq.core.event_log import STATE_CODES, STATES
from jobq.core.records import Failure, JobRecord, Lease, QueueName
from jobq.core.states import State
from jobq.core.verdicts import legible
from jobq.stores.valkey.job_extras import NO_EXTRAS, extras, failed_run
from jobq.stores.valkey.keys import queue_of
from jobq.stores.valkey.stored_job import (
    BROKEN,
    DEFAULTS,
    NO_RUN,
    RUN_FLAGS,
    has_given_id,
    record_fields,
    run_fields,
)

_CANCEL, _LAST_CHANCE = RUN_FLAGS["cancel"], RUN_FLAGS["last_chance"]
_ACTIVE, _COMPLETED = STATE_CODES[State.ACTIVE], STATE_CODES[State.COMPLETED]
_CANCELLED = STATE_CODES[State.CANCELLED]
PUBLISHED = b"\xff"
"""The first byte of a published job; PUBLISHED in lua/fields.lua has the layout."""
_published = Struct(">xHIHHIHI").unpack_from  # PUBLISHED.head: finished, and five lengths
_PUBLISHED_SIZE = 21


def leases(
    queue: QueueName, granted: Sequence[Any], lease_ms: int, suffix: str = ""
) -> tuple[Lease, ...]:
    """The leases that a claim was granted (see lua/settle.lua). `suffix` ends their tokens."""
    expires, stem, first_runs, others, retries = granted
    default = int(retries) if retries else None
    until, token = int(expires), stem.decode()
    started = until - lease_ms
    by_index = {
        others[n]: _lease(queue, others[n + 1 : n + 5], until, suffix, default)
        for n in range(0, len(others), 5)
    }
    pairs = zip(first_runs[::2], first_runs[1::2], strict=True)
    return tuple(
        [
            by_index.get(n)
            or _first_run(queue, *next(pairs), f"{token}{n}{suffix}", started, until, default)
            for n in range(len(by_index) + len(first_runs) // 2)
        ]
    )


def _first_run(
    queue: QueueName,
    id: bytes,
    rec: bytes,
    token: str,
    started: int,
    expires: int,
    default_retries: int | None,
) -> Lease:
    """The lease of a job's first run. The record says everything about the job."""
    try:
        created, due, life, name, key, options, payload = record_fields(rec)
    except BROKEN:
        return _unreadable(queue, id, rec, token, 1, started, expires)
    return Lease(
        queue=queue,
        id=id.decode(),
        token=token,
        life=life,
        name=name,
        payload=payload,
        codec=options.codec,
        attempt=1,
        failures=0,
        stalls=0,
        created_ms=created,
        started_ms=started,
        expires_ms=expires,
        key=key,
        # begin scripts/options.py: lease
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        # end scripts/options.py
        due_ms=due or created,
        default_retries=default_retries,
    )


def _lease(
    queue: QueueName, parts: Sequence[Any], expires: int, suffix: str, default_retries: int | None
) -> Lease:
    id, rec, packed_run, flat = parts
    run = run_fields(packed_run)
    try:
        created, due, life, name, key, options, payload = record_fields(rec)
        more = extras(flat)
    except BROKEN:
        return _unreadable(queue, id, rec, run.token + suffix, run.attempt, run.started, expires)
    return Lease(
        queue=queue,
        id=id.decode(),
        token=run.token + suffix,
        life=life,
        name=name,
        payload=payload,
        codec=options.codec,
        attempt=run.attempt,
        failures=run.failures,
        stalls=run.stalls,
        created_ms=created,
        started_ms=run.started,
        expires_ms=expires,
        key=key,
        # begin scripts/options.py: lease
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        # end scripts/options.py
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0,
        last_chance=run.flags & _LAST_CHANCE > 0,
        unknown_ms=more.unknown_ms,
        unfit_ms=None if more.deferred is None else more.deferred.unfit_ms or None,
        inputs=more.inputs,
        signals=more.signals,
        steps=more.steps,
        due_ms=run.due or due or created,
        default_retries=default_retries,
    )


def _unreadable(
    queue: QueueName, id: bytes, rec: bytes, token: str, attempt: int, started: int, expires: int
) -> Lease:
    """The lease of a job whose record cannot be read: enough for the worker to fail it."""
    return Lease(
        queue=queue,
        id=id.decode(errors="replace"),
        token=token,
        life=0,
        name="?",
        payload=rec,
        codec="json",
        attempt=attempt,
        failures=0,
        stalls=0,
        created_ms=started,
        started_ms=started,
        expires_ms=expires,
        unreadable=True,
    )


def record(queue: QueueName, view: Sequence[Any], *, whole: bool = False) -> JobRecord:
    """A job as J.view in lua/reads.lua returns it.

    `whole`: the reply has all failed runs that are kept, not only the last one, and the steps.
    """
    id, state, rec, packed_run, flat, finished, reason, result, failed = view
    damaged = False
    try:
        fields, more, run = record_fields(rec), extras(flat), run_fields(packed_run)
    except BROKEN:  # the job is listed, and its payload is what was stored
        damaged = True
        fields, more, run = (0, 0, 0, "?", None, DEFAULTS, rec), NO_EXTRAS, NO_RUN
    created, due, life, name, key, options, payload = fields
    # What broken_job in lua/record.lua made of it. A restored job may have been created at 0.
    damaged = damaged or (not created and name == "?")
    failure = more.failure
    errors: tuple[Failure, ...] = ()
    if failed:
        errors = tuple([failed_run(entry) for entry in failed])
        failure = errors[-1] if more.failed_last else failure
    found = JobRecord(
        queue=queue,
        id=id.decode(errors="replace"),
        name=name,
        state=STATES[state],
        payload=payload,
        codec=options.codec,
        priority=options.priority,
        key=key,
        life=life,
        attempt=run.attempt,
        failures=run.failures,
        stalls=run.stalls,
        created_ms=created,
        due_ms=None if STATES[state] is State.BLOCKED else run.due or due or created,
        started_ms=run.started or None,
        finished_ms=int(finished) if finished else None,
        worker=run.worker or None,
        result=result[1:] if result else None,
        failure=failure,
        errors=errors if whole else (),
        steps=more.steps if whole else (),
        reason=reason.decode(errors="replace") if state == _CANCELLED else None,
        progress=more.progress,
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0 and state == _ACTIVE,
        schedule=options.schedule,
        origin=options.origin,
        meta=options.meta,
        options=options.as_call_options(),
        parents=more.parents,
        children=more.children,
        given_id=has_given_id(rec),
        deferred=more.deferred,
    )
    return legible(found, damaged=damaged)


def published(data: bytes) -> tuple[QueueName, JobRecord]:
    """A completed job from a message on the handle's channel."""
    t1, t2, *sizes = _published(data)
    parts, start = [], _PUBLISHED_SIZE
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    prefix, id, rec, run, result = parts
    queue = queue_of(prefix.decode())
    return queue, record(queue, (id, _COMPLETED, rec, run, b"", t1 << 32 | t2, b"", result, ()))
