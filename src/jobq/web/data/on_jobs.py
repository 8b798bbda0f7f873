"""Actions on single jobs, and on all jobs that match a filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jobq.core.records.commands import (
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Revive,
    SendSignal,
    Update,
)
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.values import checks
from jobq.core.values.codec import get_codec
from jobq.errors import InvalidJob
from jobq.operations import flows, jobs
from jobq.operations.bulk import OPERATIONS, BulkChange
from jobq.operations.listing import MAX_COMPARED
from jobq.web.data import bodies as b
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.job import record_of
from jobq.web.data.jobs import JobQuery, criteria_of
from jobq.web.data.view import View

STEP = 500
"""Jobs that one step of a bulk action changes: a fraction of a second."""
_MAX_VALUE = 2**20
"""Bytes of new arguments or of a signal. jq-server's default for a payload is the same."""


def _key(body: b.JobBody) -> JobKey:
    return JobKey(QueueName(body.tenant, body.queue), checks.check_id(body.id))


async def _do(view: View, command: AnyCommand, did: str) -> Done:
    key = command.job
    if not await jobs.apply(view.store, command):
        (record,) = await view.store.get([key])
        now = "gone" if record is None else record.state.value
        return Done(changed=0, message=f"Nothing changed: the job is {now}.")
    return Done(changed=1, message=f"{did} job {key.id}.")


async def cancel(view: View, body: b.CancelBody) -> Done:
    """Cancel a job. A running job is asked to stop."""
    command = Cancel(job=_key(body), cascade=body.cascade, actor=view.actor)
    return await _do(view, command, "Cancelled")


async def rerun(view: View, body: b.JobBody) -> Done:
    """Run an ended job again from the start."""
    return await _do(view, Rerun(job=_key(body), actor=view.actor), "Queued again")


async def revive(view: View, body: b.JobBody) -> Done:
    """Run a failed or cancelled job again, and keep what it has finished."""
    return await _do(view, Revive(job=_key(body), actor=view.actor), "Revived")


async def promote(view: View, body: b.JobBody) -> Done:
    """Make a delayed job waiting now."""
    return await _do(view, Promote(job=_key(body), actor=view.actor), "Promoted")


async def reprioritise(view: View, body: b.PriorityBody) -> Done:
    """Change the priority of a job that has never started."""
    command = Reprioritise(job=_key(body), priority=body.priority, actor=view.actor)
    return await _do(view, command, "Changed the priority of")


async def reschedule(view: View, body: b.RescheduleBody) -> Done:
    """Change when a waiting or delayed job is due."""
    delay_ms = checks.to_ms(body.delay_s, "delay_s")
    command = Reschedule(job=_key(body), delay_ms=delay_ms, at_ms=body.at_ms, actor=view.actor)
    return await _do(view, command, "Rescheduled")


async def remove(view: View, body: b.JobBody) -> Done:
    """Remove the record of an ended job, or cancel one that has not started."""
    return await _do(view, Remove(job=_key(body), actor=view.actor), "Removed")


async def update(view: View, body: b.UpdateBody) -> Done:
    """Replace the arguments of a job that has never started."""
    key = _key(body)
    args, kwargs = _call(_json(body.arguments, "arguments"))
    record = await record_of(view, body.tenant, body.queue, body.id)
    codec = get_codec(record.codec).for_task(record.name)
    payload = checks.check_payload(
        codec.encode_call(args, kwargs), _MAX_VALUE, f"the arguments of {record.name} take"
    )
    command = Update(job=key, payload=payload, codec=record.codec, actor=view.actor)
    return await _do(view, command, "Changed the arguments of")


def _call(value: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        args, kwargs = value.get("args"), value.get("kwargs")
        both = value.keys() == {"args", "kwargs"}
        if both and isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
        return [], value
    raise InvalidJob("arguments must be a JSON list or object")


def _json(text: str, name: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise InvalidJob(f"{name} is not valid JSON: {e}") from None


async def signal(view: View, body: b.SignalBody) -> Done:
    """Send a signal to a job."""
    key = _key(body)
    name = checks.check_signal(body.name)
    value = _json(body.value or "null", "value")
    record = await record_of(view, body.tenant, body.queue, body.id)
    data = checks.check_payload(
        get_codec(record.codec).encode(value), _MAX_VALUE, f"the value of signal {name!r} takes"
    )
    command = SendSignal(job=key, name=name, value=data, actor=view.actor)
    return await _do(view, command, f"Sent {name} to")


async def rerun_flow(view: View, body: b.JobBody) -> Done:
    """Run the failed and cancelled members of a flow again, and keep the finished ones."""
    key = _key(body)
    changed = await flows.rerun_flow(
        view.store, key.queue, key.id, view.actor, max_jobs=10 * flows.MAX_JOBS
    )
    return Done(changed=changed, message=f"{changed:,} jobs of the flow run again.")


# ── all jobs that match ───────────────────────────────────────────────────────────────────────────


def on_all(kind: str) -> Callable[[View, b.BulkBody], Awaitable[BulkDone]]:
    """An action on all jobs that match, one step at a time."""

    async def act(view: View, body: b.BulkBody) -> BulkDone:
        return await _bulk(view, body, kind)

    act.__doc__ = f"{OPERATIONS[kind].about} Up to {STEP} per step."
    return act


async def _bulk(view: View, body: b.BulkBody, kind: str) -> BulkDone:
    query = JobQuery(**{name: getattr(body, name) for name in _QUERY})
    change = BulkChange(
        view.store,
        QueueName(body.tenant, body.queue),
        criteria_of(view, query),
        kind,
        actor=view.actor,
        now_ms=view.now_ms(),
        began_ms=body.began_ms,
        cursor=body.cursor,
        max_jobs=STEP,
        max_compared=MAX_COMPARED,
    )
    done = await change.run()
    return BulkDone(
        changed=done.changed,
        skipped=done.skipped,
        looked_at=done.looked_at,
        cursor=done.cursor,
        began_ms=change.began_ms or 0,
        message=f"{OPERATIONS[kind].did.capitalize()} {done.changed:,} jobs.",
    )


_QUERY = tuple(
    field for field in b.BulkBody.__struct_fields__ if field not in ("cursor", "began_ms")
)
