"""The one loop between a store and the runs: settle what has ended, claim what fits.

While an exchange is in flight finished runs gather, and the next one settles all of them and claims for every free slot:
batches form by themselves. A job is claimed only into a slot taken for it beforehand, so `active` means executing.

A store that works while we do (`Pipelined.lanes`) would stand still while runs begin and end, and we while it works. So while
claims come back full and there is enough to settle for two, a second lane has an exchange of its own in flight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from jobq.core.pace import Pace
from jobq.core.records import Claim, Lease, LeaseRef, QueueName, Settled
from jobq.engine.exchange import Exchange
from jobq.engine.last_chance import LastChance
from jobq.engine.run import Run
from jobq.engine.runner import Runner, lost
from jobq.engine.service import Outage
from jobq.engine.settings import WorkerSettings
from jobq.engine.slots import Bell, Slots
from jobq.stores.base import Store, pipeline_of

log = logging.getLogger("jobq")

_TRACE = 5
"""The log level of exchanges, below DEBUG."""
_MIN_SETTLED_PER_LANE = 16
"""Runs that a lane must have to settle: an exchange costs as much as a few of them by itself."""
_MAX_SETTLED_PER_LANE = 250
"""Runs that one of two lanes settles at a time: the store does nothing else meanwhile."""


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
        settings: WorkerSettings,
        pace: Pace | None = None,
        chance: LastChance | None = None,
    ) -> None:
        self._store = store
        self._runner = runner
        self._worker = worker
        self._slots = slots
        self._bell = bell
        self._settings = settings
        self._pace = pace or Pace()
        self._chance = chance or LastChance(slots, settings)
        pipeline = pipeline_of(store)
        lanes = 1 if pipeline is None else pipeline.lanes
        self._lanes = [
            Exchange(store, worker=worker, exchange_timeout_ms=settings.exchange_timeout_ms, lane=n)
            for n in range(lanes)
        ]
        self._second: asyncio.Task[None] | None = None  # what the second lane does
        self._full = False  # the last claim brought as many as it asked for: there is more
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
        try:
            while not self._finished:
                try:
                    await self.tick()
                except Exception as error:
                    await asyncio.sleep(self._outage.failed(error))
        finally:
            if self._second is not None:
                self._second.cancel()

    @property
    def _finished(self) -> bool:
        return (
            self._stopping
            and not self._runner.open
            and not self._runner.ended
            and self._second is None
        )

    async def tick(self) -> int:
        """One exchange, or the wait for a reason to make one; how many jobs it brought."""
        if self._chance.closed:
            self._chance.look()
        most = self._share(2) if self._flows(2) else self._slots.total
        ended, claim = self._take(most), self._claim(most)
        if not ended and claim is None and not self._asleep:
            await self._bell.wait()
            return 0
        if self._second is None and self._flows(1):
            self._second = asyncio.get_running_loop().create_task(
                self._overlap(), name="jobq fetcher, second lane"
            )
            self._second.add_done_callback(self._overlapped)
        claimed, settled = await self._trade(self._lanes[0], ended, claim)
        self._asleep = settled.asleep
        if claimed:
            self._shortest_ms = 1
            await asyncio.sleep(0)  # handlers that end at once ride in the next exchange
        elif self._asleep and not (
            self._runner.ended or self._paused or self._stopping or self._chance.bars(self._runner)
        ):
            await self._sleep(settled.next_due_ms)
        return claimed

    def _flows(self, lanes: int) -> bool:
        """Whether there is more to claim, and enough to settle for so many lanes."""
        return (
            self._full
            and len(self._lanes) > 1
            and len(self._runner.ended) >= _MIN_SETTLED_PER_LANE * lanes
        )

    def _share(self, lanes: int) -> int:
        """What one of so many lanes takes of what has ended, and claims."""
        return min(_MAX_SETTLED_PER_LANE, -(-len(self._runner.ended) // lanes))

    async def _overlap(self) -> None:
        """The second lane, as long as there is enough for it."""
        while self._flows(1):
            share = self._share(1)
            claimed, _ = await self._trade(self._lanes[1], self._take(share), self._claim(share))
            if claimed:
                await asyncio.sleep(0)

    def _overlapped(self, task: asyncio.Task[None]) -> None:
        self._second = None
        self._bell.ring()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the second lane to %s failed", self._store.url, exc_info=error)

    async def _trade(
        self, lane: Exchange, ended: list[Run], claim: Claim | None
    ) -> tuple[int, Settled]:
        """One exchange; how many jobs it brought, and its answer."""
        since = time.monotonic()
        settled = await lane.ask(ended, claim)
        self._settled(ended, settled.stale)
        leases: Sequence[Lease] = settled.leases
        limit = 0 if claim is None else claim.limit
        self._full = 0 < limit <= len(leases)
        if leases and time.monotonic() - since > self._settings.lease_ms / 2000:
            since = time.monotonic()
            leases = await self._still_held(leases)
        if log.isEnabledFor(_TRACE):
            ms = (time.monotonic() - since) * 1000
            log.log(
                _TRACE,
                "exchange of %.1f ms: %d settled, %d of %d claimed",
                ms,
                len(ended),
                len(leases),
                limit,
            )
        self._slots.give(limit - len(leases))  # those it does not fill
        self._runner.start(leases, since)
        if claim is not None and claim.alone:
            self._chance.answered(self._runner)
        if settled.last_chance:
            self._chance.expect(self._runner)
        return len(leases), settled

    def _take(self, most: int) -> list[Run]:
        """Runs to settle, oldest first."""
        ended = self._runner.ended
        self._runner.ended = ended[most:]
        return ended[:most]

    def _claim(self, most: int) -> Claim | None:
        """As many as there are free slots, which are taken now."""
        if self._stopping or self._paused or self._chance.bars(self._runner):
            return None
        alone = self._chance.may_take(self._runner)
        limit = self._slots.take(self._bell, most)
        if not limit:
            return None
        if alone:
            self._chance.asks(self._runner)
        self._turn = (self._turn + 1) % len(self._orders)
        return Claim(
            queues=self._orders[self._turn],
            limit=limit,
            lease_ms=self._settings.lease_ms,
            alone=alone,
        )

    def _settled(self, runs: Sequence[Run], stale: Sequence[LeaseRef]) -> None:
        self._runner.settled(runs)
        if stale:
            by_ref = {run.ref: run for run in runs}
            for ref in stale:
                if ref in by_ref:
                    by_ref[ref].outcome = None  # the store did not take it
                    log.warning("%s", lost(by_ref[ref]))

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
                return [
                    lease for lease, state in zip(leases, states, strict=True) if state != "lost"
                ]

    async def _sleep(self, next_due_ms: int | None) -> None:
        """Until there may be work, or anything here wants an exchange: a run that ended is settled at once."""
        poll_ms, shortest_ms = int(self._settings.poll_ms * self._pace.stretch), self._shortest_ms
        timeout_ms = poll_ms if next_due_ms is None else max(shortest_ms, min(next_due_ms, poll_ms))
        # Something due at once that is not there to be claimed, again and again, must not make the worker spin.
        self._shortest_ms = min(100, 2 * shortest_ms) if timeout_ms == shortest_ms else 1
        queues = self._orders[self._turn]
        nap = asyncio.ensure_future(
            self._store.sleep(
                queues, worker=self._worker, slots=max(1, self._slots.free), timeout_ms=timeout_ms
            )
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
