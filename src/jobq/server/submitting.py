"""How JobService stores jobs. Jobs of all calls of a principal share batches (client/sender.py)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from grpc import StatusCode
from msgspec.structs import replace

from jobq.access.caller_errors import CallerErrors
from jobq.client.ids import new_id
from jobq.client.session import CHUNK
from jobq.core.bounds import queue_full
from jobq.core.checks import check_id, check_int, check_short_name
from jobq.core.graph import check_flow
from jobq.core.records import JobKey, JobSpec, PutResult
from jobq.errors import InvalidJob, JobqError, PayloadTooLarge, QueueFull
from jobq.rpc import convert, status
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from jobq.server.coalescing import Coalescer
from jobq.server.handlers import Caller
from jobq.server.tracing import traced

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
