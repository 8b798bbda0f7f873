"""Renews leases in a thread with a separate event loop and handle, so no handler can block it.

The thread also listens for cancels and lost leases, and announces that the worker is alive. Code
that holds the GIL for longer than a lease still blocks it: run such code in a subprocess.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context

from jobq.core.records.jobs import LeaseState, QueueName, Topic
from jobq.engine.identity import WorkerSettings
from jobq.engine.pulse import Pulse
from jobq.engine.run import Run
from jobq.engine.service import Outage, Service
from jobq.stores.base import Store

log = logging.getLogger("jobq")

_BATCH = 1000
"""Leases that one `extend` call renews."""


class Renewer(Service):
    """Renews the leases in `held`, each until the timeout and grace of its run are over."""

    name = "lease keeper"

    def __init__(
        self,
        store: Store,
        held: set[Run],
        *,
        lease_ms: int,
        report: Callable[[Run, LeaseState], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._held = held
        self._lease_ms = lease_ms
        self._report = report
        self._outage = Outage(self.name, cap=max(0.05, lease_ms / 10_000))

    async def tick(self) -> float:
        """Run one pass.

        Passes run every third of a lease and skip leases younger than a sixth. So short jobs cost
        nothing, and every other lease is renewed before half of it has passed.
        """
        now = time.monotonic()
        await self.renew(older_than_s=self._lease_ms / 6000)
        return max(0.0, self._lease_ms / 3000 - (time.monotonic() - now))

    async def renew(self, older_than_s: float) -> None:
        """Renew leases that were claimed longer ago, and report those lost or cancelled."""
        now = time.monotonic()
        old = now - older_than_s
        due = [
            run
            for run in self._snapshot()
            if run.since <= old and (run.until is None or now < run.until)
        ]
        for start in range(0, len(due), _BATCH):
            await self._renew(due[start : start + _BATCH])

    async def _renew(self, runs: list[Run]) -> None:
        asked = time.monotonic()
        states = await self._store.extend([run.ref for run in runs], lease_ms=self._lease_ms)
        for run, state in zip(runs, states, strict=True):
            if state != "lost":
                run.renewed = asked
            if state != "held":
                self._report(run, state)

    def _snapshot(self) -> list[Run]:
        """Copy the set. Another thread may change it meanwhile: then the copy is repeated."""
        while True:
            try:
                return list(self._held)
            except RuntimeError:
                continue


class Keeper:
    """The thread that renews leases, listens for cancels and runs the worker's pulse."""

    def __init__(
        self,
        open: Callable[[], Store],
        held: set[Run],
        *,
        worker: str,
        settings: WorkerSettings,
        report: Callable[[Run, LeaseState], None],
        cancel: Callable[[QueueName, str], None],
        pulse: Callable[[Store], Pulse],
    ) -> None:
        """`open` is called in the thread and returns its store handle.

        `report` and `cancel` are called in the event loop that called `start`. `pulse` creates the
        pulse for a store handle.
        """
        self._open = open
        self._held = held
        self._worker = worker
        self._settings = settings
        self._report = report
        self._cancel = cancel
        self._make_pulse = pulse
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._gone: asyncio.Future[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        self._home = asyncio.get_running_loop()
        self._gone = self._home.create_future()
        self._start_thread()

    def _start_thread(self) -> None:
        """Run `_main` in a thread. tests/simulation runs it in a simulated event loop instead."""
        context = copy_context()  # its outages are reported like others
        threading.Thread(
            target=context.run, args=(self._live,), name="jobq keeper", daemon=True
        ).start()

    async def stop(self, timeout_s: float) -> None:
        """End the thread, and wait for it.

        A thread that hangs in its store is left behind after `timeout_s`: it is a daemon.
        """
        self._stopped = True
        if self._gone is None:
            return
        if self._loop is not None and self._stop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # its loop is closed: the thread has ended
        await asyncio.wait([self._gone], timeout=timeout_s)

    # ── in the thread ──

    def _live(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception(
                "the lease keeper of worker %s failed: its leases are no longer renewed",
                self._worker,
            )
        finally:
            self._at_home(self._ended)

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopped:
            return
        store = self._open()
        services: list[asyncio.Task[None]] = []
        try:
            if await self._connect(store):
                renewer = Renewer(
                    store, self._held, lease_ms=self._settings.lease_ms, report=self._report_home
                )
                loops = (renewer.run(), self._listen(store, renewer), self._make_pulse(store).run())
                services = [asyncio.ensure_future(loop) for loop in loops]
                await self._stop.wait()
        finally:
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)
            await store.aclose()

    async def _connect(self, store: Store) -> bool:
        """Connect the handle, however long it takes. Returns False if stopped before."""
        assert self._stop is not None
        outage = Outage("lease keeper")
        while not self._stop.is_set():
            try:
                await store.migrate()
                return True
            except Exception as error:
                await asyncio.sleep(min(1.0, outage.failed(error)))
        return False

    async def _listen(self, store: Store, renewer: Renewer) -> None:
        """Pass on cancels as soon as they are signalled.

        A cancel from before this listened is found by renewing once, and one whose signal is lost
        with the next renewal.
        """
        outage = Outage("listening for cancels")
        while True:
            try:
                async with store.listen([Topic("cancel", None, self._worker)]) as signals:
                    outage.over()
                    await renewer.renew(older_than_s=0)
                    async for signal in signals:
                        if signal.job is not None:
                            self._at_home(self._cancel, signal.queue, signal.job)
                rest = 1.0
            except Exception as error:
                rest = outage.failed(error)
            await asyncio.sleep(rest)

    def _report_home(self, run: Run, state: LeaseState) -> None:
        self._at_home(self._report, run, state)

    def _at_home(self, call: Callable[..., None], *args: object) -> None:
        assert self._home is not None
        try:
            self._home.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the worker's loop is closed: it needs no reports any more

    def _ended(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
