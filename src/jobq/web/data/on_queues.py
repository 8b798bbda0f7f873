"""Actions on queues and schedules."""

from __future__ import annotations

import re

from msgspec.structs import replace

from jobq.client.ids import new_id
from jobq.core import checks
from jobq.core.bounds import queue_full
from jobq.core.commands import Promote
from jobq.core.durations import parse_duration
from jobq.core.policies import Bucket, Rate
from jobq.core.queues import Limits, RateData, ScheduleRecord
from jobq.core.records import JobKey, QueueName
from jobq.core.states import ENDED, State
from jobq.errors import ConfigError, InvalidJob, JobNotFound
from jobq.web.data import bodies as b
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.queues import record_of
from jobq.web.data.view import View

_STEP = 1_000
"""Jobs that one step of clearing or purging changes."""
_MORE = "more"
"""The cursor of a step that is repeated as it is."""
_MAX_LIMIT = 2**31 - 1
"""Stores keep limits as signed 32-bit numbers."""
_SCHEDULES = 10_000
_SOON_MS = 1_000
"""The delay of a job that is run now, until it is promoted. The event `promoted` names who ran it,
which `accepted` cannot. If the promotion is lost, the job starts after this time."""
_BUCKET = re.compile(r"(\d+)\+(\d+(?:\.\d+)?)/s")
_WINDOW = re.compile(r"(\d+)/(.+)")


async def _known(view: View, body: b.QueueBody) -> QueueName:
    """The queue. JobNotFound if it does not exist: a typing error must not create a queue."""
    return (await record_of(view, body.tenant, body.queue)).queue


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
    wanted = None if body.reset else _limits(body)
    await view.store.set_limits(queue, wanted, key=key, actor=view.actor)
    what = body.queue if key is None else f"key {key} of {body.queue}"
    did = "Restored" if body.reset else "Changed"
    return Done(changed=1, message=f"{did} the limits of {what}.")


def _limits(body: b.LimitsBody) -> Limits:
    if body.key and (body.limit is not None or body.rate or body.max_waiting is not None):
        raise ConfigError("a key has only key_limit and key_rate")
    return Limits(
        limit=_whole(body.limit, "limit"),
        rate=_rate(body.rate),
        key_limit=_whole(body.key_limit, "key_limit"),
        key_rate=_rate(body.key_rate),
        max_waiting=_whole(body.max_waiting, "max_waiting"),
    )


def _whole(value: int | None, name: str) -> int | None:
    if value is None:
        return None
    return checks.check_int(value, name, low=1, high=_MAX_LIMIT, error=ConfigError)


def _rate(text: str | None) -> RateData | None:
    """A rate as jq-ctl writes it: `100/1m`, or `10+0.5/s` for a bucket."""
    if not text:
        return None
    if bucket := _BUCKET.fullmatch(text):
        return Bucket(int(bucket[1]), refill=float(bucket[2])).data
    if window := _WINDOW.fullmatch(text):
        try:
            per = parse_duration(window[2])
        except ValueError as e:
            raise ConfigError(str(e)) from None
        return Rate(int(window[1]), per=per).data
    raise ConfigError(
        f"{text!r} is not a rate: use 100/1m for 100 starts per minute, or 10+0.5/s for a bucket "
        "of 10 refilled with 0.5 per second"
    )


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
    spec = (await _schedule(view, body)).spec
    job = replace(
        spec.template,
        id=f"{body.id}@{new_id()}",
        delay_ms=_SOON_MS,
        at_ms=None,
        # When a job of an after-complete schedule ends, the schedule sets its next time. This extra
        # job must not do that.
        schedule=None if spec.after_complete else body.id,
    )
    (result,) = await view.store.put([job])
    if result.full is not None:
        raise queue_full(body.queue, result.full)
    key = JobKey(job.queue, result.id)
    await view.store.alter([Promote(job=key, actor=view.actor)])
    return Done(changed=1, message=f"Enqueued job {result.id}.")


async def _schedule(view: View, body: b.ScheduleBody) -> ScheduleRecord:
    queue = QueueName(body.tenant, body.queue)
    for record in await view.store.list_schedules(queue, limit=_SCHEDULES):
        if record.spec.id == body.id:
            return record
    raise _missing(body)


def _missing(body: b.ScheduleBody) -> JobNotFound:
    return JobNotFound(f"there is no schedule {body.id!r} in queue {body.queue!r}")


async def pause_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Make no more jobs until the schedule is resumed."""
    return await _set_paused(view, body, True)


async def resume_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Make jobs again."""
    return await _set_paused(view, body, False)


async def _set_paused(view: View, body: b.ScheduleBody, paused: bool) -> Done:
    reply = await view.store.pause_schedule(
        QueueName(body.tenant, body.queue), body.id, paused=paused, actor=view.actor
    )
    if reply == "missing":
        raise _missing(body)
    did = "Paused" if paused else "Resumed"
    message = f"{did} schedule {body.id}." if reply == "done" else f"It was {did.lower()} already."
    return Done(changed=int(reply == "done"), message=message)


async def remove_schedule(view: View, body: b.ScheduleBody) -> Done:
    """Remove a schedule. The jobs it made stay."""
    queue = QueueName(body.tenant, body.queue)
    if not await view.store.drop_schedule(queue, body.id, actor=view.actor):
        raise _missing(body)
    return Done(changed=1, message=f"Removed schedule {body.id}.")
