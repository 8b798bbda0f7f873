"""`Worker`: runs the jobs of queues. `await Worker(queue).run()`, or `async with Worker(queue):` to
work in the background."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self, cast

from msgspec.structs import replace

from jobq.api.queue import Queue
from jobq.api.stopped import Stopped, stopped
from jobq.core.checks import Seconds, check_id, check_int, shown, to_ms
from jobq.core.deprecated import renamed_arguments
from jobq.core.pace import Pace
from jobq.core.queues import QueueConfig
from jobq.core.records import QueueName
from jobq.core.workers import WorkerRequest
from jobq.engine.clock import wall_clock
from jobq.engine.handler import Handler, Source
from jobq.engine.identity import Identity, take_name
from jobq.engine.last_chance import LastChance
from jobq.engine.pulse import ttl_ms
from jobq.engine.runner import Executors
from jobq.engine.scheduler import put_planned
from jobq.engine.service import Outage
from jobq.engine.settings import WorkerSettings
from jobq.engine.signal_handlers import signals_caught
from jobq.engine.slots import Slots
from jobq.engine.station import Station
from jobq.errors import ConfigError, StoreUnavailable
from jobq.executors import check_executor
from jobq.stores.base import Store

log = logging.getLogger("jobq")

_REQUESTS: dict[WorkerRequest, str] = {
    "drain": "finish what it runs and claim nothing more",
    "resume": "claim jobs again",
    "shutdown": "finish what it runs and stop",
    "shutdown-now": "release what it runs and stop",
}

Places = list[tuple[Store, Source, Mapping[QueueName, Mapping[str, Handler]]]]
"""Stores, each with a queue that opened it, and with its queues and their tasks."""


class Patience(Outage):
    """How long to wait for a store at the start, and how often to try."""

    def __init__(self, what: str, seconds: float | None) -> None:
        super().__init__(what, base=0.1, cap=2.0)
        self._until = None if seconds is None else time.monotonic() + seconds

    def failed(self, error: BaseException) -> float:
        """Seconds until the next try; the error itself if there is no time for one."""
        if self._until is None:
            return super().failed(error)
        left = self._until - time.monotonic()
        if left <= 0:
            raise error
        return min(left, super().failed(error))


class Worker:
    """Runs at most `concurrency` jobs of these queues at a time, claiming each only when it can
    start.

    `lease`: a job whose worker died is run by another after so long. `drain`: how long a stopping
    worker lets jobs end before it hands them back. `last_chance`: a job whose next stall would fail
    it runs alone, and the worker claims nothing until that job ends, but no longer than this.
    `name` must be unique among the workers of a store; by default it is made up. Queues may be in
    different stores.
    """

    _ends_process = False
    """Set by jq-worker: the process ends with this worker, so signals that arrive after the stop
    are ignored."""

    def __init__(
        self,
        *queues: Queue | Source,
        concurrency: int = 100,
        lease: Seconds = 15,
        drain: Seconds = 30,
        last_chance: Seconds = 60,
        name: str | None = None,
    ) -> None:
        if not queues:
            raise ConfigError("Worker() has no queue to work on: Worker(queue, …)")
        sources: list[Source] = [
            cast("Source", getattr(queue, "_context", queue)) for queue in queues
        ]
        for queue, source in zip(queues, sources, strict=True):
            if not isinstance(getattr(source, "qname", None), QueueName):
                raise ConfigError(
                    f"Worker({shown(queue)}): give it Queue objects, as in Worker(Queue('emails'))"
                )
        self.settings = WorkerSettings(
            concurrency=check_int(
                concurrency, "concurrency", low=1, high=100_000, error=ConfigError
            ),
            lease_ms=to_ms(lease, "lease", positive=True, error=ConfigError),
            drain_ms=to_ms(drain, "drain", error=ConfigError),
            last_chance_ms=to_ms(last_chance, "last_chance", error=ConfigError),
        )
        self.name = (
            f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
            if name is None
            else check_id(name, "name")
        )
        self._queues = sources
        self._stations: list[Station] = []
        self._executors = Executors()
        self._identity = Identity(self.name)
        self._named: list[Store] = []  # where the name is taken
        self._paused = self._draining = False
        self._hurry: asyncio.Event | None = None
        self._ending: asyncio.Task[Stopped] | None = None
        self._done: asyncio.Event | None = None
        self._opened = AsyncExitStack()  # its hold on the queues' stores
        self._signalled = False
        self._serving = False  # run() waits for the end

    def __repr__(self) -> str:
        return f"<Worker {self.name} on {', '.join(queue.qname.queue for queue in self._queues)}>"

    # ── working ──

    @renamed_arguments(wait="store_timeout")
    async def run(self, *, store_timeout: Seconds | None = None) -> None:
        """Work until `stop()`, SIGTERM or SIGINT. A second signal releases running jobs at once.

        A handler that raises KeyboardInterrupt counts as a signal, and its job is released.

        If a store is unavailable at the start, the worker logs a warning and waits for it: without
        limit, or for `store_timeout` and then raises StoreUnavailable. (`async with` does not
        wait.)
        """
        timeout_s = (
            None
            if store_timeout is None
            else to_ms(store_timeout, "store_timeout", error=ConfigError) / 1000
        )
        self._serving = True
        with signals_caught(self._on_signal, last=self._ends_process):
            try:
                await self._start(
                    patience=Patience(f"worker {self.name} waits for its store", timeout_s)
                )
                assert self._done is not None
                await self._done.wait()
            except asyncio.CancelledError:  # whoever ran it has no time: hand back, then go
                await asyncio.shield(self.stop(drain=0))
                raise

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop(drain=None if t is None else 0)

    async def stop(self, *, drain: Seconds | None = None) -> Stopped:
        """Claim nothing more, let jobs end for `drain` (default: the worker's), hand back the rest
        at no cost to them.

        Returns what became of the jobs that it held. Called again, a `drain` of 0 ends the waiting
        of the first call."""
        if self._done is None or self._hurry is None:
            return Stopped()
        drain_s = (
            self.settings.drain_ms if drain is None else to_ms(drain, "drain", error=ConfigError)
        ) / 1000
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(
                self._end(drain_s), name="jobq stop"
            )
        elif drain_s == 0:
            self._hurry.set()
        return await asyncio.shield(self._ending)

    def pause(self) -> None:
        """Claim nothing more until resume(); what runs goes on."""
        self._paused = True
        self._hold()

    def resume(self) -> None:
        """Claim again."""
        self._paused = False
        self._hold()

    def _hold(self) -> None:
        for station in self._stations:
            station.hold(paused=self._paused, draining=self._draining)

    # ── starting ──

    async def _start(self, patience: Patience | None = None) -> None:
        if self._done is not None:
            raise ConfigError(
                f"worker {self.name} was started before: a Worker works once, make another"
            )
        self._done = asyncio.Event()
        self._hurry = asyncio.Event()
        try:
            places = await self._open() if patience is None else await self._await_stores(patience)
        except BaseException:
            if self._ending is not None:
                await self._ending
            self._done = self._hurry = None
            await self._sign_off()
            await self._opened.aclose()
            raise
        if self._ending is not None:  # it was stopped while it waited
            await self._sign_off()
            await self._ending
            await self._opened.aclose()
            return
        slots = Slots(self.settings.concurrency)
        chance = LastChance(slots, self.settings)
        self._stations = [
            Station(
                store,
                tasks,
                open=source.another_handle,
                identity=self._identity,
                slots=slots,
                executors=self._executors,
                settings=self.settings,
                chance=chance,
                on_request=self._requested,
                displaced=self._displaced,
                interrupted=self._interrupted,
                clock=self._queues[0].clock,
            )
            for store, source, tasks in places
        ]
        self._hold()
        for station in self._stations:
            station.start()
        for store, _, tasks in places:
            log.info(
                "worker %s works on %s in %s",
                self.name,
                ", ".join(name.queue for name in tasks),
                store.url,
            )

    async def _await_stores(self, patience: Patience) -> Places:
        """The stores, when they have answered; none if the worker is stopped before."""
        assert self._done is not None
        while self._ending is None:
            try:
                places = await self._open()
            except StoreUnavailable as error:
                await self._opened.aclose()
                pause = patience.failed(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), pause)
            else:
                patience.over()
                return places
        return []

    async def _open(self) -> Places:
        """The stores, each with its queues and their tasks. ConfigError if a queue is stored
        otherwise than declared."""
        places: list[tuple[Store, Source, dict[QueueName, Mapping[str, Handler]]]] = []
        for queue in self._queues:
            _check_tasks(queue)
            store = await self._opened.enter_async_context(queue.opened())
            # Also where nothing is declared: a task that is back at the default must not keep the
            # limit it had.
            declared = queue.config or QueueConfig()
            of_tasks = {task.name: task.max_stalls for task in queue.tasks.values()}
            await store.declare(queue.qname, replace(declared, max_stalls=of_tasks))
            await put_planned(store, queue.planned.values(), (queue.clock or wall_clock)())
            tasks = next((tasks for known, _, tasks in places if known is store), None)
            if tasks is None:
                tasks = {}
                places.append((store, queue, tasks))
            # Two Queue objects may speak of one queue, each with tasks of its own.
            known = tasks.get(queue.qname)
            tasks[queue.qname] = queue.tasks if known is None else _Either(known, queue.tasks)
        self._named.clear()  # of an earlier try
        for store, _, tasks in places:
            record = self._identity.record(
                tuple(tasks), self.settings.concurrency, paused=self._paused
            )
            await take_name(store, record, ttl_ms=ttl_ms(self.settings, Pace()))
            self._named.append(store)
        return list(places)

    async def _sign_off(self) -> None:
        """The worker did not start after all: its name is free again wherever it was taken."""
        for store in self._named:
            with suppress(Exception):  # a store that does not answer forgets the name by itself
                async with asyncio.timeout(self._grace_s):
                    await store.retire(self.name, incarnation=self._identity.incarnation)

    # ── stopping ──

    async def _end(self, drain_s: float) -> Stopped:
        assert self._done is not None
        try:
            await self._drain(drain_s)
            await asyncio.gather(
                *(station.release_running(self._grace_s) for station in self._stations)
            )
            await asyncio.gather(*(station.close() for station in self._stations))
            for executor in self._executors.values():
                await executor.aclose()
            return stopped(station.settled_since_stop for station in self._stations)
        finally:
            await self._opened.aclose()
            log.info("worker %s has stopped", self.name)
            self._done.set()

    async def _drain(self, drain_s: float) -> None:
        """Until all is settled, the time is over, or somebody is in a hurry."""
        assert self._hurry is not None
        fetching = [station.drain() for station in self._stations]
        hurry = asyncio.ensure_future(self._hurry.wait())
        settled = asyncio.ensure_future(_all(fetching))
        try:
            await asyncio.wait(
                [settled, hurry], timeout=drain_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            hurry.cancel()
            settled.cancel()

    @property
    def _grace_s(self) -> float:
        """How long a run that is handed back may clean up."""
        return min(1.0, self.settings.grace_ms / 1000)

    def _requested(self, request: WorkerRequest) -> None:
        log.info("worker %s was asked to %s", self.name, _REQUESTS[request])
        if request in ("drain", "resume"):
            self._draining = request == "drain"
            self._hold()
        else:
            self._stop_soon(drain=None if request == "shutdown" else 0)

    def _displaced(self) -> None:
        """Another worker took the name while this one was silent."""
        if self._ending is None:
            log.error(
                "worker %s stops: another worker has taken its name while it was silent", self.name
            )
            self._stop_soon(drain=None)

    def _stop_soon(self, drain: Seconds | None) -> None:
        task = asyncio.get_running_loop().create_task(self.stop(drain=drain))
        self._stopping = task  # held, or it might be collected under way

    # ── signals ──

    def _on_signal(self, number: signal.Signals) -> None:
        again = (
            self._signalled or self._ending is not None
        )  # two may come before the first has begun to stop anything
        self._signalled = True
        if again:
            log.info("worker %s: %s, releasing running jobs", self.name, number.name)
        else:
            most = self.settings.drain_ms / 1000
            told = "worker %s: %s, finishing running jobs (up to %g s); send it again to release them now"
            log.info(told, self.name, number.name, most)
        self._stop_soon(drain=0 if again else None)

    def _interrupted(self) -> None:
        """A handler raised KeyboardInterrupt. Its job is released, and the worker stops as on a
        signal."""
        for station in self._stations:
            station.drain()  # now, or the next exchange would claim the released job again
        if self._signalled or self._ending is not None:
            return
        self._on_signal(signal.SIGINT)
        if (
            not self._serving
        ):  # it works beside the program's own code, which must hear of the interrupt too
            self._stopping.add_done_callback(_interrupt)


def _interrupt(_: asyncio.Task[Stopped]) -> None:
    raise KeyboardInterrupt


def _check_tasks(queue: Source) -> None:
    """A worker that cannot run a task would use up the retries of its jobs: it had better not
    start."""
    for task in queue.tasks.values():
        try:
            check_executor(task.executor)
        except ConfigError as error:
            raise ConfigError(f"task {task.name} of queue {queue.qname.queue}: {error}") from None


class _Either(Mapping[str, Handler]):
    """Two live mappings as one; the first wins."""

    def __init__(self, first: Mapping[str, Handler], second: Mapping[str, Handler]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> Handler:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._first, **self._second})

    def __len__(self) -> int:
        return len({*self._first, *self._second})


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
