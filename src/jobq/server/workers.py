"""WorkerService: for workers in any language. What they report becomes outcomes by core's rules.

Every call carries what it needs, so any replica of the server serves it: the session has what the
worker registered with, and a lease names its job and proves the claim. A server remembers only the
streams that it serves and the jobs that it pushed and nobody has confirmed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio
import msgspec
from grpc import StatusCode

from jobq.access.guarded.store import GuardedStore
from jobq.core.policies import UNDECLARED
from jobq.core.records.jobs import AnyOutcome, JobKey, LeaseRef, QueueName, Release, SnoozeFor
from jobq.core.records.workers import Beat
from jobq.core.rules.decide import Raised, Unknown, decide
from jobq.core.rules.fleet import Pace
from jobq.core.values import checks
from jobq.errors import InvalidJob, StoreUnavailable
from jobq.rpc import convert_workers as convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.claims import REPORTS, Confirmations, OneShotClaims
from jobq.server.config import check_lease
from jobq.server.context import ServerContext, Tasks
from jobq.server.handlers import Caller, Handlers, Refused
from jobq.server.pushed import Worker
from jobq.server.sessions import Session, check_worker, new_session, read_session
from jobq.server.streams import Beats, JobStream, check_credit
from jobq.stores.base import Store

# Turns what workers of other languages report into outcomes. `core.rules.decide` makes the
# decisions.

_REMEMBERED_S = 5.0
"""Seconds that the defaults of a tenant's queues are remembered. Reading them lists all queues."""


class QueueDefaults:
    """How often jobs of a queue are retried by default, read when it is needed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, dict[QueueName, int | None]]] = {}

    async def max_retries(self, store: Store, queue: QueueName) -> int | None:
        """The default of the queue. None: it has none."""
        now = time.monotonic()
        until, found = self._known.get(queue.tenant, (0.0, {}))
        if until <= now:
            records = await store.queues(queue.tenant)
            found = {each.queue: each.defaults.max_retries for each in records}
            self._known[queue.tenant] = (now + _REMEMBERED_S, found)
        return found.get(queue)


async def outcomes_of(
    store: Store,
    results: Sequence[pb.Result],
    tenant: str,
    *,
    now_ms: int,
    random: Callable[[], float],
    defaults: QueueDefaults,
) -> list[AnyOutcome]:
    """The outcomes of runs, in order. Reads only jobs whose outcome depends on their record."""
    convert.bounded(results, "results")
    refs = [convert.lease_ref(result.lease, tenant) for result in results]
    ends = [convert.end_of(result) for result in results]
    needed = [
        JobKey(ref.queue, ref.id)
        for ref, result in zip(refs, results, strict=True)
        if convert.needs_record(result)
    ]
    records = dict(zip(needed, await store.get(needed) if needed else (), strict=True))
    outcomes: list[AnyOutcome] = []
    for ref, result, end in zip(refs, results, ends, strict=True):
        record = records.get(JobKey(ref.queue, ref.id))
        if isinstance(end, SnoozeFor):
            outcomes.append(
                msgspec.structs.replace(end, queue=ref.queue, id=ref.id, token=ref.token)
            )
        else:
            if isinstance(end, Unknown) and record is not None:
                end = Unknown(record.name)
            lease = convert.lease_of(ref, result, record)
            if lease.retry is None and isinstance(end, Raised):
                default = await defaults.max_retries(store, ref.queue)
                lease = msgspec.structs.replace(lease, default_retries=default)
            outcomes.append(decide(lease, end, retry=UNDECLARED, now_ms=now_ms, random=random))
    return outcomes


def releases_of(leases: Sequence[LeaseRef], *, delay_ms: int) -> list[AnyOutcome]:
    """The outcomes of jobs that are released, in order.

    A released job returns to the front of its queue. With a delay it is snoozed, and keeps what it
    has saved.
    """
    if not delay_ms:
        return [Release(queue=each.queue, id=each.id, token=each.token) for each in leases]
    return [
        SnoozeFor(queue=each.queue, id=each.id, token=each.token, delay_ms=delay_ms, saved_number=1)
        for each in leases
    ]


_MAX_CALL = 128
"""Characters of the name of a call."""
_OPEN_S = 10.0
"""Seconds until the first message of a stream must have arrived."""


class WorkerService:
    """The calls of WorkerService."""

    name = "jobq.v1.WorkerService"

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._lease_ms = context.settings.lease_ms
        self._beats = Beats(self._lease_ms / 1000)
        self._handlers = Handlers(
            context,
            self,
            pb.DESCRIPTOR.services_by_name["WorkerService"],
            unbounded=frozenset({"Claim"}),
        )
        self._pace = Pace()
        self._streams: dict[Worker, JobStream] = {}
        self._tasks = Tasks("the worker service")
        self._confirmations = Confirmations(context, self._streams, self._tasks)
        self._pushed = self._confirmations.pushed
        self._claims = OneShotClaims(self._confirmations, self._tasks)
        self._defaults = QueueDefaults()
        self._stopping = False

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to the server."""
        self._handlers.register(server)

    def drain(self) -> None:
        """The server stops: push no more jobs, and end the streams."""
        self._stopping = self._confirmations.stopping = True
        for stream in self._streams.values():
            stream.stop()

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────

    async def Register(self, request: pb.RegisterRequest, caller: Caller) -> pb.RegisterResponse:
        """Announce a worker."""
        tenant = caller.tenant(request.tenant)
        session = new_session(
            request.worker,
            tenant,
            tuple(request.queues),
            concurrency=request.concurrency,
            host=request.host,
            pid=request.pid,
            now_ms=self._context.clock(),
            incarnation=(
                read_session(request.session, request.worker, tenant).incarnation
                if request.session
                else None
            ),
        )
        beat = await self._beat(caller.store, session, displace=request.displace)
        if beat.displaced:
            raise Refused(
                StatusCode.ALREADY_EXISTS,
                f"a worker named {session.worker!r} is alive: choose another name, or set displace "
                "if it is an earlier process of this worker. The name of a dead worker is free "
                f"after {self._ttl_ms / 1000:g} s",
            )
        return pb.RegisterResponse(
            worker=session.worker,
            session=session.text(),
            heartbeat_ms=int(self._beats.every * 1000),
            lease_ms=self._lease_ms,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        """Keep a worker alive, and renew the leases of the jobs it runs."""
        tenant = caller.tenant(request.tenant)
        session = read_session(request.session, request.worker, tenant)
        running = convert.lease_refs(request.running, tenant, "running")
        worker = Worker(tenant, session.worker)
        self._confirmations.heartbeat(worker, running)
        # Renew first: a worker whose name was taken still runs its jobs.
        states = await caller.store.extend(running, lease_ms=self._lease_ms) if running else []
        beat = await self._beat(caller.store, session, active=len(running), paused=request.paused)
        self._check_displaced(beat, session)
        stream = self._streams.get(worker)
        if stream is not None and stream.session.incarnation == session.incarnation:
            stream.heartbeat(beat.request, paused=request.paused)
        changed = [
            pb.LeaseState(lease=convert.ref(ref), state=state)
            for ref, state in zip(running, states, strict=True)
            if state != "held"
        ]
        return pb.HeartbeatResponse(changed=changed, request=beat.request or "")

    async def Deregister(
        self, request: pb.DeregisterRequest, caller: Caller
    ) -> pb.DeregisterResponse:
        """Remove a worker."""
        tenant = caller.tenant(request.tenant)
        session = read_session(request.session, request.worker, tenant)
        worker = Worker(tenant, session.worker)
        stream = self._streams.get(worker)
        if stream is not None and stream.session.incarnation == session.incarnation:
            stream.close()
        await self._confirmations.release(self._pushed.leave(worker, session.incarnation))
        await caller.store.retire(session.worker, incarnation=session.incarnation)
        return pb.DeregisterResponse()

    async def _beat(
        self,
        store: GuardedStore,
        session: Session,
        *,
        active: int = 0,
        paused: bool = False,
        displace: bool = False,
    ) -> Beat:
        """Announce a worker to the store. Operators see at once that it drains."""
        record = session.record(now_ms=self._context.clock(), active=active, paused=paused)
        beat = await store.beat(record, ttl_ms=self._ttl_ms, displace=displace)
        self._pace.heard(beat.workers)
        if not beat.displaced and beat.request == "drain":
            draining = session.record(
                now_ms=self._context.clock(), active=active, paused=paused, draining=True
            )
            beat = await store.beat(draining, ttl_ms=self._ttl_ms)
        return beat

    @property
    def _ttl_ms(self) -> int:
        """How long a heartbeat is valid. A worker that misses three counts as dead."""
        return int(3 * self._beats.every * 1000) + 1_000

    def _check_displaced(self, beat: Beat, session: Session) -> None:
        if beat.displaced:
            raise Refused(
                StatusCode.FAILED_PRECONDITION,
                f"another worker has taken the name {session.worker!r}: its session is over. "
                "Stop this worker, or register again",
            )

    # ── the job stream ────────────────────────────────────────────────────────────────────────────

    async def StreamJobs(
        self, requests: AsyncIterator[pb.StreamJobsRequest], caller: Caller
    ) -> AsyncIterator[pb.StreamJobsResponse]:
        """Push jobs to a worker within its credit."""
        stream = await self._open(requests, caller)
        worker = stream.worker
        former = self._streams.get(worker)
        self._streams[worker] = stream
        if former is not None:
            former.end(
                Refused(StatusCode.ABORTED, f"worker {worker.name!r} has opened another stream")
            )
        try:
            async for message in stream.replies(requests):
                yield message
        finally:
            if self._streams.get(worker) is stream:
                del self._streams[worker]

    async def _open(
        self, requests: AsyncIterator[pb.StreamJobsRequest], caller: Caller
    ) -> JobStream:
        """Take the first message."""
        if self._stopping:
            raise Refused(StatusCode.UNAVAILABLE, "the server stops: open a stream to another one")
        try:
            async with asyncio.timeout(_OPEN_S):
                first = await anext(aiter(requests), None)
        except TimeoutError:
            raise Refused(
                StatusCode.DEADLINE_EXCEEDED, f"no first message within {_OPEN_S:g} s: send open"
            ) from None
        if first is None or not first.HasField("open"):
            raise InvalidJob("the first message of a stream must have open: the worker and session")
        opened = first.open
        tenant = caller.tenant(opened.tenant)
        session = read_session(opened.session, opened.worker, tenant)
        running = convert.lease_refs(opened.running, tenant, "open.running")
        credit = check_credit(first.credit)
        beat = await self._beat(caller.store, session, active=len(running))
        self._check_displaced(beat, session)
        worker = Worker(tenant, session.worker)
        await self._confirmations.release(self._pushed.reconnect(worker, set(running)))
        stream = JobStream(
            caller.store,
            session,
            lease_ms=self._lease_ms,
            running=running,
            credit=credit,
            pushed=self._pushed,
            pace=self._pace,
            on_push=self._confirmations.expect,
            beat=lambda stream: self._tasks.spawn(self._announce(caller.store, stream)),
            release=lambda unsent: self._tasks.spawn(
                self._confirmations.release_unsent(caller.store, worker, unsent)
            ),
            check_proof=lambda: self._context.guarded_by(caller.proof),
        )
        stream.heartbeat(beat.request, paused=False)
        return stream

    async def _announce(self, store: GuardedStore, stream: JobStream) -> None:
        """Announce a worker whose heartbeats go to another replica."""
        try:
            active, paused = stream.credits.running, stream.paused
            beat = await self._beat(store, stream.session, active=active, paused=paused)
            self._check_displaced(beat, stream.session)
        except StoreUnavailable:
            pass  # the next message that says "alive" tries again
        except Exception as error:
            stream.end(error)
        else:
            stream.heartbeat(beat.request, paused=paused)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────

    async def Claim(self, request: pb.ClaimRequest, caller: Caller) -> pb.ClaimResponse:
        """Claim jobs once."""
        lease_ms = self._lease(request.lease_ms)
        return await self._claims.claim(request, caller, _call(request.call), lease_ms)

    async def Report(self, request: pb.ReportRequest, caller: Caller) -> pb.ReportResponse:
        """Settle runs."""
        tenant = caller.tenant(request.tenant)
        outcomes = await outcomes_of(
            caller.store,
            request.results,
            tenant,
            now_ms=self._context.clock(),
            random=random.random,
            defaults=self._defaults,
        )
        stale = await self._settle(caller, request.worker, tenant, outcomes, request.call)
        return pb.ReportResponse(stale=stale)

    async def Release(self, request: pb.ReleaseRequest, caller: Caller) -> pb.ReleaseResponse:
        """Release jobs unfinished."""
        tenant = caller.tenant(request.tenant)
        leases = convert.lease_refs(request.leases, tenant, "leases")
        delay_ms = checks.check_int(request.delay_ms, "delay_ms", high=checks.MAX_MS)
        outcomes = releases_of(leases, delay_ms=delay_ms)
        stale = await self._settle(caller, request.worker, tenant, outcomes, "")
        return pb.ReleaseResponse(stale=stale)

    async def _settle(
        self, caller: Caller, name: str, tenant: str, outcomes: Sequence[AnyOutcome], call: str
    ) -> list[pb.LeaseRef]:
        """Apply outcomes. Returns those whose lease is lost."""
        worker = Worker(tenant, check_worker(name) if name else self._confirmations.name)
        refs = [LeaseRef(each.queue, each.id, each.token) for each in outcomes]
        self._pushed.confirm(worker, refs)
        if not outcomes:
            return []
        settled = await caller.store.settle(
            outcomes, worker=worker.name, call=_call(call) + REPORTS
        )
        stream = self._streams.get(worker)
        if stream is not None:
            stream.ended(refs)
            stream.stir()
        return [convert.ref(ref) for ref in settled.stale]

    async def Extend(self, request: pb.ExtendRequest, caller: Caller) -> pb.ExtendResponse:
        """Renew leases."""
        tenant = caller.tenant(request.tenant)
        leases = convert.lease_refs(request.leases, tenant, "leases")
        states = await caller.store.extend(leases, lease_ms=self._lease(request.lease_ms))
        return pb.ExtendResponse(states=convert.states(leases, states))

    async def Note(self, request: pb.NoteRequest, caller: Caller) -> pb.NoteResponse:
        """Store progress, log lines and checkpoints."""
        tenant = caller.tenant(request.tenant)
        convert.bounded(request.notes, "notes")
        notes = [convert.note(note, tenant) for note in request.notes]
        states = await caller.store.note(notes)
        return pb.NoteResponse(states=convert.states([note.lease for note in notes], states))

    async def Exchange(
        self, requests: AsyncIterator[pb.Frame], caller: Caller
    ) -> AsyncIterator[pb.Frame]:
        """Served by `server/exchange.py`, which is registered before this service."""
        raise Refused(StatusCode.UNIMPLEMENTED, "this server does not serve the exchange stream")
        yield pb.Frame()

    def _lease(self, lease_ms: int) -> int:
        return check_lease(lease_ms or self._lease_ms, "lease_ms")


def _call(name: str) -> str:
    """The name of a call. One that the server makes is never repeated."""
    return checks.check_short_name(name, "call", _MAX_CALL) if name else secrets.token_hex(8)
