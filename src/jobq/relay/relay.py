"""The relay's loop: read a page of a queue's log, send it to the target, acknowledge it.

The relay acknowledges a page in the store only after the target has stored it. After a crash in
between, the page is sent again, with the same event ids. Each queue has one page in flight at a
time, so its events stay in order. Queues are shipped concurrently.

Of several relays, one leads each queue (`store.lead`). It renews its leadership while the target is
unavailable. A relay that loses the leadership stops sending, and the new leader sends the page
again.

When the target has stored everything up to a number, the relay writes a mark
(`core.records.marks`): every few seconds, whenever it has caught up, and before a gap. Consumers
use it to tell a lost event from a late one.
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

import msgspec

from jobq.core.records import marks
from jobq.core.records.event_log import before, gap
from jobq.core.records.events import EventPage, EventRecord
from jobq.core.records.jobs import QueueName
from jobq.engine.service import Outage
from jobq.errors import ConfigError, StoreUnavailable
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.relay.targets import Rejected, RejectedEvents, Rejects, Target, TargetUnavailable
from jobq.stores.base import Store

log = logging.getLogger("jobq.relay")

_GRACE_S = 1.0  # seconds that `drain` waits beyond a lease: clocks and replies take their time
_MARK_S = 30.0  # seconds that writing marks may take before the relay goes on without them
BEGINNING = "0"  # the position before the oldest event of a log


def _now_ms() -> int:
    return int(time.time() * 1000)


class Relay:
    """Ships the event logs of all queues of a store to one target.

    `name` is the reader whose position the store keeps: use one name per target. `who` names this
    relay in elections. `page` is the number of events per page. `lease` is how long a leadership
    lasts without renewal, `poll` the pause when there is nothing to ship, and `mark_every` the
    interval of marks while there is always something to ship, all in seconds. `rejected` is the
    file of events that the target rejects for good."""

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
        mark_every: float = 5.0,
        rejected: Path | Rejects = Path("jq-relay-refused.jsonl"),
        clock: Callable[[], int] = _now_ms,
    ) -> None:
        self.store, self.target, self.name = store, target, name
        self.who = who or f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.page, self.lease_ms, self.poll, self.clock = page, int(lease * 1000), poll, clock
        self.mark_every, self._marked_at = mark_every, time.monotonic()
        self.rejected: Rejects = (
            RejectedEvents(rejected) if isinstance(rejected, Path) else rejected
        )
        self._shippers: dict[QueueName, _QueueShipper] = {}
        self._others = 0
        self._problem: str | None = None
        # Of a target that notices by itself that it is unavailable, so that one line says it.
        self.outage: Outage = getattr(target, "outage", None) or Outage(
            f"shipping events to {target.name}"
        )
        self._tending = Outage(f"the upkeep of {target.name}")
        self._marking = Outage(f"writing marks to {target.name}")
        self._storing = Outage("the relay")
        self._stopping = asyncio.Event()

    @property
    def status(self) -> RelayStatus:
        """The current position, lag and counts of the queues that this relay ships."""
        statuses = tuple(shipper.status for shipper in self._shippers.values() if shipper.leads)
        return RelayStatus(
            target=self.target.name, queues=statuses, others=self._others, problem=self._problem
        )

    async def tick(self) -> int:
        """Ship one page of each queue that this relay leads. Returns the number of events."""
        await self._find_queues()
        passes = await asyncio.gather(
            *(shipper.tick() for shipper in self._shippers.values()), return_exceptions=True
        )
        self._others = sum(not shipper.leads for shipper in self._shippers.values())
        await self._mark_if_due(caught_up=not any(passes))
        await self._tend_target()
        # Raised only when all queues are done: one that still sends during the next pass would
        # break the order of events.
        for failed in (found for found in passes if isinstance(found, BaseException)):
            raise failed
        return sum(found for found in passes if isinstance(found, int))

    async def _tend_target(self) -> None:
        """Let the target do its own work, e.g. publish a file. The next pass retries failures."""
        try:
            await self.target.tick()
            self._problem = None
            self._tending.over()
        except OSError as e:  # TargetUnavailable is one
            self._problem = str(e)
            self._tending.failed(e)

    async def _mark_if_due(self, *, caught_up: bool) -> None:
        """Write the marks of all queues at once. The next pass retries failures."""
        if not caught_up and time.monotonic() - self._marked_at < self.mark_every:
            return
        self._marked_at = time.monotonic()
        shippers = [shipper for shipper in self._shippers.values() if shipper.unmarked]
        if shippers:
            with contextlib.suppress(TargetUnavailable):
                await self.mark(*shippers)

    async def mark(self, *shippers: _QueueShipper) -> None:
        """Write the marks of some queues. Raises TargetUnavailable if that fails."""
        due = {shipper: shipper.unmarked for shipper in shippers}
        try:
            async with asyncio.timeout(_MARK_S):
                await self.target.mark([mark for found in due.values() for mark in found])
        except (TargetUnavailable, TimeoutError) as e:
            if not self.outage.lasts:
                self._marking.failed(e)
            raise TargetUnavailable(f"{self.target.name}: could not write marks") from e
        self._marking.over()
        for shipper, found in due.items():
            shipper.marked |= {mark.shard: mark.number for mark in found}

    async def drain(self) -> int:
        """Ship everything that is there. Returns the number of events.

        A queue may belong to another relay of this name. If that relay is dead, its leadership
        expires, so this waits for a little longer than a lease. Raises ConfigError if the other
        relay is alive: then it is the one that ships the queue."""
        total, deadline = 0, time.monotonic() + self.lease_ms / 1000 + _GRACE_S
        while True:
            while shipped := await self.tick():
                total += shipped
            others = [shipper.queue for shipper in self._shippers.values() if not shipper.leads]
            if not others:
                return total
            if time.monotonic() > deadline:
                names = ", ".join(f"{queue.tenant}/{queue.queue}" for queue in others[:3])
                raise ConfigError(
                    f"{len(others)} queues ({names}{', …' if len(others) > 3 else ''}) are shipped "
                    f"by another relay with the name {self.name!r}, which is running: stop it, or "
                    f"choose another --name for another target ({total} events shipped)"
                )
            with contextlib.suppress(TimeoutError):  # a store does not tell when a lease expires
                await asyncio.wait_for(self._stopping.wait(), self.poll)
                return total

    async def _find_queues(self) -> None:
        for record in await self.store.queues():
            if record.queue not in self._shippers:
                self._shippers[record.queue] = _QueueShipper(self, record.queue)

    async def run(self) -> None:
        """Ship events until `stop` is called. Waits and retries while the store is unavailable."""
        await self.target.open()
        while not self._stopping.is_set():
            try:
                shipped = await self._until_stopped()
                self._storing.over()
            except StoreUnavailable as e:
                self._storing.failed(e)
                shipped = 0
            if not shipped:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self.poll)
        await self.target.aclose()

    async def _until_stopped(self) -> int:
        """Run one pass. `stop` cancels it, so that a target that is down cannot delay the exit."""
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
        """Stop soon. The next relay sends what was not acknowledged."""
        self._stopping.set()


class _QueueShipper:
    """Ships one queue's log to the target."""

    def __init__(self, relay: Relay, queue: QueueName) -> None:
        self.relay, self.queue = relay, queue
        self.leadership = f"relay/{relay.name}/{queue.tenant}/{queue.queue}"
        self.leads = False
        self._elected_at = 0.0  # monotonic time of the last won election
        self.position: str | None = None
        self.reached: dict[int, marks.Mark] = {}  # by shard: what the target has stored
        self.marked: dict[int, int] = {}  # by shard: the number of the last mark
        self.status = QueueStatus(tenant=queue.tenant, queue=queue.queue)

    @property
    def unmarked(self) -> list[marks.Mark]:
        """The marks that the target does not have yet."""
        return [
            mark for mark in self.reached.values() if self.marked.get(mark.shard) != mark.number
        ]

    async def tick(self) -> int:
        """Ship one page, if this relay leads the queue."""
        if not await self._elected():
            return 0
        if self.position is None:
            self.position = await self._registered()
            self.reached = await self._shipped_before()
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
        """Win or renew the leadership of the queue. Renews after a quarter of the lease."""
        relay = self.relay
        if self.leads and time.monotonic() - self._elected_at < relay.lease_ms / 4000:
            return True
        began = time.monotonic()
        leads = await relay.store.lead(self.leadership, who=relay.who, ttl_ms=relay.lease_ms)
        if leads != self.leads:
            log.info(
                "queue %s of tenant %s is shipped by %s",
                self.queue.queue,
                self.queue.tenant,
                "this relay" if leads else "another relay",
            )
            self.position = None  # the previous leader may have moved it: read it from the store
        self.leads, self._elected_at = leads, began
        return leads

    async def _registered(self) -> str:
        """This reader's position in the log. A new reader starts at the oldest event."""
        store, name = self.relay.store, self.relay.name
        known = await store.ack_events(self.queue, name, None)
        if known is not None:
            return known
        position = await store.ack_events(self.queue, name, BEGINNING) or BEGINNING
        first = (await store.read_events(self.queue, after=position, limit=1)).events
        if first and first[0].kind == "gap":
            log.warning(
                "events of queue %s of tenant %s were dropped before this relay started for the "
                "first time, so an audit cannot prove anything about them. From now on, the store "
                "keeps events for the reader %r",
                self.queue.queue,
                self.queue.tenant,
                name,
            )
        return position

    async def _shipped_before(self) -> dict[int, marks.Mark]:
        """The marks of the last events that this reader acknowledged, if the log still has them.

        The relay that shipped them may have died before it wrote their marks."""
        if self.position is None or not self.position.strip("0-,"):
            return {}
        page = await self.relay.store.read_events(
            self.queue, after=before(self.position), until=self.position
        )
        return marks.reached(event for event in page.events if event.kind != "gap")

    async def _ship(self, page: EventPage) -> int:
        """Send a page and acknowledge it. Renews the leadership while the target is slow."""
        relay = self.relay
        if self.unmarked and any(event.kind == "gap" for event in page.events):
            # Before the gap, because a gap excuses all missing numbers since the last mark.
            try:
                await relay.mark(self)
            except TargetUnavailable as e:
                self._note(problem=str(e))
                return 0
        sending = asyncio.ensure_future(relay.target.send(page.events))
        try:
            rejected = await self._wait(sending)
        except TargetUnavailable as e:
            self._note(problem=str(e))
            relay.outage.failed(e)
            return 0
        if rejected is None:
            return 0
        relay.outage.over()
        if rejected:
            try:
                await relay.rejected.keep(relay.target.name, rejected)
            except OSError as e:  # events that are not on disk must not be skipped: send them again
                self._note(problem=f"could not save {len(rejected)} rejected events: {e}")
                log.warning("could not save %d rejected events, retrying: %s", len(rejected), e)
                return 0
            log.error(
                "%s rejected %d events for good (%s); they are in %s",
                relay.target.name,
                len(rejected),
                rejected[0].why,
                relay.rejected.where,
            )
            if not await self._sent_gaps(rejected):
                return 0
        await relay.store.ack_events(self.queue, relay.name, page.position)
        self.position = page.position
        self.reached |= marks.reached(page.events)
        # More events may follow, none older than the last one sent. Only an empty page proves that
        # nothing is left, and sets the lag to 0.
        lag = max(0, relay.clock() - page.events[-1].at_ms)
        self._note(
            shipped=len(page.events) - len(rejected),
            rejected=len(rejected),
            lag_ms=lag,
            problem=None,
        )
        return len(page.events)

    async def _sent_gaps(self, rejected: list[Rejected]) -> bool:
        """Send a gap in place of each rejected event, with its number and its id.

        So consumers know why the number is missing. False if the target is unavailable."""
        gaps = [_rejected_gap(event, why, self.relay.target.name) for event, why in rejected]
        try:
            await self._wait(asyncio.ensure_future(self.relay.target.send(gaps)))
        except TargetUnavailable as e:
            self._note(problem=str(e))
            self.relay.outage.failed(e)
            return False
        return self.leads

    async def _wait(self, sending: asyncio.Future[list[Rejected]]) -> list[Rejected] | None:
        """Wait for the target. Returns rejected events, or None if the leadership was lost."""
        try:
            while True:
                done, _ = await asyncio.wait({sending}, timeout=self.relay.lease_ms / 3000)
                if done:
                    return sending.result()
                self._note(
                    problem=f"{self.relay.target.name} has not replied yet",
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
        rejected: int = 0,
        lag_ms: int | None = None,
        problem: str | None = None,
    ) -> None:
        old = self.status
        self.status = QueueStatus(
            tenant=old.tenant,
            queue=old.queue,
            position=self.position or BEGINNING,
            shipped=old.shipped + shipped,
            refused=old.refused + rejected,
            lag_ms=old.lag_ms if lag_ms is None else lag_ms,
            problem=problem,
        )


def _rejected_gap(event: EventRecord, why: str, target: str) -> EventRecord:
    found = gap(
        marks.log_of(event.id),
        event.position,
        event.queue,
        event.at_ms,
        f"rejected by {target}: {why}",
        shard=event.shard,
        number=event.number,
        incarnation="",
    )
    return msgspec.structs.replace(found, id=event.id)
