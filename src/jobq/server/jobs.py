"""JobService: submitting jobs, and what becomes of them. Its .proto file is its documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import grpc.aio
from grpc import StatusCode

from jobq.access.principal import Scope
from jobq.client import following, waiting
from jobq.client.session import batches
from jobq.core import checks
from jobq.core.commands import AnyCommand, Cancel, Rerun, SendSignal
from jobq.core.records import JobKey, JobRecord
from jobq.errors import InvalidJob, WaitTimeout
from jobq.operations import jobs
from jobq.operations.listing import listed, no_such_job, page_size
from jobq.operations.selecting import TIMES, criteria_of_request
from jobq.rpc import convert
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server.context import ServerContext
from jobq.server.event_streams import MAX_QUEUES, EventStream
from jobq.server.handlers import Caller, Handlers, Refused
from jobq.server.stopping import Stopping
from jobq.server.submitting import Submitter

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
