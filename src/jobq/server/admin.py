"""AdminService: queues, schedules, workers and tenants. Its .proto file is its documentation.

RPCs that are not here only pass on (handlers.py).
"""

from __future__ import annotations

import time
from collections import Counter

import grpc.aio
from grpc import StatusCode
from msgspec.structs import replace

from jobq.access.guarded.store import GuardedStore
from jobq.access.quotas import TenantRules
from jobq.client.ids import new_id
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import differences
from jobq.core.records.refusals import other_settings
from jobq.core.records.states import ENDED, State
from jobq.core.records.workers import WorkerRequest
from jobq.core.rules import cron
from jobq.core.rules.limits import COUNTED_STATES
from jobq.core.rules.new_jobs import check_schedule_id
from jobq.core.values import checks
from jobq.core.version import __version__
from jobq.errors import ConfigError
from jobq.operations import listing, schedules, workers
from jobq.operations.bulk import BulkChange
from jobq.operations.listing import MAX_PAGE, listed, page_size
from jobq.operations.selecting import criteria_of_request
from jobq.rpc import convert, convert_queues
from jobq.rpc.v1 import admin_pb2 as pb
from jobq.server.context import ServerContext
from jobq.server.handlers import Caller, Handlers, Refused

# What is gathered over all queues of a tenant. Its cost follows the number of queues, not jobs.


class Overview:
    """Sums over queues."""

    def __init__(self, rules: TenantRules) -> None:
        self._rules = rules

    async def tenant(self, store: GuardedStore, tenant: str) -> pb.Tenant:
        """What a tenant uses, and what it may use."""
        records = await store.queues(tenant)
        names = [record.queue for record in records]
        counts: Counter[State] = Counter()
        for record in records:
            counts.update(await store.count(record.queue))
        limits = self._rules.limits(tenant)
        return pb.Tenant(
            tenant=tenant,
            queues=len(records),
            schedules=len(await schedules.of_queues(store, names)),
            waiting_jobs=sum(counts[state] for state in COUNTED_STATES),
            active_jobs=counts[State.ACTIVE],
            ended_jobs=sum(counts[state] for state in ENDED),
            max_queues=limits.max_queues,
            max_schedules=limits.max_schedules,
            max_waiting_jobs=limits.max_waiting,
            max_active_jobs=limits.max_active,
            max_stored_jobs=limits.max_stored,
            max_payload_bytes=limits.max_payload,
            submit_rate=limits.submit_rate,
            max_priority=limits.max_priority,
            min_interval_ms=round(limits.min_interval * 1000),
        )

    async def status(self, store: GuardedStore, tenant: str | None) -> pb.GetStatusResponse:
        """The store, its queues in total, and its workers. `tenant` None: of all tenants."""
        records = await store.queues(tenant)
        counts: Counter[str] = Counter()
        for record in records:
            for state, number in (await store.count(record.queue)).items():
                counts[state.value] += number
        return pb.GetStatusResponse(
            store=store.url.partition(":")[0],
            queues=len(records),
            counts=counts,
            workers=len(await workers.of_tenant(store, tenant)),
        )


_FAILED = (State.FAILED,)
_MAX_MINUTES = 1_440
"""Minutes of figures that stores keep: a day."""


class AdminService:
    """Shows and changes queues, within what the caller's token allows."""

    name = "jobq.v1.AdminService"

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._overview = Overview(context.settings.tenants)
        self._started = time.monotonic()
        self._handlers = Handlers(context, self, pb.DESCRIPTOR.services_by_name["AdminService"])

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to the server."""
        self._handlers.register(server)

    def drain(self) -> None:
        """No call of this service stays open."""

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

    # ── schedules ─────────────────────────────────────────────────────────────────────────────────

    async def PutSchedule(
        self, request: pb.PutScheduleRequest, caller: Caller
    ) -> pb.PutScheduleResponse:
        """Store a schedule."""
        given = request.schedule
        queue = caller.queue(given.queue, request.tenant)
        id = check_schedule_id(given.id)
        when = convert_queues.schedule_times(given)
        given.job.queue = queue.queue
        for ignored in ("id", "delay_ms", "at_ms"):
            given.job.ClearField(ignored)
        job = convert.job_spec(
            given.job, queue.tenant, new_id, max_payload=self._context.settings.max_payload
        )
        spec = when.spec(queue, id, schedules.template(job, id))
        record = await caller.store.put_schedule(
            spec, next_ms=cron.first_time(spec, self._context.clock())
        )
        return pb.PutScheduleResponse(schedule=convert_queues.schedule(record))

    async def PauseSchedule(
        self, request: pb.PauseScheduleRequest, caller: Caller
    ) -> pb.PauseScheduleResponse:
        """Pause a schedule."""
        await _set_paused(caller, caller.queue(request.queue, request.tenant), request.id, True)
        return pb.PauseScheduleResponse()

    async def ResumeSchedule(
        self, request: pb.ResumeScheduleRequest, caller: Caller
    ) -> pb.ResumeScheduleResponse:
        """Resume a schedule."""
        await _set_paused(caller, caller.queue(request.queue, request.tenant), request.id, False)
        return pb.ResumeScheduleResponse()

    async def ListSchedules(
        self, request: pb.ListSchedulesRequest, caller: Caller
    ) -> pb.ListSchedulesResponse:
        """List schedules."""
        limit = page_size(request.limit)
        if request.queue:
            queue = caller.queue(request.queue, request.tenant)
            found = await caller.store.list_schedules(queue, limit=limit)
        else:
            tenant = caller.tenant(request.tenant)
            names = [record.queue for record in await caller.store.queues(tenant)]
            found = await schedules.of_queues(caller.store, names, limit=limit)
        return pb.ListSchedulesResponse(schedules=map(convert_queues.schedule, found))

    # ── workers ───────────────────────────────────────────────────────────────────────────────────

    async def ListWorkers(
        self, request: pb.ListWorkersRequest, caller: Caller
    ) -> pb.ListWorkersResponse:
        """List the workers that are alive."""
        queue = caller.queue(request.queue, request.tenant) if request.queue else None
        tenant = caller.tenant(request.tenant) if request.tenant else None
        found = await workers.of_tenant(caller.store, tenant, queue)
        return pb.ListWorkersResponse(workers=map(convert_queues.worker, found))

    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, caller: Caller
    ) -> pb.DrainWorkerResponse:
        """Ask a worker to claim no more jobs."""
        await _ask(caller, request.worker, request.tenant, "drain")
        return pb.DrainWorkerResponse()

    async def ResumeWorker(
        self, request: pb.ResumeWorkerRequest, caller: Caller
    ) -> pb.ResumeWorkerResponse:
        """Ask a worker to claim jobs again."""
        await _ask(caller, request.worker, request.tenant, "resume")
        return pb.ResumeWorkerResponse()

    async def ShutdownWorker(
        self, request: pb.ShutdownWorkerRequest, caller: Caller
    ) -> pb.ShutdownWorkerResponse:
        """Ask a worker to stop."""
        wish: WorkerRequest = "shutdown-now" if request.now else "shutdown"
        await _ask(caller, request.worker, request.tenant, wish)
        return pb.ShutdownWorkerResponse()

    # ── dead letters ──────────────────────────────────────────────────────────────────────────────

    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, caller: Caller
    ) -> pb.ListDeadLettersResponse:
        """List failed jobs."""
        page = await listed(
            caller.store,
            caller.queue(request.queue, request.tenant),
            criteria_of_request(_FAILED, {}, name=request.name, error=request.error),
            limit=page_size(request.limit),
            cursor=request.cursor,
        )
        return pb.ListDeadLettersResponse(jobs=map(convert.job, page.records), cursor=page.cursor)

    async def RerunDeadLetters(
        self, request: pb.RerunDeadLettersRequest, caller: Caller
    ) -> pb.RerunDeadLettersResponse:
        """Run failed jobs again."""
        change = BulkChange(
            caller.store,
            caller.queue(request.queue, request.tenant),
            criteria_of_request(_FAILED, {}, name=request.name, error=request.error),
            "rerun",
            actor=None,
            now_ms=self._context.clock(),
            max_compared=page_size(request.limit),
            cursor=request.cursor,
            oldest_first=True,
        )
        done = await change.run()
        return pb.RerunDeadLettersResponse(
            rerun=done.changed, refused=done.skipped, cursor=done.cursor or ""
        )

    async def PurgeDeadLetters(
        self, request: pb.PurgeDeadLettersRequest, caller: Caller
    ) -> pb.PurgeDeadLettersResponse:
        """Remove failed jobs."""
        removed = await caller.store.purge_ended(
            caller.queue(request.queue, request.tenant),
            State.FAILED,
            older_than_ms=checks.check_int(
                request.older_than_ms, "older_than_ms", high=checks.MAX_MS
            ),
            limit=page_size(request.limit, MAX_PAGE),
        )
        return pb.PurgeDeadLettersResponse(removed=removed)

    # ── the server ────────────────────────────────────────────────────────────────────────────────

    async def ListTenants(
        self, request: pb.ListTenantsRequest, caller: Caller
    ) -> pb.ListTenantsResponse:
        """List tenants, with what they use and may use."""
        tenants = (
            [caller.tenant(request.tenant)]
            if request.tenant or caller.store.principal.tenant is not None
            else sorted({record.queue.tenant for record in await caller.store.queues()})
        )
        return pb.ListTenantsResponse(
            tenants=[await self._overview.tenant(caller.store, tenant) for tenant in tenants]
        )

    async def GetStatus(self, request: pb.GetStatusRequest, caller: Caller) -> pb.GetStatusResponse:
        """Say how the server is."""
        principal = caller.store.principal
        asked = caller.tenant(request.tenant) if request.tenant else principal.tenant
        reply = await self._overview.status(caller.store, asked)
        reply.version = __version__
        reply.now_ms = self._context.clock()
        reply.uptime_ms = int((time.monotonic() - self._started) * 1000)
        reply.subject = convert.text(principal.subject)
        reply.tenant = principal.tenant or ""
        reply.scopes.extend(sorted(principal.scopes))
        return reply

    async def GetVersion(
        self, request: pb.GetVersionRequest, caller: Caller
    ) -> pb.GetVersionResponse:
        """Return the versions of the server and of the interface."""
        return pb.GetVersionResponse(version=__version__, api=pb.DESCRIPTOR.package)


async def _set_paused(caller: Caller, queue: QueueName, id: str, paused: bool) -> None:
    if not await schedules.set_paused(caller.store, queue, id, paused):
        state = "paused already" if paused else "not paused"
        raise Refused(StatusCode.FAILED_PRECONDITION, f"schedule {id!r} is {state}")


async def _ask(caller: Caller, worker: str, tenant: str, wish: WorkerRequest) -> None:
    caller.tenant(tenant)
    await workers.ask(caller.store, worker, wish)
