"""Actions on single jobs, and on all jobs that match a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from jobq.access.listing import listed
from jobq.api.tree import MAX_JOBS, read_members
from jobq.core import checks
from jobq.core.codec import get_codec
from jobq.core.commands import (
    APPLIES,
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
from jobq.core.graph import revivals
from jobq.core.records import JobKey, QueueName
from jobq.core.states import State
from jobq.errors import InvalidJob, JobNotFound
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
    (reply,) = await view.store.alter([command])
    key = command.job
    if reply == "missing":
        raise JobNotFound(f"there is no job {key.id!r} in queue {key.queue.queue!r}")
    if reply == "late":
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
    members = await read_members(view.store, key.queue, key.id)
    if len(members) > 10 * MAX_JOBS:
        raise InvalidJob(f"the flow has {len(members):,} jobs: use jq-ctl flow rerun {key.id}")
    changed = 0
    for group in revivals(members):
        keys = list(group)
        for start in range(0, len(keys), STEP):
            commands = [Revive(job=job, actor=view.actor) for job in keys[start : start + STEP]]
            changed += (await view.store.alter(commands)).count("done")
    return Done(changed=changed, message=f"{changed:,} jobs of the flow run again.")


# ── all jobs that match ───────────────────────────────────────────────────────────────────────────


async def rerun_all(view: View, body: b.BulkBody) -> BulkDone:
    """Run ended jobs again, up to 500 per step."""
    return await _bulk(
        view, body, "rerun", lambda job: Rerun(job=job, actor=view.actor), "Queued again"
    )


async def cancel_all(view: View, body: b.BulkBody) -> BulkDone:
    """Cancel jobs, up to 500 per step. Running jobs are asked to stop."""
    return await _bulk(
        view, body, "cancel", lambda job: Cancel(job=job, actor=view.actor), "Cancelled"
    )


async def promote_all(view: View, body: b.BulkBody) -> BulkDone:
    """Make delayed jobs waiting now, up to 500 per step."""
    return await _bulk(
        view, body, "promote", lambda job: Promote(job=job, actor=view.actor), "Promoted"
    )


async def remove_all(view: View, body: b.BulkBody) -> BulkDone:
    """Remove the records of ended jobs and cancel waiting ones, up to 500 per step."""
    return await _bulk(
        view, body, "remove", lambda job: Remove(job=job, actor=view.actor), "Removed"
    )


async def _bulk(
    view: View,
    body: b.BulkBody,
    kind: str,
    command: Callable[[JobKey], AnyCommand],
    did: str,
) -> BulkDone:
    query = JobQuery(**{name: getattr(body, name) for name in _QUERY})
    wanted = criteria_of(view, query)
    _check_states(kind, wanted.states)
    began_ms = view.now_ms() if body.began_ms is None else body.began_ms
    if kind == "rerun" and len(wanted.states) > 1:
        # A job that was rerun from one state must not be rerun again when it is found in another.
        before = wanted.ended_before_ms
        wanted = replace(
            wanted, ended_before_ms=began_ms if before is None else min(before, began_ms)
        )
    if kind == "remove":
        # Ended jobs first: a waiting job that is removed now stays on record as cancelled.
        wanted = replace(wanted, states=wanted.states[::-1])
    queue = QueueName(body.tenant, body.queue)
    page = await listed(view.store, queue, wanted, limit=STEP, cursor=body.cursor or "")
    commands = [command(JobKey(queue, record.id)) for record in page.records]
    changed = (await view.store.alter(commands)).count("done") if commands else 0
    return BulkDone(
        changed=changed,
        skipped=len(commands) - changed,
        looked_at=page.looked_at,
        cursor=page.cursor or None,
        began_ms=began_ms,
        message=f"{did} {changed:,} jobs.",
    )


_QUERY = tuple(
    field for field in b.BulkBody.__struct_fields__ if field not in ("cursor", "began_ms")
)


def _check_states(kind: str, states: tuple[State, ...]) -> None:
    allowed = APPLIES[kind].states
    if not states:
        raise InvalidJob("choose at least one state")
    for state in states:
        if state not in allowed:
            names = ", ".join(each.value for each in State if each in allowed)
            raise InvalidJob(f"{kind} does not apply to {state.value} jobs: choose {names}")
