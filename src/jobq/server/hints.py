"""Wake-up hints between servers on one PostgreSQL, through a Valkey or Redis beside it.

PostgreSQL wakes the workers of all servers by NOTIFY, if it can: behind PgBouncer in transaction
mode (`listen=no`) it cannot, and idle workers look once per second. With `redis`, a server that
stores jobs publishes which queues have got work, and the other servers wake workers that sleep
through them.

A hint carries nothing that anybody relies on. If the Valkey server is unavailable, jobs start later
(as without it), a warning is logged once, and `jobq_hints_up` is 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    JobSpec,
    PutResult,
    QueueName,
    Release,
    Settled,
)
from jobq.core.records.queues import Fire
from jobq.core.records.states import State
from jobq.errors import StoreUnavailable
from jobq.stores.base import Store
from jobq.stores.valkey.address import parse
from jobq.stores.valkey.connection import Connection, connect

log = logging.getLogger("jobq.server")

PING_S = 5.0
"""Seconds between pings, by which a connection that died without a sign is noticed."""
_RETRY_S = (0.5, 5.0)
"""Seconds before the first and the last tries to connect again."""
_LEFT_S = 0.5
"""Seconds for which a hint counts that found nobody asleep: a worker may be about to fall asleep,
after a claim that came too early."""
MAX_JOBS = 1_000
"""Jobs of one queue that a hint announces at most. More workers find them as they claim."""
_MAX_QUEUES = 1_000
"""Queues of one hint."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[QueueName, int]]]).decode


class Hints:
    """Tells other servers of new work, and wakes workers of this one.

    `channel` is the same for all servers on one store, and different for another store.
    """

    def __init__(self, url: str, channel: str, *, at_most: int = MAX_JOBS) -> None:
        """`at_most`: workers that one hint wakes in a queue. 1 is enough if the store wakes them
        as well."""
        self.up = False
        """Whether the Valkey server responds."""
        self.sent = self.heard = 0
        """Hints that were published, and hints of other servers."""
        self._address = parse(url)
        self._channel = channel
        self._at_most = at_most
        self._name = secrets.token_hex(8)
        self._sleeping: dict[QueueName, dict[asyncio.Event, int]] = {}
        self._left: dict[QueueName, tuple[int, float]] = {}
        """Jobs for which nobody slept, and until when a worker that falls asleep looks for them."""
        self._unsent: dict[QueueName, int] = {}
        self._has_unsent = asyncio.Event()
        self._lost = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._warned = False

    # ── sleeping workers of this server ───────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def wakes(self, queues: Sequence[QueueName], slots: int) -> Iterator[asyncio.Event]:
        """An event that is set if another server has work for these queues."""
        bell = asyncio.Event()
        for queue in queues:
            self._sleeping.setdefault(queue, {})[bell] = max(1, slots)
            jobs, until = self._left.pop(queue, (0, 0.0))
            if jobs and time.monotonic() < until:
                self._wake(queue, jobs, until)
        try:
            yield bell
        finally:
            for queue in queues:
                asleep = self._sleeping.get(queue)
                if asleep is not None:
                    asleep.pop(bell, None)
                    if not asleep:
                        del self._sleeping[queue]

    def _wake(self, queue: QueueName, jobs: int, until: float) -> None:
        """Wake workers with this many free slots. Those that fell asleep last come first."""
        for bell, slots in reversed(self._sleeping.get(queue, {}).items()):
            if jobs <= 0:
                return
            if not bell.is_set():
                bell.set()
                jobs -= slots
        if jobs > 0 and len(self._left) < _MAX_QUEUES:
            self._left[queue] = jobs, until

    # ── telling and hearing ───────────────────────────────────────────────────────────────────────

    def tell(self, work: Mapping[QueueName, int]) -> None:
        """Publish that these queues have got so many jobs. Never waits and never raises."""
        if not self.up:
            return
        for queue, jobs in work.items():
            if queue in self._unsent or len(self._unsent) < _MAX_QUEUES:
                self._unsent[queue] = min(MAX_JOBS, self._unsent.get(queue, 0) + jobs)
        if self._unsent:
            self._has_unsent.set()

    def start(self) -> None:
        """Connect, and stay connected. Returns at once."""
        self._tasks = [asyncio.create_task(self._run(), name="jobq hints")]

    async def aclose(self) -> None:
        """Disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.up = False

    def around(self, store: Store) -> Store:
        """The store of this server, with hints to and from other servers."""
        return cast(Store, _HintedStore(store, self))

    async def check(self) -> str:
        """Ask the Valkey server whether it is there. Returns what it is."""
        connection = await connect(self._address.nodes[0], self._address)
        try:
            await connection.ask("PING")
        finally:
            connection.close()
        return f"{self._address.shown} responds; the channel is {self._channel}"

    async def _run(self) -> None:
        first, last = _RETRY_S
        rest = first
        while True:
            try:
                await self._connected()
                rest = first
            except Exception as error:  # whatever it is, the server goes on without hints
                self._down(error)
            await asyncio.sleep(rest)
            rest = min(last, 2 * rest)

    async def _connected(self) -> None:
        """Publish and listen until a connection is lost."""
        node = self._address.nodes[0]
        listening = publishing = None
        try:
            listening = await connect(node, self._address)
            publishing = await connect(node, self._address)
            self._lost.clear()
            listening.on_message = publishing.on_message = self._received
            await listening.ask("SUBSCRIBE", self._channel)
            self._up()
            await self._publish(publishing, listening)
        finally:
            for connection in (listening, publishing):
                if connection is not None:
                    connection.close()

    async def _publish(self, publishing: Connection, listening: Connection) -> None:
        """Send hints as they come: those of one moment together, one command at a time."""
        while True:
            has_unsent = asyncio.ensure_future(self._has_unsent.wait())
            lost = asyncio.ensure_future(self._lost.wait())
            try:
                done, _ = await asyncio.wait(
                    {has_unsent, lost}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                has_unsent.cancel()
                lost.cancel()
            if lost in done:
                raise StoreUnavailable("the connection was lost")
            if has_unsent in done:
                self._has_unsent.clear()
                work, self._unsent = self._unsent, {}
                message = _encode((self._name, list(work.items())))
                await publishing.ask("PUBLISH", self._channel, message)
                self.sent += 1
            else:
                await publishing.ask("PING")
                await listening.ask("PING")

    def _received(self, message: list[Any]) -> None:
        if message[0] == b"closed":
            self._lost.set()
            return
        try:
            name, work = _decode(message[2])
        except msgspec.MsgspecError:
            return  # somebody else's message
        if name != self._name:
            self.heard += 1
            until = time.monotonic() + _LEFT_S
            for queue, jobs in work:
                self._wake(queue, min(jobs, self._at_most), until)

    def _up(self) -> None:
        if self._warned:
            log.info("hints of other servers arrive again (%s)", self._address.shown)
        self.up, self._warned = True, False

    def _down(self, error: Exception) -> None:
        self.up = False
        self._unsent.clear()
        self._has_unsent.clear()
        if not self._warned:
            self._warned = True
            log.warning(
                "no hints of other servers: %s is unavailable, so jobs may start later: %s",
                self._address.shown,
                error,
            )


class _HintedStore:
    """The store of a server, with hints to and from other servers."""

    def __init__(self, store: Store, hints: Hints) -> None:
        self._store = store
        self._hints = hints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore."""
        results = await self._store.put(specs, flow=flow, last=last)
        self._tell(
            spec.queue
            for spec, result in zip(specs, results, strict=True)
            if result.state is State.WAITING and not result.duplicate
        )
        return results

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """See HotStore."""
        settled = await self._store.settle(outcomes, worker=worker, call=call, then=then)
        self._tell(each.queue for each in outcomes if isinstance(each, Release))
        return settled

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """See OperatorStore."""
        altered = await self._store.alter(commands)
        self._tell(
            command.job.queue
            for command, done in zip(commands, altered, strict=True)
            if done == "done"
        )
        return altered

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """See ScheduleStore."""
        fired = await self._store.fire(fires)
        self._tell(fire.queue for fire, done in zip(fires, fired, strict=True) if done)
        return fired

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """See OperatorStore."""
        await self._store.resume(queue, actor=actor)
        self._tell([queue])

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """See SignalStore."""
        with self._hints.wakes(queues, slots) as bell:
            sleeping = asyncio.ensure_future(
                self._store.sleep(queues, worker=worker, slots=slots, timeout_ms=timeout_ms)
            )
            rung = asyncio.ensure_future(bell.wait())
            try:
                await asyncio.wait({sleeping, rung}, return_when=asyncio.FIRST_COMPLETED)
                return sleeping.result() if sleeping.done() else True
            finally:
                rung.cancel()
                sleeping.cancel()

    def _tell(self, queues: Iterator[QueueName] | Sequence[QueueName]) -> None:
        work: dict[QueueName, int] = {}
        for queue in queues:
            work[queue] = work.get(queue, 0) + 1
        if work:
            self._hints.tell(work)
