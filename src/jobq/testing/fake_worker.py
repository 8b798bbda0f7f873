"""A worker that a test controls step by step. It speaks WorkerService to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from jobq.rpc.status import error_of
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.rpc.v1.workers_pb2_grpc import WorkerServiceStub

if TYPE_CHECKING:
    from jobq.rpc.v1.workers_pb2_grpc import WorkerServiceAsyncStub

_CALL_S = 10.0
"""Seconds until a call without a reply fails the test."""


class FakeWorker:
    """A worker of WorkerService, for tests of a server.

        async with FakeWorker("127.0.0.1:50051", ["mail"], concurrency=2) as worker:
            job = await worker.job()
            await worker.complete(job, {"sent": True})

    The context registers the worker, opens its stream with one credit per slot, and sends
    heartbeats that name its jobs. It deregisters the worker on exit. Jobs come confirmed, and a job
    that is settled gives its credit back. To break these rules, set `heartbeats=False`, use
    `break_stream()` and `open_stream(…)`, or call `worker.stub` with messages of your own.

    Errors of the server are raised as the library's own, such as InvalidJob.
    """

    def __init__(
        self,
        address: str,
        queues: Sequence[str],
        *,
        name: str = "",
        concurrency: int = 1,
        tenant: str = "",
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        heartbeats: bool = True,
        confirms: bool = True,
        displace: bool = False,
    ) -> None:
        """`credentials` are for TLS. `confirms=False`: jobs that arrive are not confirmed."""
        self.name = name
        self.session = ""
        self.queues = list(queues)
        self.concurrency = concurrency
        self.confirms = confirms
        self.running: dict[str, pb.Lease] = {}
        """Jobs that were received and not settled, by id. Heartbeats name them."""
        self.cancelled: list[str] = []
        """Ids of jobs that the stream asked to stop, in order."""
        self.requests: list[str] = []
        """What operators asked, as the stream and heartbeats said, without repetitions."""
        self.alive = 0
        """Messages of the stream that only said that it is alive."""
        self._tenant = tenant
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        self._heartbeats = heartbeats
        self._displace = displace
        self._channel = (
            grpc.aio.insecure_channel(address, _OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, _OPTIONS)
        )
        self.stub: WorkerServiceAsyncStub = WorkerServiceStub(self._channel)
        self._beat_s = 5.0
        self._gone = False
        self._call: Any = None
        self._up: asyncio.Queue[pb.StreamJobsRequest | None] = asyncio.Queue()
        self._jobs: asyncio.Queue[pb.Lease | BaseException] = asyncio.Queue()
        self._opened = asyncio.Event()
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._beater: asyncio.Task[None] | None = None

    # ── the session ──

    async def __aenter__(self) -> Self:
        await self.register()
        await self.open_stream()
        if self._heartbeats:
            self._beater = asyncio.create_task(self._beat(), name="FakeWorker heartbeats")
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._gone:
            return
        await self.vanish(close=False)
        with contextlib.suppress(Exception):  # the server may be gone, as the test wants
            await self.deregister()
        await self._channel.close(None)

    async def register(self) -> None:
        """Register, and keep the name and the session that the server returns."""
        request = pb.RegisterRequest(
            worker=self.name,
            queues=self.queues,
            concurrency=self.concurrency,
            host="fake",
            session=self.session,
            displace=self._displace,
            tenant=self._tenant,
        )
        reply = await self._ask(self.stub.Register(request, **self._how))
        self.name, self.session = reply.worker, reply.session
        self._beat_s = reply.heartbeat_ms / 1000

    async def deregister(self) -> None:
        """End the session."""
        request = pb.DeregisterRequest(worker=self.name, session=self.session, tenant=self._tenant)
        await self._ask(self.stub.Deregister(request, **self._how))

    async def heartbeat(self, *, paused: bool = False) -> pb.HeartbeatResponse:
        """Send one heartbeat that names the running jobs. Lost ones are forgotten."""
        request = pb.HeartbeatRequest(
            worker=self.name,
            session=self.session,
            running=[ref(job) for job in self.running.values()],
            paused=paused,
            tenant=self._tenant,
        )
        reply: pb.HeartbeatResponse = await self._ask(self.stub.Heartbeat(request, **self._how))
        for changed in reply.changed:
            if changed.state == "lost":
                self.running.pop(changed.lease.id, None)
            elif changed.lease.id not in self.cancelled:
                self.cancelled.append(changed.lease.id)
        self._asked(reply.request)
        return reply

    async def vanish(self, *, close: bool = True) -> None:
        """Stop everything without a word, as a worker that was killed. Closes the connection."""
        for task in (self._beater, self._reader):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._beater = self._reader = None
        if self._call is not None:
            self._call.cancel()
            self._call = None
        if close:
            self._gone = True
            await self._channel.close(None)

    # ── the stream ──

    async def open_stream(
        self, *, running: Sequence[pb.Lease] | None = None, credit: int | None = None
    ) -> None:
        """Open a stream, and wait until the server has accepted it.

        It names `running`, by default all running jobs, and has one credit for each free slot.
        """
        named = list(self.running.values()) if running is None else list(running)
        self.running = {job.id: job for job in named}
        free = self.concurrency - len(named) if credit is None else credit
        opening = pb.StreamJobsRequest.Open(
            worker=self.name,
            session=self.session,
            running=[ref(job) for job in named],
            tenant=self._tenant,
        )
        self._up = asyncio.Queue()
        self._up.put_nowait(pb.StreamJobsRequest(open=opening, credit=free))
        self._opened.clear()
        self._call = self.stub.StreamJobs(
            _sent(self._up), metadata=tuple(self._metadata), wait_for_ready=True
        )
        self._reader = asyncio.create_task(self._read(self._call), name="FakeWorker stream")
        opened = asyncio.create_task(self._opened.wait())
        await asyncio.wait(
            [opened, self._reader], timeout=_CALL_S, return_when=asyncio.FIRST_COMPLETED
        )
        opened.cancel()
        if not self._opened.is_set():
            failed = None if self._jobs.empty() else self._jobs.get_nowait()
            raise failed if isinstance(failed, BaseException) else TimeoutError("no stream")

    async def break_stream(self) -> None:
        """Break the stream, as a lost connection does. Jobs go on, and so do heartbeats."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()

    def grant(self, credit: int = 1) -> None:
        """Grant more credit."""
        self._up.put_nowait(pb.StreamJobsRequest(credit=credit))

    async def job(self, *, timeout: float = _CALL_S) -> pb.Lease:
        """The next job that the stream brings. Raises what ended the stream, if it has ended."""
        async with asyncio.timeout(timeout):
            arrived = await self._jobs.get()
        if isinstance(arrived, BaseException):
            raise arrived
        return arrived

    def arrived(self) -> int:
        """How many jobs have arrived that `job()` has not returned yet."""
        return self._jobs.qsize()

    async def changed(self, *, timeout: float = _CALL_S) -> None:
        """Wait until the stream or a heartbeat has brought a cancel or a request."""
        async with asyncio.timeout(timeout):
            await self._changed.wait()
        self._changed.clear()

    async def _read(self, call: Any) -> None:
        try:
            async for message in call:
                self._opened.set()
                self._take(message)
            raise ConnectionError("the server has closed the stream")
        except grpc.aio.AioRpcError as error:
            self._jobs.put_nowait(error_of(error))
        except ConnectionError as error:
            self._jobs.put_nowait(error)

    def _take(self, message: pb.StreamJobsResponse) -> None:
        for job in message.jobs:
            self.running[job.id] = job
        if message.jobs and self.confirms:
            received = [ref(job) for job in message.jobs]
            self._up.put_nowait(pb.StreamJobsRequest(received=received))
        for job in message.jobs:
            self._jobs.put_nowait(job)
        for lease in message.cancelled:
            self.cancelled.append(lease.id)
            self._changed.set()
        self._asked(message.request)
        if not message.ByteSize():
            self.alive += 1
            self._up.put_nowait(pb.StreamJobsRequest())

    def _asked(self, request: str) -> None:
        if request and self.requests[-1:] != [request]:
            self.requests.append(request)
            self._changed.set()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            with contextlib.suppress(Exception):  # the next one may succeed
                await self.heartbeat()

    # ── jobs ──

    async def complete(self, job: pb.Lease, result: Any = None) -> bool:
        """Report that a job completed, with a JSON result. False if its lease was lost."""
        done = pb.Completed(result=json.dumps(result).encode())
        return await self.report(pb.Result(lease=ref(job), completed=done))

    async def fail(self, job: pb.Lease, message: str = "failed", **fields: Any) -> bool:
        """Report that a run failed. `fields` are those of `Failed`. False: the lease was lost."""
        failed = pb.Failed(**{"type": "Error", "message": message, **fields})
        return await self.report(pb.Result(lease=ref(job), failed=failed))

    async def report(self, *results: pb.Result, call: str = "") -> bool:
        """Report runs in one call, and give their credit back. False if a lease was lost."""
        request = pb.ReportRequest(
            worker=self.name, results=results, call=call, tenant=self._tenant
        )
        reply = await self._ask(self.stub.Report(request, **self._how))
        self._settled([result.lease.id for result in results])
        return not reply.stale

    async def release(self, *jobs: pb.Lease, delay_ms: int = 0) -> bool:
        """Release jobs unfinished, and give their credit back. False if a lease was lost."""
        request = pb.ReleaseRequest(
            worker=self.name,
            leases=[ref(job) for job in jobs],
            delay_ms=delay_ms,
            tenant=self._tenant,
        )
        reply = await self._ask(self.stub.Release(request, **self._how))
        self._settled([job.id for job in jobs])
        return not reply.stale

    async def claim(self, limit: int = 1, **fields: Any) -> list[pb.Lease]:
        """Claim once, without the stream. `fields` are those of `ClaimRequest`."""
        given = {"worker": self.name, "queues": self.queues, "tenant": self._tenant, **fields}
        reply = await self._ask(self.stub.Claim(pb.ClaimRequest(limit=limit, **given), **self._how))
        return list(reply.jobs)

    def _settled(self, ids: Sequence[str]) -> None:
        freed = [id for id in ids if self.running.pop(id, None) is not None]
        if freed:
            self.grant(len(freed))

    @property
    def _how(self) -> dict[str, Any]:
        return {"timeout": _CALL_S, "metadata": tuple(self._metadata), "wait_for_ready": True}

    async def _ask(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None


_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
"""Each FakeWorker has a connection of its own, so that one can break without the others."""


def ref(job: pb.Lease) -> pb.LeaseRef:
    """The name of a job's lease."""
    return pb.LeaseRef(queue=job.queue, id=job.id, token=job.token)


async def _sent(
    messages: asyncio.Queue[pb.StreamJobsRequest | None],
) -> AsyncIterator[pb.StreamJobsRequest]:
    while (message := await messages.get()) is not None:
        yield message
