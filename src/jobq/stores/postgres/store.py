"""`postgresql://…`: the store for people who run PostgreSQL.

Durability is that of the server: with its defaults, an acknowledged call survives the death of any
process and a power cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from jobq.core.records import refusals
from jobq.core.records.events import EventPage
from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    PutResult,
    QueueName,
    Settled,
)
from jobq.core.records.queues import QueueConfig
from jobq.core.rules.new_jobs import check_specs
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.base import Clock, Completion
from jobq.stores.base.optional import DatabaseReport
from jobq.stores.postgres import (
    caller,
    failures,
    fast,
    lock_order,
    log_segments,
    numbering,
    reads,
    schema,
    snapshots,
    upkeep,
)
from jobq.stores.postgres.address import Address, parse
from jobq.stores.postgres.caller import Caller
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.connection import MAX_CONNECTIONS, Connections, Kind
from jobq.stores.postgres.link import Link, StatementFailed
from jobq.stores.postgres.mailbox import ChannelMailbox
from jobq.stores.postgres.memory import PostgresMemory
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import signals
from jobq.stores.relational.store import RelationalStore, Work

log = logging.getLogger("jobq")

T = TypeVar("T")

FAST = True
"""Whether plain calls go the fast way. The test place `postgres-general` switches it off."""
_MANY = 200
"""Jobs of a put whose encoding takes about a millisecond."""
_HANDOVER_S = 0.0001
"""Seconds that the event loop's thread lets go of the interpreter after a large put, so that the
connection's thread encodes and sends it at once. Otherwise the loop would encode the next chunk
first, while the server has nothing to do: a thread keeps the interpreter for 5 ms. A bulk enqueue
without this takes 1.5 times as long (`python -m bench.postgres_paths --only handover`)."""
LEAVE_S = 1.0
"""Seconds that closing waits until the handle's registrations are deleted. A sweep deletes them
otherwise."""


class PostgresStore(RelationalStore):
    """A handle, for one event loop, with one connection, or two if it settles."""

    lanes = MAX_CONNECTIONS

    def __init__(self, url: str, clock: Clock | None) -> None:
        self.address = parse(url)
        super().__init__(self.address.shown)
        self._clock = clock
        self._memory = PostgresMemory()
        self._connections: Connections | None = None
        self._mailbox: ChannelMailbox | None = None
        self._prepared: set[tuple[QueueName, bool]] = set()
        self._again: asyncio.Task[None] | None = None
        self._fast = FAST and self.address.listen

    # ── lifecycle ─────────────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> None:
        if self._connections is not None:
            return
        box = ChannelMailbox(listens=self.address.listen)
        clock = self._memory.clock = StoreClock(self._clock)
        connections = Connections(self.address, clock, self._tx, box)
        connections.relisten = lambda: box.call(self._listen_after_loss)
        connections.replaced = self._forget
        try:
            connections.log = await connections.submit(
                Kind.LINK, schema.prepare, (self.address,), schema.MIGRATION_S
            )
        except BaseException:
            box.close()
            await _closed(connections)
            raise
        self._connections, self._mailbox = connections, box

    async def pending_migration(self) -> str:
        sql: str = await self._alone(schema.pending, self.address)
        return sql

    async def upgrade(self) -> None:
        await self._alone(schema.prepare, self.address._replace(migrate=True))

    async def report(self) -> DatabaseReport:
        return await self._read(reads.database_report, self.address.schema)

    async def _alone(self, work: Work[Any], address: Address) -> Any:
        """Run work(link, address) on a connection of its own, whether the store is open or not."""
        box = ChannelMailbox(listens=False)
        connections = Connections(address, StoreClock(None), self._tx, box)
        try:
            return await connections.submit(Kind.LINK, work, (address,), schema.MIGRATION_S)
        finally:
            box.close()
            await _closed(connections)

    async def aclose(self) -> None:
        if self._connections is None:
            return
        if self._mailbox is not None and self._connections.listening:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LEAVE_S):
                    await self._write(signals.leave, self._mailbox.address)
        if self._again is not None:
            self._again.cancel()
        if self._mailbox is not None:
            self._mailbox.close()
        connections, self._connections, self._mailbox = self._connections, None, None
        await _closed(connections)

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def tick(self, *, limit: int = 500) -> int:
        await self._number()
        steps, stopped_at = 0, None
        plan, full = await self._plan()
        for each in plan.todo:
            if steps >= limit:
                stopped_at = each
                break
            steps += await self._write(upkeep.tick_queue, each.queue, limit - steps, full)
        more = upkeep.record_progress(self._memory, plan, stopped_at)
        await self._free_segments()
        steps += await self._submit(Kind.TICK, upkeep.tick_rest, (max(1, limit - steps),))
        return limit if more else min(steps, limit)

    async def _plan(self) -> tuple[upkeep.TickPlan, bool]:
        """The next queues, and whether this reads from the beginning.

        If somebody holds a snapshot, this makes all handles use floors."""
        found = await self._read(snapshots.find_snapshots)
        began = time.monotonic()
        full = found.full(began)
        if not found.floors:
            return await self._read(upkeep.plan, full), full
        try:
            if full:
                found.blocks = await self._read(snapshots.find_heads)
            await self._write(snapshots.publish, found.blocks)
            return await self._read(upkeep.plan, full), full
        finally:  # after a scan that takes longer than a call may, the next one is later
            if full:
                found.scanned(began, time.monotonic())

    async def _free_segments(self) -> None:
        """Free the disk of old parts of the event log."""
        for segment in await self._read(log_segments.find_due):
            if segment.needed:
                await self._write(log_segments.move, segment.number)
            else:
                with contextlib.suppress(log_segments.Busy):
                    await self._write(log_segments.truncate, segment.number)

    # ── reads ─────────────────────────────────────────────────────────────────────────────────────

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        return await self._read(reads.get, jobs)

    # ── events ────────────────────────────────────────────────────────────────────────────────────

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        await self._number()
        return await super().read_events(queue, after=after, limit=limit, until=until)

    async def _number(self) -> None:
        """Give numbers to what was committed before this call."""
        for _ in range(numbering.PASSES):
            if not await self._write(numbering.number):
                return

    # ── hot ───────────────────────────────────────────────────────────────────────────────────────

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        if flow is None:
            specs = check_specs(specs)
        if flow is None and self._fast and fast.may_put(specs):
            watch = self._expected.watch(specs, self._box) if self._expected.callers else None
            done: list[PutResult] | None
            putting = self._opened().submit(Kind.FAST, fast.put, (self._memory, specs, watch))
            if len(specs) > _MANY:
                time.sleep(_HANDOVER_S)  # noqa: ASYNC251 - not to wait, but to switch threads
            done = await putting
            if done is not None:
                return done
        try:
            return await super().put(specs, flow=flow, last=last)
        except StoreUnavailable as e:
            cause = e.__cause__
            if isinstance(cause, StatementFailed) and failures.waited_for_row(cause):
                raise failures.id_or_lock_held() from cause
            raise

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        self._opened().settles = True  # a worker's exchanges may use two connections
        if not self._fast or not fast.may_exchange(self._memory, outcomes, then):
            return await self._settle_generally(outcomes, worker, call, then)
        box = self._box()
        box.wake(worker).clear()
        asleep = worker in self._asleep
        args = (self._memory, outcomes, worker, call, then, box.channel, asleep)
        done: tuple[Settled, bool] | None = await self._submit(Kind.FAST, fast.exchange, args)
        if done is None:
            return await self._settle_generally(outcomes, worker, call, then)
        settled, now_asleep = done
        (self._asleep.add if now_asleep else self._asleep.discard)(worker)
        if settled.next_due_ms == 0:
            box.wake(worker).set()  # something is there that this call could not claim
        return settled

    async def _settle_generally(
        self, outcomes: Sequence[AnyOutcome], worker: str, call: str, then: Claim | None
    ) -> Settled:
        if self._memory.registered.pop(worker, None) is not None:
            self._asleep.add(worker)
        return await super().settle(outcomes, worker=worker, call=call, then=then)

    # ── callers' transactions ─────────────────────────────────────────────────────────────────────

    @property
    def log_id(self) -> str:
        """Identifies the store: no other one has this id."""
        return self._log_id()

    @property
    def clock(self) -> StoreClock:
        """The store's time. Any thread may read it."""
        return self._opened().clock

    def join(self, connection: object) -> Caller:
        """See Transactional."""
        return Caller(self, connection)

    async def prepare_for_callers(self, queue: QueueName, *, keyed: bool) -> None:
        """See Transactional."""
        if (queue, keyed) not in self._prepared:
            await self.declare(queue, QueueConfig(mode="keyed" if keyed else "plain"))
            self._prepared.add((queue, keyed))

    def forget_prepared(self, queues: Collection[QueueName]) -> None:
        """Some of these queues were removed."""
        self._prepared = {each for each in self._prepared if each[0] not in queues}

    async def completion(self, lease: LeaseRef) -> Completion:
        """See Transactional."""
        return await self._write(caller.completion, lease)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    def _opened(self) -> Connections:
        if self._connections is None:
            raise refusals.not_open()
        return self._connections

    def _is_open(self) -> bool:
        return self._connections is not None

    def _log_id(self) -> str:
        return self._opened().log

    def _tx(self, link: Link, now: int, ahead: int, writes: bool) -> PostgresTx:
        assert self._connections is not None
        self._memory.incarnation = self._connections.incarnation
        return PostgresTx(link, now, self._memory, ahead, writes=writes)

    async def _submit(
        self, kind: Kind, work: Work[T], args: tuple[object, ...], timeout: float = 0.0
    ) -> T:
        result: T = await self._opened().submit(kind, work, args, timeout)
        return result

    def _write(self, work: Work[T], *args: object, timeout: float = 0.0) -> Coroutine[Any, Any, T]:
        if names := lock_order.queues_of(work, args):
            args, work = (names, work, *args), lock_order.run_locked
        return self._submit(Kind.WRITE, work, args, timeout)

    def _write_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        return self._write(work, *args)

    def _read(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        return self._submit(Kind.READ, work, args)

    def _read_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        return self._submit(Kind.READ, work, args)

    def _box(self) -> ChannelMailbox:
        self._opened().listening = self.address.listen
        assert self._mailbox is not None
        return self._mailbox

    def _forget(self) -> None:
        """The connection was replaced, perhaps after a replica was promoted or a backup restored.

        Queues may have other numbers, and jobs may wait again where claims have found nothing."""
        self._memory.plain.clear()
        self._memory.floors.stop()

    def _listen_after_loss(self) -> None:
        """The connection was replaced: notices are lost, and so may be the registrations."""
        self._memory.registered.clear()
        if self._mailbox is not None and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._listen_again(self._mailbox))

    async def _listen_again(self, box: ChannelMailbox) -> None:
        try:
            if topics := box.topics:
                await self._write(signals.listen, topics, box.address)
        except JobqError as e:  # the connection is lost again; its replacement brings us back here
            log.warning("cannot listen at %s again: %s", self.url, e)
        finally:
            self._again = None
            box.signal_all()


async def _closed(connections: Connections) -> None:
    await asyncio.get_running_loop().run_in_executor(None, connections.close)
