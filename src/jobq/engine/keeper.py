"""Renews leases from a thread with its own event loop and its own store handle, where no handler can hold it up.

There it also hears what concerns running jobs (a lease was lost, a job was cancelled) and says that the worker is alive.
Code that holds the GIL for longer than a lease can stop even this; it belongs in the `process` executor.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from jobq.core.records import LeaseState, QueueName, Topic
from jobq.engine.pulse import Pulse
from jobq.engine.run import Run
from jobq.engine.service import Outage, Service
from jobq.engine.settings import WorkerSettings
from jobq.stores.base import Store

log = logging.getLogger("jobq")

_BATCH = 1000


class Renewer(Service):
    """Renews every lease in `held` that is not young, until its run's timeout and grace are over."""

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
        """One pass. Passes come every third of a lease and leave out what is younger than a sixth, so that short jobs
        cost nothing and the others are renewed at half their lease at the latest."""
        now = time.monotonic()
        await self.renew(older_than_s=self._lease_ms / 6000)
        return max(0.0, self._lease_ms / 3000 - (time.monotonic() - now))

    async def renew(self, older_than_s: float) -> None:
        """Renew what was claimed so long ago, and tell what is heard of it."""
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
        """The set belongs to another thread, which may change it while it is copied: then again."""
        while True:
            try:
                return list(self._held)
            except RuntimeError:
                continue


class Keeper:
    """The thread: renewing, listening for cancels, and the worker's pulse."""

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
        """`open` is called in the thread, for a handle of its own. `tell` and `cancel` are called in the event loop that
        `start` was called in; `pulse` makes the pulse for a handle."""
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
        """Begin, beside the running event loop."""
        self._home = asyncio.get_running_loop()
        self._gone = self._home.create_future()
        threading.Thread(target=self._live, name="jobq keeper", daemon=True).start()

    async def stop(self) -> None:
        """End the thread; returns when it is gone (or after a while: it is a daemon, and may hang on a store)."""
        self._stopped = True
        if self._gone is None:
            return
        if self._loop is not None and self._stop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # it is closed: the thread has ended
        await asyncio.wait([self._gone], timeout=self._settings.close_timeout_ms / 1000)

    # ── in the thread ──

    def _live(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception("the lease keeper ended; leases of worker %s will run out", self._worker)
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
        """True when the handle works; False when told to stop before."""
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
        """Cancels, promptly. One that came before we listened is heard by looking, one that is lost with the next renewal."""
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
            pass  # the worker's loop is closed: nobody is left to tell

    def _ended(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
