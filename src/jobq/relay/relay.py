"""The loop: for every queue this instance is elected for, page after page from the log to the target.

A page is acknowledged in the store only after the target has it for good; a crash in between sends it again (events have ids).
One page per queue is under way at a time, so events follow in order; queues go side by side. The office of a queue is held by
`store.lead` and renewed while a page waits for a target that is down; whoever loses it stops, and the next one sends again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from jobq.core.event_records import EventPage
from jobq.core.records import QueueName
from jobq.errors import StoreUnavailable
from jobq.relay.rejected import RejectedEvents
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.relay.targets import Rejected, Target, TargetUnavailable
from jobq.stores.base import Store

log = logging.getLogger("jobq.relay")

BEGINNING = "0"


def _now_ms() -> int:
    return int(time.time() * 1000)


class Relay:
    """Ships the logs of all queues of a store. `name` is the reader whose position is kept: one per target."""

    def __init__(
        self,
        store: Store,
        target: Target,
        *,
        name: str = "relay",
        who: str | None = None,
        page: int = 2000,
        lease: float = 15.0,
        poll: float = 0.5,
        rejected: Path = Path("jq-relay-refused.jsonl"),
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        self.store, self.target, self.name = store, target, name
        self.who = who or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.page, self.lease_ms, self.poll, self.clock = page, int(lease * 1000), poll, clock
        self.rejected = RejectedEvents(rejected)
        self._lanes: dict[QueueName, _Lane] = {}
        self._others = 0
        self._problem: str | None = None
        self._stopping = asyncio.Event()

    @property
    def status(self) -> RelayStatus:
        """How it is doing now."""
        lanes = tuple(lane.status for lane in self._lanes.values() if lane.ours)
        return RelayStatus(
            target=self.target.name, queues=lanes, others=self._others, problem=self._problem
        )

    async def tick(self) -> int:
        """One pass: for each queue that is ours, one page. Answers how many events were shipped."""
        await self._find_queues()
        passes = await asyncio.gather(
            *(lane.tick() for lane in self._lanes.values()), return_exceptions=True
        )
        self._others = sum(not lane.ours for lane in self._lanes.values())
        await self._tend_target()
        # Raised when every lane has come to an end: one still at work would send beside the next pass, and out of order.
        for failed in (found for found in passes if isinstance(found, BaseException)):
            raise failed
        return sum(found for found in passes if isinstance(found, int))

    async def _tend_target(self) -> None:
        """Its own chores. What fails is tried again in the next pass: nothing is lost by it, it only comes later."""
        try:
            await self.target.tick()
            self._problem = None
        except OSError as e:  # TargetUnavailable is one
            self._problem = str(e)
            log.warning("%s", e)

    async def drain(self) -> int:
        """Pass after pass until nothing is left; how many events it were."""
        total = 0
        while shipped := await self.tick():
            total += shipped
        return total

    async def _find_queues(self) -> None:
        for record in await self.store.queues():
            if record.queue not in self._lanes:
                self._lanes[record.queue] = _Lane(self, record.queue)

    async def run(self) -> None:
        """Until `stop`: pass after pass, resting when there is nothing. A store that does not answer is asked again."""
        await self.target.open()
        while not self._stopping.is_set():
            try:
                shipped = await self._until_stopped()
            except StoreUnavailable as e:
                log.warning("the store does not answer, asking again: %s", e)
                shipped = 0
            if not shipped:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self.poll)
        await self.target.aclose()

    async def _until_stopped(self) -> int:
        """A pass that a stop breaks off: a page that waits for Kafka must not keep the process."""
        work, stop = (
            asyncio.ensure_future(self.tick()),
            asyncio.ensure_future(self._stopping.wait()),
        )
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stop):
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return 0 if work.cancelled() else work.result()

    def stop(self) -> None:
        """End soon. What is not acknowledged is sent again by whoever comes next."""
        self._stopping.set()


class _Lane:
    """One queue's way from the log to the target."""

    def __init__(self, relay: Relay, queue: QueueName) -> None:
        self.relay, self.queue = relay, queue
        self.office = f"relay/{relay.name}/{queue.tenant}/{queue.queue}"
        self.ours = False
        self._asked = 0.0  # when the office was last won
        self.position: str | None = None
        self.status = QueueStatus(tenant=queue.tenant, queue=queue.queue)

    async def tick(self) -> int:
        """Ship one page, if the queue is ours."""
        if not await self._elected():
            return 0
        if self.position is None:
            self.position = await self._registered()
        page = await self.relay.store.read_events(
            self.queue, after=self.position, limit=self.relay.page
        )
        if not page.events:
            self.position = page.position
            self._note(lag_ms=0, problem=None)
            return 0
        self._note(lag_ms=max(0, self.relay.clock() - page.events[0].at_ms))
        return await self._ship(page)

    async def _elected(self) -> bool:
        relay = self.relay
        if self.ours and time.monotonic() - self._asked < relay.lease_ms / 4000:
            return True
        began = time.monotonic()
        ours = await relay.store.lead(self.office, who=relay.who, ttl_ms=relay.lease_ms)
        if ours != self.ours:
            log.info(
                "queue %s of tenant %s is %s",
                self.queue.queue,
                self.queue.tenant,
                "ours" if ours else "another instance's",
            )
            self.position = None  # whoever had it may have gone on since: ask the store
        self.ours, self._asked = ours, began
        return ours

    async def _registered(self) -> str:
        """Where we stand in the log; a new reader begins at the oldest event there is."""
        store, name = self.relay.store, self.relay.name
        known = await store.ack_events(self.queue, name, None)
        return (
            known
            if known is not None
            else await store.ack_events(self.queue, name, BEGINNING) or BEGINNING
        )

    async def _ship(self, page: EventPage) -> int:
        """Send the page; renew the office while the target lets us wait. Acknowledge it when it is there."""
        relay = self.relay
        sending = asyncio.ensure_future(relay.target.send(page.events))
        try:
            refused = await self._wait(sending)
        except TargetUnavailable as e:
            self._note(problem=str(e))
            log.warning("%s", e)
            return 0
        if refused is None:
            return 0
        if refused:
            try:
                await relay.rejected.keep(relay.target.name, refused)
            except OSError as e:  # what is not kept may not be passed over: the page is sent again
                self._note(problem=f"{len(refused)} refused events cannot be kept: {e}")
                log.warning("%d refused events cannot be kept, trying again: %s", len(refused), e)
                return 0
            log.error(
                "%s will never take %d events (%s): kept in %s",
                relay.target.name,
                len(refused),
                refused[0].why,
                relay.rejected.path,
            )
        await relay.store.ack_events(self.queue, relay.name, page.position)
        self.position = page.position
        # More may wait, none of it older than the last one sent. That nothing does, only an empty page says.
        lag = max(0, relay.clock() - page.events[-1].at_ms)
        self._note(
            shipped=len(page.events) - len(refused), refused=len(refused), lag_ms=lag, problem=None
        )
        return len(page.events)

    async def _wait(self, sending: asyncio.Future[list[Rejected]]) -> list[Rejected] | None:
        """The target's answer; None if the office was lost meanwhile."""
        try:
            while True:
                done, _ = await asyncio.wait({sending}, timeout=self.relay.lease_ms / 3000)
                if done:
                    return sending.result()
                self._note(
                    problem=f"{self.relay.target.name} has not answered yet",
                    lag_ms=self.status.lag_ms + self.relay.lease_ms // 3,
                )
                if not await self._elected():
                    return None
        finally:
            if not sending.done():
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, TargetUnavailable):
                    await sending

    def _note(
        self,
        *,
        shipped: int = 0,
        refused: int = 0,
        lag_ms: int | None = None,
        problem: str | None = None,
    ) -> None:
        old = self.status
        self.status = QueueStatus(
            tenant=old.tenant,
            queue=old.queue,
            position=self.position or BEGINNING,
            shipped=old.shipped + shipped,
            refused=old.refused + refused,
            lag_ms=old.lag_ms if lag_ms is None else lag_ms,
            problem=problem,
        )
