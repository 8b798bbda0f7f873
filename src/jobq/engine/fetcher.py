"""The one loop between a store and the runs: settle what has ended, claim what fits, never two exchanges at a time.

While an exchange is in flight finished runs gather, and the next one settles all of them and claims for every free slot:
batches form by themselves. A job is claimed only into a slot taken for it beforehand, so `active` means executing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from jobq.core.records import Claim, Lease, LeaseRef, QueueName
from jobq.engine.exchange import Exchange
from jobq.engine.run import Run
from jobq.engine.runner import Runner, lost
from jobq.engine.service import Outage
from jobq.engine.settings import Settings
from jobq.engine.slots import Bell, Slots
from jobq.stores.base import Store

log = logging.getLogger("jobq")


class Fetcher:
    """Feeds a runner from one store. `run()` ends when it was stopped and everything it claimed is settled."""

    def __init__(
        self,
        store: Store,
        queues: Sequence[QueueName],
        runner: Runner,
        *,
        worker: str,
        slots: Slots,
        bell: Bell,
        settings: Settings,
    ) -> None:
        self._store = store
        self._runner = runner
        self._worker = worker
        self._slots = slots
        self._bell = bell
        self._settings = settings
        self._exchange = Exchange(store, worker=worker, patience_ms=settings.patience_ms)
        self._outage = Outage(f"waiting for work in {store.url}")
        # Each exchange asks the queues in another order, so that none is always last.
        self._orders = [tuple(queues[n:]) + tuple(queues[:n]) for n in range(len(queues))]
        self._turn = 0
        self._asleep = False  # the store counts this worker as waiting for a wake-up
        self._paused = False
        self._stopping = False
        self._shortest_ms = 1  # the shortest sleep; see _sleep

    # ── what others ask of it ──

    def pause(self) -> None:
        """Claim nothing more, for now."""
        self._paused = True
        self._bell.ring()

    def resume(self) -> None:
        """Claim again."""
        self._paused = False
        self._bell.ring()

    def stop(self) -> None:
        """Claim nothing more, and end when all is settled. What an exchange in flight still brings goes straight back."""
        self._stopping = True
        self._runner.refuse()
        self._bell.ring()

    # ── the loop ──

    async def run(self) -> None:
        """Until stopped and settled. Nothing a store does ends it sooner."""
        while not self._finished:
            try:
                await self.tick()
            except Exception as error:
                await asyncio.sleep(self._outage.failed(error))

    @property
    def _finished(self) -> bool:
        return self._stopping and not self._runner.open and not self._runner.ended

    async def tick(self) -> int:
        """One exchange, or the wait for a reason to make one; how many jobs it brought."""
        ended, self._runner.ended = self._runner.ended, []
        claim = self._claim()
        if not ended and claim is None and not self._asleep:
            await self._bell.wait()
            return 0
        since = time.monotonic()
        settled = await self._exchange.ask(ended, claim)
        self._settled(ended, settled.stale)
        claimed = await self._start(settled.leases, since, 0 if claim is None else claim.limit)
        # Only an exchange about nothing but claiming leaves a worker asleep: it is what a repeat may safely do again.
        self._asleep = claim is not None and not settled.leases and not ended
        if claimed:
            self._shortest_ms = 1
            await asyncio.sleep(0)  # handlers that end at once ride in the next exchange
        elif self._asleep and not (self._runner.ended or self._paused or self._stopping):
            await self._sleep(settled.next_due_ms)
        return claimed

    def _claim(self) -> Claim | None:
        """As many as there are free slots, which are taken now."""
        if self._stopping or self._paused:
            return None
        limit = self._slots.take(self._bell)
        if not limit:
            return None
        self._turn = (self._turn + 1) % len(self._orders)
        return Claim(queues=self._orders[self._turn], limit=limit, lease_ms=self._settings.lease_ms)

    def _settled(self, runs: Sequence[Run], stale: Sequence[LeaseRef]) -> None:
        self._runner.settled(runs)
        if stale:
            by_ref = {run.ref: run for run in runs}
            for ref in stale:
                if ref in by_ref:
                    log.warning("%s", lost(by_ref[ref]))

    async def _start(self, leases: Sequence[Lease], since: float, taken: int) -> int:
        """Run what was claimed and give back the slots it does not fill."""
        if leases and time.monotonic() - since > self._settings.lease_ms / 2000:
            since = time.monotonic()
            leases = await self._still_held(leases)
        self._slots.give(taken - len(leases))
        self._runner.start(leases, since)
        return len(leases)

    async def _still_held(self, leases: Sequence[Lease]) -> list[Lease]:
        """The answer was long on its way, and these leases may have run out meanwhile: start only what is still ours."""
        refs = [LeaseRef(lease.queue, lease.id, lease.token) for lease in leases]
        while True:
            try:
                states = await self._store.extend(refs, lease_ms=self._settings.lease_ms)
            except Exception as error:
                await asyncio.sleep(self._outage.failed(error))
            else:
                self._outage.over()
                return [lease for lease, state in zip(leases, states, strict=True) if state != "lost"]

    async def _sleep(self, next_due_ms: int | None) -> None:
        """Until there may be work, or anything here wants an exchange: a run that ended is settled at once."""
        poll_ms, shortest_ms = self._settings.poll_ms, self._shortest_ms
        timeout_ms = poll_ms if next_due_ms is None else max(shortest_ms, min(next_due_ms, poll_ms))
        # Something due at once that is not there to be claimed, again and again, must not make the worker spin.
        self._shortest_ms = min(100, 2 * shortest_ms) if timeout_ms == shortest_ms else 1
        queues = self._orders[self._turn]
        nap = asyncio.ensure_future(
            self._store.sleep(queues, worker=self._worker, slots=max(1, self._slots.free), timeout_ms=timeout_ms)
        )
        nap.add_done_callback(self._bell.ring)
        try:
            await self._bell.wait()
        finally:
            if not nap.done():
                nap.cancel()
            await asyncio.wait([nap])
        if not nap.cancelled() and (error := nap.exception()) is not None:
            await self._bell.wait(self._outage.failed(error))
        else:
            self._outage.over()
