"""JobService: submitting jobs in shared batches, and what becomes of them. See its .proto file."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

import grpc.aio
from grpc import StatusCode
from msgspec.structs import replace

from jobq.access.caller_errors import CallerErrors
from jobq.access.principal import Scope
from jobq.client import following, waiting
from jobq.client.connection import CHUNK, batches
from jobq.client.ids import new_id
from jobq.core.records.commands import AnyCommand, Cancel, Rerun, SendSignal
from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, PutResult
from jobq.core.rules.flows import check_flow
from jobq.core.rules.limits import queue_full
from jobq.core.values import checks
from jobq.core.values.checks import check_id, check_int, check_short_name
from jobq.core.values.meta import check_meta
from jobq.errors import InvalidJob, JobqError, PayloadTooLarge, QueueFull, WaitTimeout
from jobq.operations import jobs
from jobq.operations.listing import listed, no_such_job, page_size
from jobq.operations.selecting import TIMES, criteria_of_request
from jobq.rpc import convert, status
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server.context import ServerContext, Stopping
from jobq.server.events import MAX_QUEUES, EventStream
from jobq.server.handlers import Caller, Handlers, Refused

# The trace of a call goes on in the handler of the job that the call submits.
#
# A client that traces sends the W3C headers `traceparent` and `tracestate` as metadata. The job
# keeps them in its `meta`, where `jobq.otel` and workers in other languages find them. A context
# that the job itself carries is left as it is.

_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE = 512
"""Characters of `tracestate` (W3C Trace Context, 3.3.1.5). A longer one is left out."""


def traced(specs: Sequence[JobSpec], caller: Caller) -> list[JobSpec]:
    """The jobs with the context of the call that submits them."""
    parent = caller.metadata("traceparent")
    if parent is None or not _PARENT.fullmatch(parent):
        return list(specs)
    context = {"traceparent": parent}
    state = caller.metadata("tracestate")
    if state and len(state) <= _MAX_STATE and state.isprintable():
        context["tracestate"] = state
    return [_within(spec, context) for spec in specs]


def _within(spec: JobSpec, context: dict[str, str]) -> JobSpec:
    if spec.meta is not None and "traceparent" in spec.meta:
        return spec
    try:
        return replace(spec, meta=check_meta({**(spec.meta or {}), **context}))
    except InvalidJob:  # there is no room for it: the job matters more than its trace
        return spec


# Lets calls that arrive at about the same time go on together, so that they share a put.
#
# gRPC delivers requests one by one, and an embedded store returns before the next one has arrived.
# So under load each job would be a put of its own, which costs more than all the rest of the call.
# A call that is alone never waits: a client that sends one call after the other notices nothing.

_GATHER_S = 0.002
"""Seconds that a call waits for others at most. With it, a submit took 400 µs of the server's
processor time at 50 in flight and 270 µs at 8, instead of 730 µs and 650 µs (bench/submits.py).
gRPC alone took 280 µs on the same busy machine."""
_WINDOW_S = 0.05
"""Seconds for which the server remembers how many calls were there at the same time."""


class Coalescer:
    """The calls in progress: `with coalescer` around each, `await coalescer.gather()` inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._most = 1  # calls at the same time, in this window
        self._before = 1  # and in the one before
        self._window_ends = 0.0
        self._gathered = 0
        self._gate = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        """A call begins."""
        self._inside += 1
        now = asyncio.get_running_loop().time()
        if now >= self._window_ends:
            recent = now < self._window_ends + _WINDOW_S
            self._before, self._most = self._most if recent else 1, 1
            self._window_ends = now + _WINDOW_S
        self._most = max(self._most, self._inside)

    def __exit__(self, *_: object) -> None:
        """A call has ended."""
        self._inside -= 1

    async def gather(self) -> None:
        """Return together with the other calls of this moment. Alone, return at once."""
        expected = max(self._most, self._before)
        if expected == 1:
            return
        self._gathered += 1
        if self._gathered >= expected:
            self._open()
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._open)
        await self._gate.wait()

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._gathered = 0
        self._gate.set()
        self._gate = asyncio.Event()


# How JobService stores jobs. Jobs of all calls of a principal share batches (client/sender.py).

MAX_JOBS = 10_000
"""Jobs of one request. More take so long that a stream is the better way."""
_IN_FLIGHT = 2 * CHUNK
"""Jobs of a stream that are not stored yet: one put in flight, and the next one. The server reads
no more until there is room, so a fast client waits and the memory is bounded."""
_REFUSALS = 100
"""Refused jobs that the reply to a stream lists."""
_MAX_FLOW = 200
"""Characters of a flow's name. The ids of its jobs, of up to 256, are made from it."""
_KEY = "idempotency-key"


class Submitter:
    """Stores the jobs of requests."""

    def __init__(self, max_payload: int, error_for_caller: CallerErrors) -> None:
        self._max_payload = max_payload
        self._error_for_caller = error_for_caller
        self._coalescer = Coalescer()

    async def one(self, request: pb.SubmitRequest, caller: Caller) -> pb.SubmitResponse:
        """Store one job. QueueFull if there is no room."""
        new = request.job
        if not new.id and (key := caller.metadata(_KEY)):
            new.id = check_id(key, _KEY)
        spec = convert.job_spec(
            new, caller.tenant(request.tenant), new_id, max_payload=self._max_payload
        )
        spec = traced([spec], caller)[0]
        with self._coalescer:
            await self._coalescer.gather()
            result = await caller.session.sender.put(spec)
        if result.full is not None:
            raise queue_full(spec.queue.queue, result.full)
        return convert.submitted(result)

    async def many(self, request: pb.SubmitManyRequest, caller: Caller) -> pb.SubmitManyResponse:
        """Store jobs. Nothing is stored if one is refused, except because its queue is full."""
        check_int(len(request.jobs), "the number of jobs", high=MAX_JOBS)
        specs = traced(await self._specs(request.jobs, caller.tenant(request.tenant)), caller)
        results: Sequence[PutResult | JobqError]
        if len(specs) <= CHUNK and len({spec.queue for spec in specs}) == 1:
            results = await caller.session.sender.put_many(specs)  # together with other calls
        else:
            results = await caller.store.put_all(specs, step=CHUNK)
        return pb.SubmitManyResponse(
            results=[self._result(spec, each) for spec, each in zip(specs, results, strict=True)]
        )

    async def stream(
        self, requests: AsyncIterator[pb.SubmitStreamRequest], caller: Caller
    ) -> pb.SubmitStreamResponse:
        """Store the jobs of a stream, in its order."""
        sent = _Sent()
        tenant: str | None = None
        try:
            async for request in requests:
                if tenant is None or request.tenant:
                    tenant = caller.tenant(request.tenant)
                specs = traced(await self._specs(request.jobs, tenant, begin=sent.number), caller)
                if specs:
                    await sent.add(specs, caller)
            await sent.finish()
        finally:
            await sent.abandon()
        return sent.reply

    async def flow(self, request: pb.SubmitFlowRequest, caller: Caller) -> pb.SubmitFlowResponse:
        """Store jobs that wait for each other, all or none."""
        check_int(len(request.jobs), "the number of jobs", low=1, high=MAX_JOBS)
        flow = check_short_name(request.flow, "flow", _MAX_FLOW) if request.flow else new_id()
        given = [
            spec if spec.given_id else replace(spec, id=f"{flow}.{n}", given_id=bool(request.flow))
            for n, spec in enumerate(await self._specs(request.jobs, caller.tenant(request.tenant)))
        ]
        specs = check_flow(traced(given, caller))
        try:
            results = await caller.store.put_all(specs, step=CHUNK, flow=flow)
        except QueueFull as full:
            raise queue_full(full.queue, full.max_waiting, refused=len(specs)) from None
        by_key: dict[JobKey, PutResult] = {}
        if len(specs) <= CHUNK:  # the results of earlier puts are not final
            by_key = {
                JobKey(spec.queue, spec.id): result
                for spec, result in zip(specs, results, strict=True)
                if isinstance(result, PutResult)
            }
        return pb.SubmitFlowResponse(
            results=[_member(spec, by_key.get(JobKey(spec.queue, spec.id))) for spec in given],
            flow=flow,
        )

    async def _specs(
        self, jobs: Sequence[common.NewJob], tenant: str, *, begin: int = 0
    ) -> list[JobSpec]:
        """The specs of jobs. InvalidJob says which one is wrong. Other calls run in between."""
        specs: list[JobSpec] = []
        for n, new in enumerate(jobs):
            if n and not n % CHUNK:
                await asyncio.sleep(0)
            try:
                specs.append(convert.job_spec(new, tenant, new_id, max_payload=self._max_payload))
            except InvalidJob as wrong:
                kind = PayloadTooLarge if isinstance(wrong, PayloadTooLarge) else InvalidJob
                raise kind(f"job {begin + n}: {wrong}") from None
        return specs

    def _result(self, spec: JobSpec, result: PutResult | JobqError) -> pb.SubmitResponse:
        if isinstance(result, JobqError):
            shown = self._error_for_caller(result, "SubmitMany")
            code: int = status.code_of(shown).value[0]
            refusal = pb.Refusal(code=code, message=status.shortened(str(shown)))
            return pb.SubmitResponse(id=spec.id, refused=refusal)
        if result.full is None:
            return convert.submitted(result)
        return pb.SubmitResponse(id=spec.id, refused=_refusal(spec.queue.queue, result.full))


class _Sent:
    """The jobs of a stream that were sent to the store."""

    def __init__(self) -> None:
        self.number = 0
        self.reply = pb.SubmitStreamResponse()
        self._puts: deque[tuple[int, Sequence[JobSpec], asyncio.Task[list[PutResult]]]] = deque()
        self._in_flight = 0

    async def add(self, specs: Sequence[JobSpec], caller: Caller) -> None:
        """Store these jobs after those before. Waits while too many are in flight."""
        while self._puts and self._in_flight + len(specs) > _IN_FLIGHT:
            await self._first()
        put = asyncio.create_task(caller.session.sender.put_many(specs), name="jobq stream")
        self._puts.append((self.number, specs, put))
        self.number += len(specs)
        self._in_flight += len(specs)

    async def finish(self) -> None:
        """Wait until all jobs are stored."""
        while self._puts:
            await self._first()

    async def abandon(self) -> None:
        """Wait for what is in flight, after an error. What is stored stays stored."""
        await asyncio.gather(*(put for _, _, put in self._puts), return_exceptions=True)

    async def _first(self) -> None:
        begin, specs, put = self._puts[0]
        results = await put
        self._puts.popleft()
        self._in_flight -= len(specs)
        for n, (spec, result) in enumerate(zip(specs, results, strict=True), begin):
            if result.full is not None:
                self._refused(n, spec, result.full)
            elif result.duplicate:
                self.reply.duplicates += 1
            else:
                self.reply.accepted += 1

    def _refused(self, n: int, spec: JobSpec, full: int) -> None:
        self.reply.refused += 1
        if len(self.reply.refusals) < _REFUSALS:
            self.reply.refusals.add(index=n, id=spec.id, refused=_refusal(spec.queue.queue, full))


def _refusal(queue: str, full: int) -> pb.Refusal:
    code: int = StatusCode.RESOURCE_EXHAUSTED.value[0]
    return pb.Refusal(code=code, message=str(queue_full(queue, full)))


def _member(spec: JobSpec, result: PutResult | None) -> pb.SubmitResponse:
    return pb.SubmitResponse(id=spec.id) if result is None else convert.submitted(result)


_WAIT_MS = 30_000
"""How long Wait waits if the request names no time. Proxies cut calls after a minute."""
_MAX_WAIT_MS = 600_000
"""How long Wait waits at most: ten minutes. A caller asks again."""
_MARGIN_MS = 100
"""Milliseconds before the caller's deadline when Wait returns, so that the reply arrives."""
_LINES = 100
"""Log lines per message."""
_MAX_REASON = 64
"""Characters of the reason of a cancel. Every event of it repeats them."""
_READ: frozenset[Scope] = frozenset({"read"})


class JobService:
    """Submits jobs and says what became of them, within what the caller's token allows."""

    name = "jobq.v1.JobService"

    def __init__(self, context: ServerContext) -> None:
        self._stopping = Stopping()
        submitter = Submitter(context.settings.max_payload, context.error_for_caller)
        self.Submit, self.SubmitMany = submitter.one, submitter.many
        self.SubmitStream, self.SubmitFlow = submitter.stream, submitter.flow
        self._max_payload = context.settings.max_payload
        self._handlers = Handlers(
            context,
            self,
            pb.DESCRIPTOR.services_by_name["JobService"],
            unbounded=frozenset({"Wait"}),
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handlers to the server."""
        self._handlers.register(server)

    def drain(self) -> None:
        """End streams and waits."""
        self._stopping.stop()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def Get(self, request: pb.GetRequest, caller: Caller) -> pb.GetResponse:
        """Return a job."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        return pb.GetResponse(job=convert.job(await _found(key, caller)))

    async def Wait(self, request: pb.WaitRequest, caller: Caller) -> pb.WaitResponse:
        """Wait for the end of a job."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        asked = checks.check_int(request.timeout_ms, "timeout_ms", high=checks.MAX_MS) or _WAIT_MS
        left_s = caller.time_left()
        left_ms = _MAX_WAIT_MS if left_s is None else max(0, int(left_s * 1000) - _MARGIN_MS)
        deadline = self._stopping.deadline(min(asked, left_ms, _MAX_WAIT_MS))
        try:
            record = await waiting.ended(caller.session, key, None, deadline)
        except WaitTimeout:
            record = await _found(key, caller)
        return pb.WaitResponse(job=convert.job(record), ended=record.state.ended)

    async def List(self, request: pb.ListRequest, caller: Caller) -> pb.ListResponse:
        """List jobs."""
        queue = caller.queue(request.queue, request.tenant)
        times = {
            name: getattr(request, f"{name}_ms")
            for name in TIMES
            if request.HasField(f"{name}_ms")  # type: ignore[arg-type]
        }
        criteria = criteria_of_request(
            request.states,
            times,
            name=request.name,
            error=request.error,
            key=request.key or None,
            meta=dict(request.meta),
        )
        page = await listed(
            caller.store,
            queue,
            criteria,
            limit=page_size(request.limit),
            cursor=request.cursor,
            oldest_first=request.oldest_first,
        )
        return pb.ListResponse(jobs=map(convert.job, page.records), cursor=page.cursor)

    async def Logs(self, request: pb.LogsRequest, caller: Caller) -> AsyncIterator[pb.LogsResponse]:
        """Stream log lines."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        if request.follow:
            deadline = self._stopping.deadline(None)
            async for update in following.updates(caller.session, key, None, deadline):
                for reply in _lines(update.lines):
                    yield reply
            return
        await _found(key, caller)
        for reply in _lines(await caller.store.logs(key)):
            yield reply

    # ── changing ──────────────────────────────────────────────────────────────────────────────────

    async def Cancel(self, request: pb.CancelRequest, caller: Caller) -> pb.CancelResponse:
        """Cancel a job."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        reason = request.reason or "cancelled"
        command = Cancel(
            job=key,
            cascade=request.cascade,
            reason=checks.check_short_name(reason, "reason", _MAX_REASON),
        )
        await _alter(command, caller, "it has ended, so it cannot be cancelled")
        record = await _readable(key, caller)
        return pb.CancelResponse(state="" if record is None else record.state)

    async def Rerun(self, request: pb.RerunRequest, caller: Caller) -> pb.RerunResponse:
        """Run an ended job again."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        late = "it has not ended, or another job holds its unique lock, so it cannot run again"
        await _alter(Rerun(job=key), caller, late)
        record = await _readable(key, caller)
        if record is None:
            return pb.RerunResponse()
        return pb.RerunResponse(life=record.life, state=record.state)

    async def Signal(self, request: pb.SignalRequest, caller: Caller) -> pb.SignalResponse:
        """Send a signal to a job."""
        key = convert.job_key(caller.queue(request.queue, request.tenant), request.id)
        name = checks.check_signal(request.name)
        value = checks.check_payload(
            request.value or b"null", self._max_payload, f"the value of signal {name!r} takes"
        )
        await _alter(
            SendSignal(job=key, name=name, value=value),
            caller,
            "it has ended, so it receives no signals",
        )
        return pb.SignalResponse()

    # ── events ────────────────────────────────────────────────────────────────────────────────────

    async def Events(
        self, request: pb.EventsRequest, caller: Caller
    ) -> AsyncIterator[pb.EventsResponse]:
        """Stream events."""
        if not 1 <= len(request.queues) <= MAX_QUEUES:
            raise InvalidJob(
                f"queues has {len(request.queues)} entries: name from 1 to {MAX_QUEUES} queues"
            )
        stream = EventStream(caller.store, self._stopping, until_now=request.until_now)
        for asked in request.queues:
            await stream.begin(caller.queue(asked.queue, request.tenant), asked)
        async for reply in stream.replies():
            yield reply


async def _found(key: JobKey, caller: Caller) -> JobRecord:
    record = await caller.session.reader.get(key)
    if record is None:
        raise no_such_job(key)
    return record


async def _readable(key: JobKey, caller: Caller) -> JobRecord | None:
    """The job, if the token may read it."""
    if not caller.store.principal.may(_READ):
        return None
    return await caller.session.reader.get(key)


async def _alter(command: AnyCommand, caller: Caller, late: str) -> None:
    """Carry out a command. `late` says why it may not apply."""
    if not await jobs.apply(caller.store, command):
        key = command.job
        raise Refused(
            StatusCode.FAILED_PRECONDITION,
            f"job {key.id!r} of queue {key.queue.queue!r}: {late}",
        )


def _lines(lines: Sequence[str]) -> Iterator[pb.LogsResponse]:
    for part in batches(lines, _LINES):
        yield pb.LogsResponse(lines=map(convert.text, part))
