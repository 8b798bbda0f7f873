"""Actions on queues and schedules."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from jobq.client.ids import new_id
from jobq.core.records.commands import Promote
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.records.states import ENDED, State
from jobq.core.rules.limits import queue_full
from jobq.core.values import checks
from jobq.errors import InvalidJob
from jobq.operations import schedules
from jobq.operations.limits import checked_limits, parse_rate, set_limits
from jobq.operations.listing import get_queue
from jobq.web.data import bodies as b
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.view import View

_STEP = 1_000
"""Jobs that one step of clearing or purging changes."""
_MORE = "more"
"""The cursor of a step that is repeated as it is."""
_SOON_MS = 1_000
"""The delay of a job that is run now, until it is promoted. The event `promoted` names who ran it,
which `accepted` cannot. If the promotion is lost, the job starts after this time."""


async def _known(view: View, body: b.QueueBody) -> QueueName:
    """The queue. JobNotFound if it does not exist: a typing error must not create a queue."""
    return (await get_queue(view.store, QueueName(body.tenant, body.queue))).queue


async def pause(view: View, body: b.QueueBody) -> Done:
    """Pause a queue: workers claim no more of its jobs. Running jobs go on."""
    await view.store.pause(await _known(view, body), actor=view.actor)
    return Done(changed=1, message=f"Paused {body.queue}.")


async def resume(view: View, body: b.QueueBody) -> Done:
    """Resume a queue. Lifts a hold of the queue."""
    await view.store.resume(await _known(view, body), actor=view.actor)
    return Done(changed=1, message=f"Resumed {body.queue}.")


async def hold(view: View, body: b.HoldBody) -> Done:
    """Start no jobs of a queue, or of one key, for some seconds."""
    ms = checks.to_ms(body.seconds, "seconds", positive=True)
    key = None if not body.key else checks.check_key(body.key)
    await view.store.hold(await _known(view, body), ms, key, actor=view.actor)
    what = body.queue if key is None else f"key {key} of {body.queue}"
    return Done(changed=1, message=f"Held {what} for {body.seconds:g} s.")


async def release_hold(view: View, body: b.KeyBody) -> Done:
    """Lift the hold of a queue, or of one key."""
    released = await view.store.release_hold(
        await _known(view, body), body.key or None, actor=view.actor
    )
    what = body.queue if not body.key else f"key {body.key} of {body.queue}"
    message = f"Released the hold of {what}." if released else f"There is no hold of {what}."
    return Done(changed=int(released), message=message)


async def release_lock(view: View, body: b.LockBody) -> Done:
    """Release a unique lock, so that a new job with it is accepted."""
    released = await view.store.release_lock(await _known(view, body), body.lock, actor=view.actor)
    message = "Released the lock." if released else "Nobody holds the lock."
    return Done(changed=int(released), message=message)


async def limits(view: View, body: b.LimitsBody) -> Done:
    """Change the limits of a queue or of one key, or restore the declared ones."""
    queue = await _known(view, body)
    key = None if not body.key else checks.check_key(body.key)
    if body.reset:
        await view.store.set_limits(queue, None, key=key, actor=view.actor)
    else:
        await set_limits(view.store, queue, _limits(body), key=key, actor=view.actor, keep=False)
    what = body.queue if key is None else f"key {key} of {body.queue}"
    did = "Restored" if body.reset else "Changed"
    return Done(changed=1, message=f"{did} the limits of {what}.")


def _limits(body: b.LimitsBody) -> dict[str, Any]:
    given = {
        "limit": body.limit,
        "rate": parse_rate(body.rate) if body.rate else None,
        "key_limit": body.key_limit,
        "key_rate": parse_rate(body.key_rate) if body.key_rate else None,
        "max_waiting": body.max_waiting,
    }
    return checked_limits({name: value for name, value in given.items() if value is not None})


async def clear(view: View, body: b.ClearBody) -> BulkDone:
    """Cancel waiting jobs of a queue, up to 1,000 per step."""
    changed = await view.store.purge_pending(
        await _known(view, body), delayed=body.delayed, limit=_STEP, actor=view.actor
    )
    return _step(view, changed, f"Cancelled {changed:,} jobs of {body.queue}.")


async def purge(view: View, body: b.PurgeBody) -> BulkDone:
    """Remove the records of ended jobs of a queue, up to 1,000 per step."""
    if body.state not in ENDED:
        raise InvalidJob(f"state={body.state!r}: purge completed, failed or cancelled jobs")
    changed = await view.store.purge_ended(
        await _known(view, body),
        State(body.state),
        older_than_ms=checks.to_ms(body.older_than_s, "older_than_s"),
        limit=_STEP,
        actor=view.actor,
    )
    return _step(view, changed, f"Removed {changed:,} {body.state} jobs of {body.queue}.")


def _step(view: View, changed: int, message: str) -> BulkDone:
    return BulkDone(
        changed=changed,
        skipped=0,
        looked_at=changed,
        cursor=_MORE if changed >= _STEP else None,
        began_ms=view.now_ms(),
        message=message,
    )


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


async def run_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Enqueue the job of a schedule now. Its count and its next time do not change."""
    queue = QueueName(body.tenant, body.queue)
    job = await schedules.extra_job(view.store, queue, body.id, new_id())
    (result,) = await view.store.put([replace(job, delay_ms=_SOON_MS, at_ms=None)])
    if result.full is not None:
        raise queue_full(body.queue, result.full)
    key = JobKey(job.queue, result.id)
    await view.store.alter([Promote(job=key, actor=view.actor)])
    return Done(changed=1, message=f"Enqueued job {result.id}.")


async def pause_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Make no more jobs until the schedule is resumed."""
    return await _set_paused(view, body, True)


async def resume_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Make jobs again."""
    return await _set_paused(view, body, False)


async def _set_paused(view: View, body: b.ScheduleBody, paused: bool) -> Done:
    queue = QueueName(body.tenant, body.queue)
    changed = await schedules.set_paused(view.store, queue, body.id, paused, view.actor)
    did = "Paused" if paused else "Resumed"
    message = f"{did} schedule {body.id}." if changed else f"It was {did.lower()} already."
    return Done(changed=int(changed), message=message)


async def remove_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Remove a schedule. The jobs it made stay."""
    queue = QueueName(body.tenant, body.queue)
    await schedules.remove(view.store, queue, body.id, view.actor)
    return Done(changed=1, message=f"Removed schedule {body.id}.")
