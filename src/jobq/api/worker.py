"""Worker: runs the jobs of queues.

`await Worker(queue).run()` works until it is stopped; `async with Worker(queue):` works in the
background.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import NamedTuple, Protocol, Self, cast

import msgspec
from msgspec.structs import replace

from jobq.api.current import CurrentJob
from jobq.api.info import JobRef
from jobq.api.middleware import Middleware, WorkerMiddleware, check_middleware
from jobq.api.queue import Queue
from jobq.api.tasks import MergedTasks
from jobq.api.worker_settings import (
    Callbacks,
    MissedTime,
    QueueOrder,
    WorkerExecutors,
    executor_settings,
)
from jobq.core.records.jobs import Complete, Fail, QueueName, Release, RetryLater
from jobq.core.records.queues import QueueConfig
from jobq.core.records.workers import MAX_CONCURRENCY, WorkerRequest, asked_concurrency
from jobq.core.rules.fleet import Pace
from jobq.core.values.checks import Seconds, check_id, check_int, shown, to_ms
from jobq.engine.handler import Handler, Source
from jobq.engine.identity import Identity, WorkerSettings, default_name, take_name
from jobq.engine.interrupts import signals_caught
from jobq.engine.last_chance import LastChance
from jobq.engine.pulse import ttl_ms
from jobq.engine.run import Run
from jobq.engine.scheduler import put_planned
from jobq.engine.service import Farewell, Outage, wall_clock
from jobq.engine.slots import Slots
from jobq.engine.station import Station
from jobq.errors import ConfigError, StoreUnavailable
from jobq.executors.lifespan import Lifespan, LifespanFunction, check_lifespan
from jobq.operations.workers import ORDERS
from jobq.stores.base import Store

# Stopped: what `Worker.stop()` returns.


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the jobs that a worker was running when it was asked to stop."""

    completed: tuple[JobRef, ...] = ()
    failed: tuple[JobRef, ...] = ()  # for good, or to be retried
    # Unfinished. Another worker runs them, and this does not count as a failure.
    released: tuple[JobRef, ...] = ()
    # The store was unavailable. Another worker runs them when their leases have expired.
    left: tuple[JobRef, ...] = ()


_KINDS: dict[type, str] = {
    Complete: "completed",
    Fail: "failed",
    RetryLater: "failed",
    Release: "released",
}


def stopped(parting: Iterable[tuple[Sequence[Run], Iterable[Run]]]) -> Stopped:
    """Sum up, for each store, the runs it settled since the stop began and the runs it did not."""
    found: dict[str, list[JobRef]] = {"completed": [], "failed": [], "released": [], "left": []}
    for settled, left in parting:
        for run in settled:
            # A run that the store refused has no outcome. One that snoozed or waits is not counted.
            if (kind := _KINDS.get(type(run.outcome))) is not None:
                found[kind].append(_job(run))
        found["left"] += [_job(run) for run in left]
    return Stopped(**{kind: tuple(jobs) for kind, jobs in found.items()})


def _job(run: Run) -> JobRef:
    return JobRef(queue=run.lease.queue.queue, id=run.lease.id)


# How long a starting worker waits for a store that is unavailable.


class StorePatience(Outage):
    """When to try the store again, and when to give up. `seconds` None: never give up."""

    def __init__(self, what: str, seconds: float | None) -> None:
        # First retry after 0.1 s, later ones at most 2 s apart: a store that restarts is back soon.
        super().__init__(what, base=0.1, cap=2.0)
        self._until = None if seconds is None else time.monotonic() + seconds

    def failed(self, error: BaseException) -> float:
        """Seconds until the next try. Raises the error if the time is over."""
        if self._until is None:
            return super().failed(error)
        left = self._until - time.monotonic()
        if left <= 0:
            raise error
        return min(left, super().failed(error))


# What a worker tells the supervisor of its process.


class Supervision(Protocol):
    """Called in the worker's event loop."""

    def up(self) -> None:
        """The stores are open and the worker claims jobs."""

    def settled(self, jobs: int) -> None:
        """The outcomes of this many jobs are stored."""

    def shut_down(self) -> None:
        """An operator has asked the worker to stop."""


# The stores of a worker: opens them, declares their queues and takes the worker's name in each.


class OpenedStore(NamedTuple):
    """A store handle, the queue that opened it, and the tasks of all its queues."""

    store: Store
    source: Source
    tasks: dict[QueueName, Mapping[str, Handler]]


class WorkerStores:
    """Keeps the store handles of these queues open until `aclose`."""

    def __init__(self, queues: Sequence[Source], identity: Identity) -> None:
        self._queues = queues
        self._identity = identity
        self._handles = AsyncExitStack()
        self._named: list[Store] = []  # the worker's name is taken there

    async def open(self, settings: WorkerSettings, *, paused: bool) -> list[OpenedStore]:
        """Open the stores, declare the queues and take the worker's name. ConfigError if a queue's
        stored declaration conflicts."""
        opened: list[OpenedStore] = []
        for queue in self._queues:
            store = await self._handles.enter_async_context(queue.opened())
            # Declare max_stalls even if the queue declares nothing: a task that has gone back to
            # the default must not keep its old number.
            declared = queue.config or QueueConfig()
            of_tasks = {task.name: task.max_stalls for task in queue.tasks.values()}
            await store.declare(queue.qname, replace(declared, max_stalls=of_tasks))
            await put_planned(store, await queue.plans(), (queue.clock or wall_clock)())
            tasks = next((each.tasks for each in opened if each.store is store), None)
            if tasks is None:
                tasks = {}
                opened.append(OpenedStore(store, queue, tasks))
            # Two Queue objects may stand for one queue, each with its own tasks.
            known = tasks.get(queue.qname)
            tasks[queue.qname] = queue.tasks if known is None else MergedTasks(known, queue.tasks)
        self._named.clear()  # from an earlier attempt
        for store, _, tasks in opened:
            record = self._identity.record(tuple(tasks), settings.concurrency, paused=paused)
            await take_name(store, record, ttl_ms=ttl_ms(settings, Pace()))
            self._named.append(store)
        return opened

    async def sign_off(self, timeout_s: float) -> None:
        """Free the worker's name in all stores, because the worker did not start."""
        for store in self._named:
            with suppress(Exception):  # the name also expires by itself
                async with asyncio.timeout(timeout_s):
                    await store.retire(self._identity.name, incarnation=self._identity.incarnation)

    async def aclose(self) -> None:
        """Close the handles. They can be opened again."""
        await self._handles.aclose()


# What a running worker is told to do: by signals, its supervisor, operators, and its own failures.
#
# Almost all of it ends with a stop. The worker knows how to stop; this knows when, and how soon.

log = logging.getLogger("jobq")


class Orders:
    """The orders to one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._signalled = False
        self._by_supervisor = False  # the supervisor has ordered the stop
        self.serving = False
        """Whether the program does nothing but wait for the worker (`Worker.run`)."""

    # ── from outside ──

    def signalled(self, number: signal.Signals) -> None:
        """A signal: finish running jobs and stop. The second one releases them."""
        worker = self._worker
        # A second signal may come before the first one's stop has begun.
        again = self._signalled or (worker._ending is not None and not self._by_supervisor)
        self._signalled = True
        if again:
            log.info("worker %s: %s, releasing running jobs", worker.name, number.name)
        else:
            log.info(
                "worker %s: %s, finishing running jobs (up to %g s); "
                "send it again to release them now",
                worker.name,
                number.name,
                worker.settings.drain_ms / 1000,
            )
        self._stop_soon(drain=0 if again else None)

    def supervised(self, *, release: bool) -> None:
        """Stop as the supervisor says. Repeating an order changes nothing.

        A service manager may also send its SIGTERM to every process. The first signal is then not
        the second one after the order, so it must not release the jobs.
        """
        self._by_supervisor = True
        self._stop_soon(drain=0 if release else None)

    def requested(self, request: WorkerRequest) -> None:
        """An operator's request, as of `jq-ctl worker drain`."""
        worker = self._worker
        if (concurrency := asked_concurrency(request)) is not None:
            worker.concurrency = concurrency
            log.info("worker %s was asked to run up to %d jobs at once", worker.name, concurrency)
            return
        if request not in ORDERS:  # of a newer jq-ctl
            log.warning("worker %s ignores the unknown request %s", worker.name, shown(request))
            return
        log.info("worker %s was asked to %s", worker.name, ORDERS[request])
        if request in ("drain", "resume"):
            worker._set_draining(request == "drain")
        else:
            if worker._supervision is not None:
                worker._supervision.shut_down()
            self._stop_soon(drain=None if request == "shutdown" else 0)

    # ── from the worker itself ──

    def interrupted(self) -> None:
        """Stop as on a signal, because a handler raised KeyboardInterrupt. Its job is released."""
        worker = self._worker
        for station in worker._stations:
            station.drain()  # at once, or the next exchange would claim the released job
        if self._signalled or worker._ending is not None:
            return
        self.signalled(signal.SIGINT)
        if not self.serving:  # the program runs its own code beside the worker: interrupt that too
            self._stopping.add_done_callback(_interrupt)

    def failed(self) -> None:
        """Release running jobs and stop, because a loop of the worker has failed."""
        self._stop_soon(drain=0)

    def lifespan_broke(self) -> None:
        """The same, because the lifespan ended by itself."""
        log.critical("worker %s stops: its lifespan ended by itself", self._worker.name)
        self.failed()

    def displaced(self) -> None:
        """Stop, because another worker took this worker's name while it sent no heartbeats."""
        if self._worker._ending is None:
            log.error(
                "worker %s stops: another worker took its name while it sent no heartbeats",
                self._worker.name,
            )
            self._stop_soon(drain=None)

    def _stop_soon(self, drain: Seconds | None) -> None:
        task = asyncio.get_running_loop().create_task(self._worker.stop(drain=drain))
        self._stopping = task  # keep a reference, or the task might be garbage-collected


def _interrupt(_: asyncio.Task[Stopped]) -> None:
    raise KeyboardInterrupt


_CLOSE_S = 1.0
"""Seconds that closing the handles of a stopped worker may take. It goes on in the background."""


class Worker:
    """Runs up to `concurrency` jobs of these queues at once. It claims a job only when it can start
    it.

    `lease`: how long until another worker may take over a dead worker's jobs. `drain`: how long a
    stopping worker lets jobs finish before it releases them. `last_chance`: a job whose next stall
    would fail it runs alone; the worker claims no other job until it ends, but for no longer than
    this. `grace`: how long a run may take to stop when it is asked to, before it is settled
    without it; a task may have its own.

    `pool`: how many child processes run the tasks with executor="process" (default: one per core).
    A child is replaced after `pool_max_jobs` jobs, or when it uses more than `pool_max_memory`
    (bytes, or "512M").

    `name` must be unique among the workers of a store; by default it is made of the host
    name, the process id and a random part. Queues may be in different stores.

    Queues take turns: each is the first that gets free slots equally often. With `weights`, such as
    `{"billing": 3}`, that one is first three times as often as others. With `strict`, a queue gets
    a slot only if no job of the queues before it can start.

    `middleware` is called around each run, outside of the queues' own. `lifespan` is a function
    that returns a context manager, async or plain, which is open while the worker works; handlers
    get its value from `current_job().lifespan(…)`. Each child process has its own.

    These are called in the worker's event loop, and may be async: `on_stall` with a running job
    whose lease this worker has lost, `on_idle` when the worker has nothing to do, `on_error` with
    the first error of an outage: a store is unavailable, or a loop of the worker fails, and
    `on_missed` with a time that a schedule has skipped, in the worker that fires schedules. Their
    own errors are logged.
    """

    _ends_process = False
    """jq-worker sets this: its process ends with the worker, so it ignores signals after the
    stop."""
    _supervision: Supervision | None = None
    """jq-worker sets this in a process that has a supervisor."""

    def __init__(
        self,
        *queues: Queue | Source,
        concurrency: int = 100,
        lease: Seconds = 15,
        drain: Seconds = 30,
        last_chance: Seconds = 60,
        grace: Seconds = 5,
        pool: int | None = None,
        pool_max_jobs: int | None = None,
        pool_max_memory: int | str | None = None,
        name: str | None = None,
        strict: bool = False,
        weights: Mapping[str, int] | None = None,
        middleware: Iterable[Middleware] | None = None,
        lifespan: LifespanFunction | None = None,
        on_stall: Callable[[CurrentJob], object] | None = None,
        on_idle: Callable[[], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        on_missed: Callable[[MissedTime], object] | None = None,
    ) -> None:
        if not queues:
            raise ConfigError("Worker() has no queue: give at least one, Worker(queue)")
        sources = [cast("Source", getattr(queue, "_context", queue)) for queue in queues]
        for queue, source in zip(queues, sources, strict=True):
            if not isinstance(getattr(source, "qname", None), QueueName):
                raise ConfigError(
                    f"Worker({shown(queue)}): give it Queue objects, as in Worker(Queue('emails'))"
                )
        self.settings = WorkerSettings(
            concurrency=_checked_concurrency(concurrency),
            lease_ms=to_ms(lease, "lease", positive=True, error=ConfigError),
            drain_ms=to_ms(drain, "drain", error=ConfigError),
            last_chance_ms=to_ms(last_chance, "last_chance", error=ConfigError),
            grace_ms=to_ms(grace, "grace", error=ConfigError),
        )
        self.name = default_name() if name is None else check_id(name, "name")
        self._queues = sources
        self._middleware = WorkerMiddleware(check_middleware(middleware, "middleware"))
        self._lifespan_function = check_lifespan(lifespan)
        self._lifespan: Lifespan | None = None
        self._order = QueueOrder(
            [source.qname for source in sources], strict=strict, weights=weights
        )
        self._callbacks = Callbacks(
            on_stall=on_stall, on_idle=on_idle, on_error=on_error, on_missed=on_missed
        )
        self._stations: list[Station] = []
        self._slots: Slots | None = None  # once it is started
        self._executors = WorkerExecutors(
            sources, executor_settings(pool, pool_max_jobs, pool_max_memory), lifespan
        )
        self._identity = Identity(self.name)
        self._paused = self._draining = False
        self._release_now: asyncio.Event | None = None
        self._ending: asyncio.Task[Stopped] | None = None
        self._done: asyncio.Event | None = None
        self._stores = WorkerStores(sources, self._identity)
        self._orders = Orders(self)

    def __repr__(self) -> str:
        return f"<Worker {self.name} on {', '.join(queue.qname.queue for queue in self._queues)}>"

    # ── working ──

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
        self._orders.serving = True
        with signals_caught(self._orders.signalled, last=self._ends_process):
            try:
                with self._callbacks.reporting_errors():
                    await self._start(
                        patience=StorePatience(f"worker {self.name} waits for its store", timeout_s)
                    )
                assert self._done is not None
                await self._done.wait()
            except asyncio.CancelledError:  # release running jobs at once
                await asyncio.shield(self.stop(drain=0))
                raise

    async def __aenter__(self) -> Self:
        with self._callbacks.reporting_errors():
            await self._start()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop(drain=None if t is None else 0)

    async def stop(self, *, drain: Seconds | None = None) -> Stopped:
        """Claim no more jobs, let running ones finish for `drain` (default: the worker's setting),
        and release the rest. A release does not count as a failure of the job.

        Returns what happened to the jobs. If the worker is already stopping, `drain=0` makes it
        release running jobs now."""
        if self._done is None or self._release_now is None:
            return Stopped()
        drain_s = (
            self.settings.drain_ms if drain is None else to_ms(drain, "drain", error=ConfigError)
        ) / 1000
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(
                self._end(drain_s), name="jobq stop"
            )
        elif drain_s == 0:
            self._release_now.set()
        return await asyncio.shield(self._ending)

    def pause(self) -> None:
        """Claim no more jobs until `resume()`. Running jobs continue."""
        self._paused = True
        self._hold()

    def resume(self) -> None:
        """Claim jobs again."""
        self._paused = False
        self._hold()

    @property
    def running(self) -> bool:
        """Whether the worker has started and has not stopped yet.

        False while `run()` waits for an unavailable store."""
        return bool(self._stations) and self._done is not None and not self._done.is_set()

    @property
    def paused(self) -> bool:
        """Whether the worker claims no jobs because of `pause()` or `jq-ctl worker drain`."""
        return self._paused or self._draining

    @property
    def concurrency(self) -> int:
        """How many jobs the worker runs at once, at most.

        It can be changed at any time, in the worker's event loop. Jobs that run already continue:
        after a lower number is set, the worker claims nothing until fewer jobs run."""
        return self.settings.concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        self._set_concurrency(_checked_concurrency(concurrency))
        if self._slots is not None:
            self._slots.resize(self.settings.concurrency)

    def _set_concurrency(self, concurrency: int) -> None:
        """Claim no more jobs than can start."""
        self.settings = dataclasses.replace(
            self.settings, concurrency=self._executors.startable(concurrency)
        )

    def _set_draining(self, draining: bool) -> None:
        self._draining = draining
        self._hold()

    def _hold(self) -> None:
        for station in self._stations:
            station.hold(paused=self._paused, draining=self._draining)

    # ── starting ──

    async def _start(self, patience: StorePatience | None = None) -> None:
        if self._done is not None:
            raise ConfigError(
                f"worker {self.name} was already started: a Worker runs once, make a new one"
            )
        self._done = asyncio.Event()
        self._release_now = asyncio.Event()
        self._lifespan = Lifespan(self._lifespan_function, self, self._orders.lifespan_broke)
        try:
            self._executors.check()
            state = await self._lifespan.start()
            opened = await self._open() if patience is None else await self._await_stores(patience)
            await self._executors.start(lambda: self._ending is not None)
        except BaseException:
            await self._executors.aclose()
            await self._lifespan.stop()
            if self._ending is not None:
                await self._ending
            self._done = self._release_now = None
            await self._stores.sign_off(self._grace_s)
            await self._stores.aclose()
            raise
        if self._ending is not None:  # it was stopped while it waited for a store
            await self._executors.aclose()
            await self._stores.sign_off(self._grace_s)
            await self._ending
            await self._stores.aclose()
            return
        self._set_concurrency(self.settings.concurrency)
        slots = self._slots = Slots(self.settings.concurrency)
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
                on_request=self._orders.requested,
                failed=self._orders.failed,
                displaced=self._orders.displaced,
                interrupted=self._orders.interrupted,
                on_settled=None if self._supervision is None else self._supervision.settled,
                clock=self._queues[0].clock,
                around_of=self._middleware if self._has_middleware else None,
                state=state,
                on_lost=self._callbacks.stalled,
                on_missed=self._callbacks.missed,
                on_idle=None if self._callbacks.on_idle is None else self._idle,
                orders=self._order.orders(tuple(tasks)),
            )
            for store, source, tasks in opened
        ]
        self._hold()
        for station in self._stations:
            station.start()
        for store, _, tasks in opened:
            log.info(
                "worker %s works on %s in %s",
                self.name,
                ", ".join(name.queue for name in tasks),
                store.url,
            )
        if self._supervision is not None:
            self._supervision.up()

    @property
    def _has_middleware(self) -> bool:
        return bool(self._middleware) or any(
            getattr(queue, "middleware", ()) for queue in self._queues
        )

    async def _open(self) -> list[OpenedStore]:
        self._executors.check()
        opened = await self._stores.open(self.settings, paused=self._paused)
        self._order.check_stores(len(opened))
        return opened

    async def _await_stores(self, patience: StorePatience) -> list[OpenedStore]:
        """Wait until all stores respond. An empty list if the worker is stopped before that."""
        assert self._done is not None
        while self._ending is None:
            try:
                opened = await self._open()
            except StoreUnavailable as error:
                await self._stores.aclose()
                pause = patience.failed(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._done.wait(), pause)
            else:
                patience.over()
                return opened
        return []

    # ── stopping ──

    async def _end(self, drain_s: float) -> Stopped:
        assert self._done is not None
        try:
            await self._drain(drain_s)
            farewell = Farewell(self.settings.close_timeout_ms / 1000)
            await asyncio.gather(
                *(station.release_running(self._grace_s, farewell) for station in self._stations)
            )
            await asyncio.gather(*(station.close(farewell) for station in self._stations))
            await self._executors.aclose()
            if self._lifespan is not None:
                await self._lifespan.stop()
            await self._callbacks.aclose()
            return stopped(station.settled_since_stop for station in self._stations)
        finally:
            closing = asyncio.ensure_future(self._stores.aclose())
            if not await Farewell(_CLOSE_S).wait(closing):
                log.warning("a store of worker %s does not respond: its handle is left", self.name)
            elif not closing.cancelled() and (error := closing.exception()) is not None:
                log.warning("a store of worker %s was not closed: %s", self.name, error)
            log.info("worker %s has stopped", self.name)
            self._done.set()

    async def _drain(self, drain_s: float) -> None:
        """Wait until all jobs are settled, or `drain_s` is over, or jobs are to be released now."""
        assert self._release_now is not None
        fetching = [station.drain() for station in self._stations]
        release_now = asyncio.ensure_future(self._release_now.wait())
        settled = asyncio.ensure_future(_all(fetching))
        try:
            await asyncio.wait(
                [settled, release_now], timeout=drain_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            release_now.cancel()
            settled.cancel()

    @property
    def _grace_s(self) -> float:
        """How long a released run may take to clean up."""
        return min(1.0, self.settings.grace_ms / 1000)

    def _idle(self) -> None:
        if not any(station.runner.open for station in self._stations):
            self._callbacks.idle()


def _checked_concurrency(value: object) -> int:
    return check_int(value, "concurrency", low=1, high=MAX_CONCURRENCY, error=ConfigError)


async def _all(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for tasks. Unlike `gather`, cancelling this does not cancel them."""
    if tasks:
        await asyncio.wait(tasks)
