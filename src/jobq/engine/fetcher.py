"""Exchanges jobs with a store: settles runs that have ended, and claims new jobs, in one call.

Runs that end while an exchange is in flight wait for the next one, which settles all of them and
claims for every free slot. So batches form without a timer. A job is claimed only into a slot that
was taken for it beforehand, so `active` means executing.

With one exchange at a time, a store in another process would be idle while handlers run, and the
worker would be idle while the store works. So if the store allows it (`Pipelined.lanes`), claims
come back full and there are enough runs to settle, a second lane has an exchange in flight too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from jobq.core.records.jobs import Claim, Lease, LeaseRef, QueueName, Settled
from jobq.core.rules.fleet import Pace, in_turns
from jobq.engine.exchange import Exchange
from jobq.engine.identity import WorkerSettings
from jobq.engine.last_chance import LastChance
from jobq.engine.run import Run, lost
from jobq.engine.runner import Runner
from jobq.engine.service import Outage
from jobq.engine.slots import Bell, Slots
from jobq.stores.base import Store, pipeline_of

log = logging.getLogger("jobq")

_TRACE = 5
"""The log level of exchanges: below DEBUG (10)."""
_MIN_SETTLED_PER_LANE = 16
"""Runs that must wait before a lane sends an exchange, which itself costs as much as a few runs."""
_MAX_SETTLED_PER_LANE = 250
"""Runs that one of two lanes settles at a time, because the store does nothing else meanwhile."""


class Fetcher:
    """Feeds a runner from one store. `run()` returns when stopped, after all runs are settled."""

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
        on_idle: Callable[[], None] | None = None,
        on_settled: Callable[[int], None] | None = None,
        orders: Sequence[tuple[QueueName, ...]] | None = None,
    ) -> None:
        """`on_idle` is called when nothing runs and there is nothing to claim, and then not again
        until a job was claimed. `orders` are the orders in which claims name the queues, one after
        the other. By default each queue is first in turn. `on_settled` is called with the number of
        runs that an exchange has settled."""
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
        self._second: asyncio.Task[None] | None = None  # the second lane, while it runs
        self._full = False  # the last claim got as many jobs as it asked for, so there may be more
        self._outage = Outage(f"waiting for work in {store.url}")
        self._orders = orders or in_turns(queues)
        self._turn = 0
        self._asleep = False  # the store will wake this worker
        self._paused = False
        self._stopping = False
        self._min_sleep_ms = 1  # see _sleep
        self._on_idle = on_idle
        self._on_settled = on_settled
        self._idle = False

    # ── control ──

    def pause(self) -> None:
        """Claim nothing until `resume`."""
        self._paused = True
        self._bell.ring()

    def resume(self) -> None:
        """Claim again."""
        self._paused = False
        self._bell.ring()

    def stop(self) -> None:
        """Claim nothing more, release jobs that still arrive, and end when all runs are settled."""
        self._stopping = True
        self._runner.stop()
        self._bell.ring()

    # ── the loop ──

    async def run(self) -> None:
        """Run passes until stopped and settled. An error of the store delays the next pass."""
        try:
            while True:
                try:
                    if self._finished:
                        break
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
        """Make one exchange, or wait for a reason to. Returns how many jobs it claimed."""
        if self._chance.closed:
            self._chance.check()
        free = 2 if self._second is None else 1
        flows = self._flows(free)
        limit = self._share(free) if flows else self._slots.total
        if self._second is None and flows:  # it begins when this lane has taken its share
            self._second = asyncio.get_running_loop().create_task(
                self._overlap(), name="jobq fetcher, second lane"
            )
            self._second.add_done_callback(self._overlapped)
        claimed, settled = await self._trade(self._lanes[0], limit)
        if settled is None:
            await self._bell.wait()
            return 0
        self._asleep = settled.asleep
        if claimed:
            self._min_sleep_ms = 1
            self._idle = False
            await asyncio.sleep(0)  # the next exchange settles handlers that return at once
        elif self._asleep and not (
            self._runner.ended or self._paused or self._stopping or self._chance.bars(self._runner)
        ):
            await self._sleep(settled.next_due_ms)
        return claimed

    def _flows(self, lanes: int) -> bool:
        """Whether there is more to claim, and enough to settle for this many lanes."""
        return (
            self._full
            and len(self._lanes) > 1
            and len(self._runner.ended) >= _MIN_SETTLED_PER_LANE * lanes
        )

    def _share(self, lanes: int) -> int:
        """How many runs one of these lanes settles, and how many jobs it claims."""
        return min(_MAX_SETTLED_PER_LANE, -(-len(self._runner.ended) // lanes))

    async def _overlap(self) -> None:
        """Run the second lane while there is enough to do for it."""
        while self._flows(1):
            claimed, _ = await self._trade(self._lanes[1], self._share(1))
            if claimed:
                await asyncio.sleep(0)

    def _overlapped(self, task: asyncio.Task[None]) -> None:
        self._second = None
        self._bell.ring()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the second lane to %s failed", self._store.url, exc_info=error)

    async def _trade(self, lane: Exchange, limit: int) -> tuple[int, Settled | None]:
        """Make one exchange of up to `limit` runs and as many jobs, unless there is nothing to do.

        Returns how many jobs it claimed, and the reply. Whatever raises, runs that the store has
        not settled are settled by a later exchange, and slots without a run are free.
        """
        ended: list[Run] = []
        slots = 0  # taken, and without a run
        claim: Claim | None = None
        try:
            if not (self._stopping or self._paused or self._chance.bars(self._runner)):
                alone = self._chance.may_take(self._runner)
                slots = self._slots.take(self._bell, limit)
            ended = self._runner.ended[:limit]
            del self._runner.ended[:limit]
            if not ended and not slots and not self._asleep:
                return 0, None
            if slots:
                claim = self._claim(slots, alone)
            since = time.monotonic()
            settled = await lane.ask(ended, claim)
            leases: Sequence[Lease] = settled.leases
            self._full = 0 < slots <= len(leases)
            if leases and time.monotonic() - since > self._settings.lease_ms / 2000:
                since = time.monotonic()
                leases = await self._still_held(leases)
            free, slots = slots - len(leases), len(leases)
            self._slots.give(free)
            self._runner.start(leases, since)
            slots = 0
            self._runner.settled(ended)
            done, ended = ended, []
        except BaseException:
            self._runner.ended[:0] = ended
            raise
        finally:
            self._slots.give(slots)
            self._chance.replied(claim)
        self._report(done, settled, since)
        return len(leases), settled

    def _claim(self, limit: int, alone: bool) -> Claim:
        """A claim for as many slots, which are taken."""
        self._turn = (self._turn + 1) % len(self._orders)
        claim = Claim(
            queues=self._orders[self._turn],
            limit=limit,
            lease_ms=self._settings.lease_ms,
            alone=alone,
        )
        self._chance.sent(self._runner, claim)
        return claim

    def _report(self, runs: Sequence[Run], settled: Settled, since: float) -> None:
        """Tell others about an exchange. This comes last, because they may raise."""
        if self._slots.free <= 0:
            self._runner.batches.flush()  # no more jobs can come
        if settled.last_chance:
            self._chance.expect(self._runner)
        if settled.stale:
            by_ref = {run.ref: run for run in runs}
            for ref in settled.stale:
                if ref in by_ref:
                    by_ref[ref].outcome = None  # it was not stored
                    log.warning("%s", lost(by_ref[ref]))
        if log.isEnabledFor(_TRACE):
            log.log(
                _TRACE,
                "exchange of %.1f ms: %d settled, %d claimed",
                (time.monotonic() - since) * 1000,
                len(runs),
                len(settled.leases),
            )
        if self._on_settled is not None:
            self._on_settled(len(runs))

    async def _still_held(self, leases: Sequence[Lease]) -> list[Lease]:
        """Renew leases whose reply took long. Returns those that have not expired meanwhile."""
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
        """Sleep until there may be work, or until this worker has something to settle."""
        poll_ms, min_ms = int(self._settings.poll_ms * self._pace.stretch), self._min_sleep_ms
        timeout_ms = poll_ms if next_due_ms is None else max(min_ms, min(next_due_ms, poll_ms))
        # If the store keeps saying that a job is due now, but none can be claimed, sleep longer
        # each time (up to 100 ms) instead of spinning.
        self._min_sleep_ms = min(100, 2 * min_ms) if timeout_ms == min_ms else 1
        if self._on_idle is not None and not self._idle and not self._runner.open:
            self._idle = True
            self._on_idle()
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
