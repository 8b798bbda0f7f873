"""The calls of AdminService about one queue that do not only pass on (passing.py)."""

from __future__ import annotations

from grpc import StatusCode
from msgspec.structs import replace

from jobq.core import checks
from jobq.core.queues import differences
from jobq.core.refusals import other_settings
from jobq.errors import ConfigError
from jobq.operations import listing
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
        stored = await listing.find_queue(caller.store, queue)
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
        ordered = await listing.queues(caller.store, caller.tenant(request.tenant))
        return pb.ListQueuesResponse(queues=map(convert_queues.queue, ordered))

    async def GetQueueStats(
        self, request: pb.GetQueueStatsRequest, caller: Caller
    ) -> pb.GetQueueStatsResponse:
        """Return a queue at a glance."""
        queue = caller.queue(request.queue, request.tenant)
        minutes = checks.check_int(request.minutes, "minutes", high=_MAX_MINUTES)
        record = await listing.get_queue(caller.store, queue)
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
