"""The simulated network between processes and their store.

A call is a message to the process of the store, which executes it and sends a reply. Each message
takes time, and messages overtake each other. A fault (faults.py) makes a call fail before or after
it is executed, loses its reply, delays it, or executes it once more, later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, Signal, Topic
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Clock
from tests.simulation.faults import CallFault
from tests.simulation.shown_calls import Exchanged, shown_call, shown_reply
from tests.simulation.world import Process, World, running_process

GIVE_UP_S = 40.0
"""Seconds after which a client closes a connection on which no reply comes."""


_REPEATED = frozenset({"settle", "put", "note"})
"""Calls that the network delivers twice: a repetition of others is not interesting."""
_REPEATS_S = (0.0, 0.7, 1.9, 4.1)
"""Seconds after which such a call arrives again and again."""
_LATENCIES = (0.0, 0.0, 0.0, 0.0005, 0.002, 0.01)
"""Seconds that a message takes."""


class Network:
    """What all handles of a world share: the process of the store, and the faults to come."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        self.server = world.process("store")
        self.faults: dict[tuple[str, int], CallFault] = {}  # by process and number of its call
        self.outages: list[tuple[float, float, str | None]] = []  # from, until, process
        self.lossy = 0.0  # the share of signals that are lost
        self.slow = 0.0  # the share of messages that take long
        self.lanes: int | None = None  # of Pipelined; None: the store is not
        self.exchanged: list[Exchanged] = []  # what the store did, in order: tests/model replays it
        self.reliable: set[str] = set()  # processes that no fault concerns
        world.network = self

    def is_down(self, process: str) -> bool:
        """Whether no message of the process passes now."""
        now = self.world.now
        return process not in self.reliable and any(
            start <= now < end and who in (None, process) for start, end, who in self.outages
        )

    def latency(self, process: Process) -> float:
        """How long the next message takes."""
        chance = process.rng.random
        if self.slow and chance() < self.slow and process.name not in self.reliable:
            return process.rng.uniform(0.05, 2.0)
        return _LATENCIES[int(chance() * len(_LATENCIES))]


def open(url: str, clock: Clock | None) -> Handle:
    """A handle of the running process. `sim://anything` is the one store of its world."""
    process = running_process()
    network = process.world.network
    assert isinstance(network, Network)
    return (Handle if network.lanes is None else PipelinedHandle)(network, process, url)


class Handle:
    """A Store that is reached through the network."""

    def __init__(self, network: Network, process: Process, url: str) -> None:
        self.url = url
        self._network = network
        self._process = process
        self._world = network.world
        self._home = asyncio.get_running_loop()
        self._inner: Any = None  # the real handle, in the process of the store

    # ── calls ──

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_") or name in ("lanes", "pending_migration", "join"):
            raise AttributeError(name)
        return partial(self._call, name)

    async def migrate(self) -> None:
        """Connect."""
        await self._call("migrate")

    async def aclose(self) -> None:
        """Close the connection. The store notices a little later."""
        inner, self._inner = self._inner, None
        if inner is not None and not self._world.over:
            self._network.server.main.create_task(inner.aclose())

    async def __aenter__(self) -> Handle:
        await self.migrate()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        network, process = self._network, self._process
        process.calls += 1
        number = process.calls
        said = f"#{number} {shown_call(name, args, kwargs)}"
        if network.is_down(process.name):
            await asyncio.sleep(process.rng.choice((0.0, 0.01, 1.0)))
            self._world.tell(process.name, f"{said}: no connection")
            raise StoreUnavailable("simulated: no connection")
        fault = network.faults.pop((process.name, number), None)
        if fault is not None and fault.effect == "repeat" and name not in _REPEATED:
            network.faults.setdefault((process.name, number + 1), fault)
            fault = None
        if fault is not None:
            self._world.tell(process.name, f"{said}: fault, {fault.effect} {fault.seconds:g} s")
            if fault.effect == "fail before":
                await asyncio.sleep(fault.seconds)
                raise StoreUnavailable("simulated: the call was not sent")
        message = _Message(self, name, args, kwargs, said, fault)
        there = network.latency(process)
        if fault is not None and fault.effect == "delay call":
            there += fault.seconds
        self._world.later(there, message.arrive)
        if fault is not None and fault.effect == "repeat":
            for pause in _REPEATS_S:
                self._world.later(there + fault.seconds + pause, message.repeated().arrive)
        giving_up = self._home.call_later(GIVE_UP_S, message.give_up)
        try:
            return await message.reply
        finally:
            giving_up.cancel()
            if name == "sleep":  # it changes nothing, so nobody needs to know how it ends
                message.cancel()

    async def connected(self) -> Any:
        """The real handle, in the process of the store."""
        if self._inner is None:
            inner = open_store(self._network.url)
            await inner.migrate()
            if self._inner is None:
                self._inner = inner
            else:
                await inner.aclose()
        return self._inner

    # ── signals ──

    def listen(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """See the contract."""
        return self._subscribed(lambda inner: inner.listen(topics))

    @asynccontextmanager
    async def _subscribed(self, enter: Callable[[Any], Any]) -> AsyncIterator[AsyncIterator[Any]]:
        """Pass on what the real store yields. Some of it is lost."""
        network, process = self._network, self._process
        if network.is_down(process.name):
            await asyncio.sleep(0.01)
            raise StoreUnavailable("simulated: no connection")
        entered: asyncio.Future[None] = self._home.create_future()
        inbox: asyncio.Queue[Any] = asyncio.Queue()

        async def serve() -> None:
            async with enter(await self.connected()) as signals:
                self.deliver(partial(_resolve, entered, None))
                async for signal in signals:
                    if process.name in network.reliable or process.rng.random() >= network.lossy:
                        self.deliver(partial(inbox.put_nowait, signal))

        server = network.server.main
        task = server.create_task(serve())
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await entered
            yield _drained(inbox)
        finally:
            server.call_soon(task.cancel)

    def deliver(self, act: Callable[[], object]) -> None:
        """Do something in the process of this handle, when the message has arrived there."""
        seconds = self._network.latency(self._process)
        self._world.later(seconds, partial(self._act, act))

    def _act(self, act: Callable[[], object]) -> None:
        if not self._home.is_closed():
            self._home.call_soon(act)


class PipelinedHandle(Handle):
    """A handle that also is `Pipelined`."""

    @property
    def lanes(self) -> int:
        """How many exchanges may be in flight."""
        assert self._network.lanes is not None
        return self._network.lanes

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """Nothing to prepare."""
        return specs

    def expect(self, job: JobKey) -> AbstractAsyncContextManager[AsyncIterator[JobRecord | None]]:
        """See the contract."""
        return self._subscribed(lambda inner: inner.expect(job))


class _Message:
    """A call on its way to the store, and the reply on its way back."""

    def __init__(
        self,
        handle: Handle,
        name: str,
        args: Any,
        kwargs: Any,
        said: str,
        fault: CallFault | None,
    ) -> None:
        self._handle = handle
        self._name = name
        self._args = args
        self._kwargs = kwargs
        self._said = said
        self._fault = fault
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        self.reply: asyncio.Future[Any] = handle._home.create_future()

    def repeated(self) -> _Message:
        """The same message. Nobody waits for its reply."""
        said = f"{self._said} (repeated)"
        call = (self._name, self._args, self._kwargs)
        return _Message(self._handle, *call, said, None)

    def arrive(self) -> None:
        """The store begins to work on it."""
        if not self._cancelled:
            self._task = self._handle._network.server.main.create_task(self._execute())

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._cancelled = True
        if self._task is not None:
            self._handle._network.server.main.call_soon(self._task.cancel)

    def give_up(self) -> None:
        """The client gets no reply."""
        _fail(self.reply, StoreUnavailable("simulated: no reply"))

    async def _execute(self) -> None:
        handle, fault = self._handle, self._fault
        process, world = handle._process, handle._world
        try:
            inner = await handle.connected()
            result = (
                None
                if self._name == "migrate"
                else await getattr(inner, self._name)(*self._args, **self._kwargs)
            )
        except Exception as error:
            world.tell(process.name, f"{self._said} → {type(error).__name__}: {error}")
            handle.deliver(partial(_fail, self.reply, error))
            return
        world.tell(process.name, f"{self._said} → {shown_reply(self._name, result)}")
        if self._name in ("settle", "extend", "retire"):
            handle._network.exchanged.append(
                Exchanged(process.name, self._name, self._args, self._kwargs, result, world.wall_ms)
            )
        if fault is not None and fault.effect == "lose reply":
            return
        if fault is not None and fault.effect == "fail after":
            lost = StoreUnavailable("simulated: the connection broke")
            world.later(fault.seconds, lambda: handle.deliver(partial(_fail, self.reply, lost)))
        elif fault is not None and fault.effect == "delay reply":
            world.later(
                fault.seconds, lambda: handle.deliver(partial(_resolve, self.reply, result))
            )
        else:
            handle.deliver(partial(_resolve, self.reply, result))


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # mark it as retrieved: the caller may be gone


async def _drained(inbox: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        yield await inbox.get()
