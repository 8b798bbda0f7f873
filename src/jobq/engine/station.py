"""Everything a worker runs for one store: fetcher, runs, keeper, upkeep, schedules and pulse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import WorkerRecord, WorkerRequest
from jobq.core.rules.fleet import Pace
from jobq.engine import child_tasks
from jobq.engine.executors import Executors
from jobq.engine.fetcher import Fetcher
from jobq.engine.handler import (
    AroundOf,
    Handler,
)
from jobq.engine.identity import Identity, WorkerSettings
from jobq.engine.keeper import Keeper
from jobq.engine.last_chance import LastChance
from jobq.engine.notes import Notes
from jobq.engine.pulse import Pulse
from jobq.engine.run import Run
from jobq.engine.runner import Runner
from jobq.engine.scheduler import OnMissed, Scheduler
from jobq.engine.service import Farewell, Service, on_outage, wall_clock
from jobq.engine.slots import Bell, Slots
from jobq.engine.upkeep import UPKEEP, Leader, Ticker
from jobq.stores.base import Clock, Store

log = logging.getLogger("jobq")

_RESERVE_S = 0.5
"""Seconds of a farewell that are left for the loops when jobs could not be released."""


class Station:
    """A worker's part for one store. Call `start`, later `drain`, `release_running` and `close`."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[QueueName, Mapping[str, Handler]],
        *,
        open: Callable[[], Store],
        identity: Identity,
        slots: Slots,
        executors: Executors,
        settings: WorkerSettings,
        chance: LastChance,
        on_request: Callable[[WorkerRequest], None],
        failed: Callable[[], None],
        displaced: Callable[[], None],
        interrupted: Callable[[], None] = lambda: None,
        on_settled: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        around_of: AroundOf | None = None,
        state: Any = None,
        on_lost: Callable[[Run], None] | None = None,
        on_idle: Callable[[], None] | None = None,
        on_missed: OnMissed | None = None,
        orders: Sequence[tuple[QueueName, ...]] | None = None,
    ) -> None:
        """`open` returns another handle on the store, for the keeper's thread.

        These are called in the running event loop: `on_request` with an operator's request,
        `failed` when the fetcher has failed, `displaced` when another worker has taken this
        worker's name, `interrupted` when a handler raises KeyboardInterrupt, and `on_settled` with
        the number of jobs that an exchange has settled. For `around_of`, `state` and `on_lost`, see
        Runner. `on_idle` is called when nothing runs and there is nothing to claim. For
        `on_missed`, see Scheduler; for `orders`, see Fetcher.
        """
        self.queues: Sequence[QueueName] = tuple(tasks)
        self._store = store
        self._identity = identity
        self._worker = worker = identity.name
        self._settings = settings
        self._slots = slots
        self._on_request = on_request
        self._failed = failed
        self._displaced = displaced
        self._loop = asyncio.get_running_loop()
        self._paused = self._draining = False
        bell = Bell()
        self._pace = pace = Pace()
        self._notes = Notes(store)
        self.runner = Runner(
            tasks,
            executors=executors,
            slots=slots,
            bell=bell,
            notes=self._notes,
            settings=settings,
            interrupted=interrupted,
            chance=chance,
            lease_s=settings.lease_ms / 1000,
            around_of=around_of,
            state=state,
            on_lost=on_lost,
        )
        chance.join(self.runner, bell)
        self.fetcher = Fetcher(
            store,
            self.queues,
            self.runner,
            worker=worker,
            slots=slots,
            bell=bell,
            settings=settings,
            pace=pace,
            chance=chance,
            on_idle=on_idle,
            on_settled=on_settled,
            orders=orders,
        )
        self._keeper = Keeper(
            open,
            self.runner.held,
            worker=worker,
            settings=settings,
            report=self.runner.interrupts.lease_reported,
            cancel=self.runner.interrupts.cancel,
            pulse=self._pulse,
        )
        self._leader = leader = Leader(
            store, UPKEEP, who=worker, ttl_ms=settings.leadership_ms, pace=pace
        )
        self._services: tuple[Service, ...] = (
            Ticker(store, leader, settings),
            Scheduler(store, leader, settings, clock=clock or wall_clock, on_missed=on_missed),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._fetching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start all loops."""
        child_tasks.guard(self._loop)
        self._keeper.start()
        self._tasks = [
            self._loop.create_task(service.run(), name=f"jobq {service.name}")
            for service in self._services
        ]
        self._fetching = self._loop.create_task(self.fetcher.run(), name="jobq fetcher")
        self._fetching.add_done_callback(self._fetcher_ended)

    def hold(self, *, paused: bool, draining: bool) -> None:
        """Claim nothing while the program pauses the worker, or an operator drains it."""
        self._paused, self._draining = paused, draining
        if paused or draining:
            self.fetcher.pause()
        else:
            self.fetcher.resume()

    @property
    def settled_since_stop(self) -> tuple[Sequence[Run], Iterable[Run]]:
        """The runs that were settled since `drain`, and those that could not be settled."""
        return self.runner.settled_since_stop, self.runner.held

    def drain(self) -> asyncio.Task[None]:
        """Claim nothing more. Returns a task that ends when all runs have ended and are settled."""
        assert self._fetching is not None
        self.fetcher.stop()
        return self._fetching

    async def release_running(self, grace_s: float, farewell: Farewell) -> None:
        """Interrupt the runs and release their jobs. Runs that ignore it for `grace_s` too."""
        if self._fetching is None or self._fetching.done():
            return
        self.runner.interrupts.release_running()
        await farewell.wait(self._fetching, most=grace_s)
        self.runner.interrupts.release_rest()
        await farewell.wait(self._fetching, most=farewell.left - _RESERVE_S)

    async def close(self, farewell: Farewell) -> None:
        """Stop all loops and sign off. Leases of jobs that could not be released will expire."""
        silent = self._fetching is not None and not self._fetching.done()
        if self._fetching is not None and silent:
            log.error(
                "%s does not respond: %d jobs could not be released, and run again when their "
                "leases expire; worker %s is not signed off, and is listed until its heartbeat "
                "expires",
                self._store.url,
                len(self.runner.held),
                self._worker,
            )
            self._fetching.cancel()
            self._tasks.append(self._fetching)
        for service in self._services:
            service.stop()
        if not await farewell.wait(*self._tasks, most=0.0 if silent else 1.0):
            for task in self._tasks:
                task.cancel()
            await farewell.wait(*self._tasks)
        await farewell.wait(asyncio.ensure_future(self._notes.aclose()))
        await self._keeper.stop(0.0 if silent else farewell.left)
        child_tasks.unguard(self._loop)
        if not silent:
            await self._sign_off(farewell.left)

    async def _sign_off(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._leader.resign()
                await self._store.retire(self._worker, incarnation=self._identity.incarnation)
        except Exception as error:
            why = "no reply in time" if isinstance(error, TimeoutError) else error
            log.warning(
                "worker %s could not sign off from %s, and is listed until its heartbeat expires: "
                "%s",
                self._worker,
                self._store.url,
                why,
            )

    def _fetcher_ended(self, task: asyncio.Task[None]) -> None:
        """Stop the worker if its fetcher failed: otherwise it would look alive and do nothing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("worker %s stops: its fetcher failed", self._worker, exc_info=error)
            if (report := on_outage.get(None)) is not None:
                report(error)
            self._failed()

    # ── called in the keeper's thread ──

    def _pulse(self, store: Store) -> Pulse:
        return Pulse(
            store,
            self._settings,
            self._pace,
            record=self._record,
            on_request=self._requested,
            displaced=self._lost_name,
        )

    def _record(self) -> WorkerRecord:
        return self._identity.record(
            self.queues,
            self._slots.total,
            active=self.runner.open,
            paused=self._paused,
            draining=self._draining,
        )

    def _requested(self, request: WorkerRequest) -> None:
        self._loop.call_soon_threadsafe(self._on_request, request)

    def _lost_name(self) -> None:
        self._loop.call_soon_threadsafe(self._displaced)
