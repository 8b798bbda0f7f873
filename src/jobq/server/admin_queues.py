"""The calls of AdminService about one queue: its settings, limits, holds and locks."""

from __future__ import annotations

from grpc import StatusCode
from msgspec.structs import replace

from jobq.access.listing import MAX_PAGE, page_size
from jobq.core import checks
from jobq.core.queues import differences
from jobq.core.records import QueueName
from jobq.core.refusals import other_settings
from jobq.errors import ConfigError, JobNotFound
from jobq.rpc import convert_queues
from jobq.rpc.v1 import admin_pb2 as pb
from jobq.server.context import ServerContext
from jobq.server.handlers import Caller, Refused
from jobq.server.overview import Overview

_MAX_MINUTES = 1_440
"""Minutes of figures that stores keep: a day."""


class QueueCalls:
    """Shows and changes queues. AdminService inherits from it."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._overview = Overview(context.settings.tenants)

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

    async def CreateQueue(
        self, request: pb.CreateQueueRequest, caller: Caller
    ) -> pb.CreateQueueResponse:
        """Make a queue, or change one."""
        queue = caller.queue(request.queue, request.tenant)
        stored = await self._overview.find(caller.store, queue)
        config = convert_queues.queue_config(request.config, stored)
        try:
            # The store itself compares what no update may change.
            kept = replace(config, mode=None)
            if stored is not None and not request.update and (differ := differences(stored, kept)):
                raise other_settings(queue, differ)
            record = await caller.store.declare(queue, config)
        except ConfigError as differs:
            if stored is None:
                raise
            raise Refused(StatusCode.ALREADY_EXISTS, str(differs)) from None
        return pb.CreateQueueResponse(queue=convert_queues.queue(record), created=stored is None)

    async def ListQueues(
        self, request: pb.ListQueuesRequest, caller: Caller
    ) -> pb.ListQueuesResponse:
        """List the queues of the tenant."""
        records = await caller.store.queues(caller.tenant(request.tenant))
        ordered = sorted(records, key=lambda record: record.queue)
        return pb.ListQueuesResponse(queues=map(convert_queues.queue, ordered))

    async def GetQueueStats(
        self, request: pb.GetQueueStatsRequest, caller: Caller
    ) -> pb.GetQueueStatsResponse:
        """Return a queue at a glance."""
        queue = caller.queue(request.queue, request.tenant)
        minutes = checks.check_int(request.minutes, "minutes", high=_MAX_MINUTES)
        record = await self._overview.find(caller.store, queue)
        if record is None:
            raise _no_queue(queue)
        stats = await caller.store.stats(queue)
        figures = await caller.store.metrics(queue, minutes=minutes) if minutes else []
        return pb.GetQueueStatsResponse(
            queue=convert_queues.queue(record),
            counts={state.value: number for state, number in stats.counts.items()},
            oldest_waiting_ms=stats.oldest_waiting_ms,
            next_due_ms=stats.next_due_ms,
            workers=stats.workers,
            held_until_ms=stats.held_until_ms,
            minutes=map(convert_queues.minute, figures),
        )

    async def PauseQueue(
        self, request: pb.PauseQueueRequest, caller: Caller
    ) -> pb.PauseQueueResponse:
        """Stop claims from a queue."""
        await caller.store.pause(caller.queue(request.queue, request.tenant))
        return pb.PauseQueueResponse()

    async def ResumeQueue(
        self, request: pb.ResumeQueueRequest, caller: Caller
    ) -> pb.ResumeQueueResponse:
        """Allow claims again."""
        await caller.store.resume(caller.queue(request.queue, request.tenant))
        return pb.ResumeQueueResponse()

    async def ClearQueue(
        self, request: pb.ClearQueueRequest, caller: Caller
    ) -> pb.ClearQueueResponse:
        """Cancel waiting jobs."""
        cancelled = await caller.store.purge_pending(
            caller.queue(request.queue, request.tenant),
            delayed=request.delayed,
            limit=page_size(request.limit, MAX_PAGE),
        )
        return pb.ClearQueueResponse(cancelled=cancelled)

    async def RemoveQueue(
        self, request: pb.RemoveQueueRequest, caller: Caller
    ) -> pb.RemoveQueueResponse:
        """Remove a queue, step by step."""
        queue = caller.queue(request.queue, request.tenant)
        removed = await caller.store.obliterate(queue, force=request.force, limit=MAX_PAGE)
        return pb.RemoveQueueResponse(removed=removed)

    # ── limits, holds and locks ───────────────────────────────────────────────────────────────────

    async def SetLimits(self, request: pb.SetLimitsRequest, caller: Caller) -> pb.SetLimitsResponse:
        """Change limits."""
        limits = convert_queues.limits(request.limits) if request.HasField("limits") else None
        await caller.store.set_limits(
            caller.queue(request.queue, request.tenant), limits, key=_key(request.key)
        )
        return pb.SetLimitsResponse()

    async def Hold(self, request: pb.HoldRequest, caller: Caller) -> pb.HoldResponse:
        """Stop claims for a time."""
        queue = caller.queue(request.queue, request.tenant)
        hold_ms = checks.check_int(request.hold_ms, "hold_ms", low=1, high=checks.MAX_MS)
        await caller.store.hold(queue, hold_ms, _key(request.key))
        return pb.HoldResponse()

    async def ReleaseHold(
        self, request: pb.ReleaseHoldRequest, caller: Caller
    ) -> pb.ReleaseHoldResponse:
        """Lift a hold."""
        queue = caller.queue(request.queue, request.tenant)
        if not await caller.store.release_hold(queue, _key(request.key)):
            what = f"key {request.key!r} of " if request.key else ""
            raise JobNotFound(f"{what}queue {queue.queue!r} is not held")
        return pb.ReleaseHoldResponse()

    async def ListHolds(self, request: pb.ListHoldsRequest, caller: Caller) -> pb.ListHoldsResponse:
        """List the holds in force."""
        holds = await caller.store.holds(caller.queue(request.queue, request.tenant))
        return pb.ListHoldsResponse(until_ms=holds.until_ms, keys=holds.keys)

    async def GetLock(self, request: pb.GetLockRequest, caller: Caller) -> pb.GetLockResponse:
        """Say which job holds a lock."""
        queue = caller.queue(request.queue, request.tenant)
        lock = await caller.store.find_lock(queue, checks.check_id(request.lock, "lock"))
        if lock is None:
            raise _free(queue, request.lock)
        return pb.GetLockResponse(
            job=lock.job, until_ms=lock.until_ms, follow_up=lock.follow_up or ""
        )

    async def ReleaseLock(
        self, request: pb.ReleaseLockRequest, caller: Caller
    ) -> pb.ReleaseLockResponse:
        """Release a lock."""
        queue = caller.queue(request.queue, request.tenant)
        lock = checks.check_id(request.lock, "lock")
        job = checks.check_id(request.job, "job") if request.job else None
        if not await caller.store.release_lock(queue, lock, job=job):
            raise _free(queue, lock)
        return pb.ReleaseLockResponse()


def _key(key: str) -> str | None:
    return checks.check_key(key) if key else None


def _no_queue(queue: QueueName) -> JobNotFound:
    return JobNotFound(f"there is no queue {queue.queue!r}")


def _free(queue: QueueName, lock: str) -> JobNotFound:
    return JobNotFound(f"no job of queue {queue.queue!r} holds the lock {lock!r}")
