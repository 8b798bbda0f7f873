"""The exchange stream: the Store contract for jobq's own clients (`grpc://`).

Each call of a stream is a task, and the guarded store carries it out. The stream itself decides
nothing: above all it releases no lease when it ends, because the worker may still run the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec

from jobq.access.caller_errors import Unready
from jobq.access.guarded.store import GuardedStore
from jobq.errors import ConfigError, InvalidJob, JobqError
from jobq.rpc import contract, frames
from jobq.rpc.frames import Beat, Call, Cancel, Frame, Hello, Item, Reply, Time, Welcome, refusal_of
from jobq.server.context import ServerContext

log = logging.getLogger("jobq.server")

BEAT_MS = 5_000
"""How long a stream may be silent. Proxies cut streams that are idle for about a minute."""
DEAF_MS = 15_000
"""After this time without a frame a stream has ended: three beats, so that two may be late."""
_MAX_CALLS = 1_000
"""Calls of one stream that run at the same time, apart from waits."""
_MAX_WAITS = 10_000
"""`sleep`, `listen` and `expect` calls of one stream at the same time."""
_MAX_UNSENT = 20_000
"""Frames that wait to be sent. A client that reads none of them has ended, or will reconnect."""
_MAX_UNSENT_BYTES = 64 << 20
"""Bytes of replies that wait to be sent. Above it, further calls wait until the client has read
some, and the ends of jobs are reported without their records. One reply may have more."""
_HELLO_S = 10.0
"""Seconds until the first frame of a client must have arrived."""
_LAST_CALLS_S = 10.0
"""Seconds that running calls get when the server stops, before their streams end."""
_UNREADABLE = (ValueError, msgspec.DecodeError, RecursionError)
"""What bytes raise that no client of jobq sends: text that is not UTF-8, a list in a list in …"""

T = TypeVar("T")


class ExchangeService:
    """Serves `WorkerService.Exchange`. Register it before WorkerService, which declares it too."""

    name = "jobq.v1.WorkerService"

    def __init__(
        self,
        context: ServerContext,
        *,
        beat_ms: int = BEAT_MS,
        deaf_ms: int = DEAF_MS,
        set_time: Callable[[int], None] | None = None,
    ) -> None:
        """`set_time` is for tests: clients may then set the time of the store."""
        self.context = context
        self.beat_ms, self.deaf_ms = beat_ms, deaf_ms
        self.set_time = set_time
        self.stopping = False
        self.streams: set[Stream] = set()
        self._pacer: asyncio.Task[None] | None = None
        self._left: set[asyncio.Task[None]] = set()

    def register(self, server: grpc.aio.Server) -> None:
        """Add the handler. Messages are bytes here: `frames` reads and writes them."""
        _, service, method = frames.METHOD.split("/")
        handler = grpc.stream_stream_rpc_method_handler(self.exchange)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    def drain(self) -> None:
        """Accept no calls, and end each stream when its running calls have replied."""
        self.stopping = True
        if self._pacer is not None:
            self._pacer.cancel()
        for stream in self.streams:
            stream.drain()

    async def exchange(self, _: object, rpc: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Serve one stream."""
        stream = Stream(self, rpc)
        self.streams.add(stream)
        if (self._pacer is None or self._pacer.done()) and not self.stopping:
            self._pacer = asyncio.create_task(self._pace(), name="jobq exchange beats")
        try:
            await stream.run()
        finally:
            self.streams.discard(stream)

    def outlive(self, task: asyncio.Task[None]) -> None:
        """Let a call end although its stream has ended. Half of a call is never carried out."""
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    async def _pace(self) -> None:
        """Send beats on silent streams, and end deaf ones. One timer serves all streams."""
        loop = asyncio.get_running_loop()
        while self.streams:
            await asyncio.sleep(self.beat_ms / 2000)
            now = loop.time()
            for stream in list(self.streams):
                stream.pace(now)


class Stream:
    """One client. Its calls run until they end, its waits until the stream ends."""

    def __init__(
        self, service: ExchangeService, rpc: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        self._service = service
        self._rpc = rpc
        self._proof = service.context.proof(rpc)
        self._store: GuardedStore | None = None
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._waits: dict[int, asyncio.Task[None]] = {}
        self._entering: set[asyncio.Future[None]] = set()  # `expect` calls that do not expect yet
        self._unsent: list[Frame] = []
        self._unsent_bytes = 0  # also of the frames that are being written
        self._room = asyncio.Event()  # is set while further replies may be made
        self._room.set()
        self._writer: asyncio.Task[None] | None = None
        self._heard = self._sent = self._loop.time()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Read frames until the client, the network or the server ends the stream."""
        reader = asyncio.ensure_future(self._read())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([reader, over], return_when=asyncio.FIRST_COMPLETED)
            if reader.done() and (error := reader.exception()) is not None:
                raise error
        finally:
            for task in (reader, over, *self._waits.values()):
                task.cancel()
            for task in self._calls.values():
                self._service.outlive(task)
            if self._writer is not None:
                self._writer.cancel()

    # ── reading ──

    async def _read(self) -> None:
        unpacker = frames.Unpacker()
        try:
            async with asyncio.timeout(_HELLO_S):
                first = await self._rpc.read()
            await self._greet(unpacker.feed(first) if isinstance(first, bytes) else [])
            while isinstance(message := await self._rpc.read(), bytes):
                self._heard = self._loop.time()
                for frame in unpacker.feed(message):
                    self._take(frame)
        except JobqError as error:
            shown = self._service.context.error_for_caller(error, "the exchange stream")
            await self._end_with(shown)
        except (TimeoutError, *_UNREADABLE) as error:
            await self._end_with(InvalidJob(f"this is not an exchange stream of jobq: {error}"))

    async def _greet(self, first: list[Frame]) -> None:
        if not first or not isinstance(hello := first[0], Hello):
            raise ValueError("the first frame must be a Hello")
        service = self._service
        if hello.version != frames.VERSION:
            raise ConfigError(
                f"the server speaks version {frames.VERSION} of the exchange stream, and the "
                f"client version {hello.version}: install the same version of jobq on both sides"
            )
        if hello.clock and service.set_time is None:
            raise ConfigError(
                "a clock was given for a grpc:// store, but only the clock of the server counts: "
                "leave it out, or test on memory://"
            )
        if service.stopping:
            raise Unready("the server is stopping")
        guarded = await service.context.guarded(self._proof)
        tenant = guarded.principal.tenant
        if tenant is not None and hello.tenant not in (None, tenant):
            raise ConfigError(
                f"the {guarded.principal.by} is for the tenant {tenant!r}, not for "
                f"{hello.tenant!r}: leave the tenant out, or use a token of that tenant"
            )
        self._store = guarded
        self.send(Welcome(frames.VERSION, tenant, service.beat_ms, service.deaf_ms))
        for frame in first[1:]:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Call):
            self._begin(frame)
        elif isinstance(frame, Cancel):
            if (wait := self._waits.get(frame.number)) is not None:
                wait.cancel()
        elif isinstance(frame, Time):
            if self._service.set_time is None:
                raise ValueError("only a server for tests lets clients set the time")
            self._service.set_time(frame.now_ms)
        elif not isinstance(frame, Beat):
            raise ValueError(f"{type(frame).__name__} is not a frame of a client")

    # ── calls ──

    def _begin(self, call: Call) -> None:
        number, waits = call.number, call.method in contract.WAITS
        tasks, most = (self._waits, _MAX_WAITS) if waits else (self._calls, _MAX_CALLS)
        if number in self._calls or number in self._waits:
            # Two tasks under one number: nobody would count, cancel or end the first one.
            raise ValueError(f"the number {number} belongs to a call that still runs")
        if len(tasks) >= most or self._service.stopping:
            why = "is stopping" if self._service.stopping else f"runs {most:,} calls of this stream"
            self.send(refusal_of(number, Unready(f"the server {why}")))
            return
        work: Coroutine[Any, Any, None]
        if call.method == "listen":
            work = self._listen(call)
        elif call.method == "expect":
            entered: asyncio.Future[None] = self._loop.create_future()
            self._entering.add(entered)
            entered.add_done_callback(self._entering.discard)
            work = self._expect(call, entered)
        else:
            work = self._call(call)
        task = self._loop.create_task(self._reply_to(call, work))
        tasks[number] = task
        task.add_done_callback(lambda _: tasks.pop(number, None))

    async def _reply_to(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a call, and send what it raises."""
        try:
            await work
        except Exception as error:
            shown = self._service.context.error_for_caller(error, f"the call {call.method}")
            self.send(refusal_of(call.number, shown))

    async def _call(self, call: Call) -> None:
        assert self._store is not None
        method = contract.METHODS.get(call.method)
        if method is None:
            raise ConfigError(
                f"the server knows no call {call.method!r}: install the version of the client there"
            )
        self._store.check(call.method)
        arguments = _read(method.read_arguments, call)
        if not self._room.is_set():
            await self._room.wait()
        if self._entering:
            await asyncio.wait(self._entering)
        result = await method.call(self._store, arguments)
        self.send(Reply(call.number, msgspec.Raw(method.write(result))))

    async def _listen(self, call: Call) -> None:
        assert self._store is not None
        async with self._store.listen(_read(contract.read_topics, call)) as signals:
            self.send(Reply(call.number, contract.raw(None)))
            async for signal in signals:
                self.send(Item(call.number, contract.raw(signal)))

    async def _expect(self, call: Call, entered: asyncio.Future[None]) -> None:
        """Report the end of a job with its record, so that the client need not read it."""
        assert self._store is not None
        try:
            job = _read(contract.read_key, call)
            async with self._store.expect(job) as ends:
                entered.set_result(None)
                async for record in ends:
                    if not self._room.is_set():
                        self.send(Item(call.number, contract.raw(None)))  # the client reads it
                        continue
                    if record is None:
                        (record,) = await self._store.get([job])
                    if record is None or record.state.ended:
                        self.send(Item(call.number, contract.raw(record)))
        finally:
            if not entered.done():
                entered.set_result(None)

    # ── writing ──

    def send(self, frame: Frame) -> None:
        """Send a frame together with others that are ready. Frames of one task keep their order."""
        self._unsent.append(frame)
        self._unsent_bytes += _size(frame)
        if self._unsent_bytes > _MAX_UNSENT_BYTES:
            self._room.clear()
        if self._writer is None and not self._over.is_set():
            self._writer = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._unsent:
                ready, self._unsent = self._unsent, []
                for message in frames.pack(ready):
                    await self._rpc.write(message)
                    self._sent = self._loop.time()
                self._unsent_bytes -= sum(map(_size, ready))
                if self._unsent_bytes <= _MAX_UNSENT_BYTES:
                    self._room.set()
        except Exception as error:  # the client has gone; gRPC has no public class for that
            log.debug("an exchange stream has ended: %s", error)
            self._over.set()
        finally:
            self._writer = None

    async def _end_with(self, error: JobqError) -> None:
        """Say why the stream ends. Frame 0 is no call: it is about the stream."""
        self.send(refusal_of(0, error))
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=1)

    # ── the service's view ──

    def pace(self, now: float) -> None:
        """Send a beat if the stream was silent, and end it if the client was, or reads nothing."""
        deaf_s = self._service.deaf_ms / 1000
        stuck = not self._room.is_set() and now - self._sent > deaf_s
        if now - self._heard > deaf_s or stuck or len(self._unsent) > _MAX_UNSENT:
            self._over.set()
            return
        try:
            if self._store is not None:  # the token or the certificate may have expired
                self._store = self._service.context.guarded_by(self._proof)
        except JobqError as error:
            self.send(refusal_of(0, error))
            self._loop.call_later(1, self._over.set)
            return
        if self._writer is None and now - self._sent >= self._service.beat_ms / 2000:
            self.send(Beat())

    def drain(self) -> None:
        """End the stream when its running calls have replied."""
        self._loop.create_task(self._finish())

    async def _finish(self) -> None:
        if self._calls:
            await asyncio.wait(self._calls.values(), timeout=_LAST_CALLS_S)
        await self._end_with(Unready("the server has stopped"))
        self._over.set()


def _read(read: Callable[[msgspec.Raw], T], call: Call) -> T:
    """The arguments of a call. InvalidJob if they are not those of the contract."""
    try:
        return read(call.arguments)
    except _UNREADABLE as error:
        raise InvalidJob(f"the server cannot read this call: {error}") from None


def _size(frame: Frame) -> int:
    """Bytes of what a frame carries, if that may be much."""
    if isinstance(frame, Reply):
        return len(frame.result)
    return len(frame.value) if isinstance(frame, Item) else 0
