"""The Store contract. A store keeps jobs; everything else in jobq is built on these calls.

Each docstring is the contract and stores/conformance holds every store to it. The rules that hold for all calls:

- **Batch-shaped and bounded.** A call's cost follows the size of its arguments (or its `limit`), never the backlog.
- **Atomic per queue.** A call that names one queue happens whole or not at all; with several, each queue for itself.
- **Recorded.** Every transition goes into the queue's event log in the same atomic step, and is one of `core.states`.
- **One clock.** The store's own, or the `clock` given to `open_store`, decides what is due and what has expired.
  Expiry is compared when read: a record past its time is gone, whether or not a sweep has come by.
- **Safe to repeat.** After `StoreUnavailable` nobody knows whether the call acted; repeating it with the same arguments
  does not act twice (ids make `put` so, `call` makes `settle` so, the rest is idempotent).
- **No driver type crosses the seam**, and every wait has a timeout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self, cast

from jobq.core.commands import Altered, AnyCommand
from jobq.core.event_records import EventPage
from jobq.core.holds import LISTED
from jobq.core.queues import (
    Fire,
    HoldsRecord,
    Limits,
    MinuteRecord,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
    StatsRecord,
)
from jobq.core.records import (
    AnyOutcome,
    Claim,
    Filter,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    LeaseState,
    Note,
    Page,
    PutResult,
    QueueName,
    Settled,
    Signal,
    Topic,
)
from jobq.core.states import State
from jobq.core.workers import Beat, WorkerRecord, WorkerRequest

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


class HotStore(Protocol):
    """What runs for every job."""

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. The answers stand in the order of the specs.

        An id whose record lives is a duplicate: nothing changes and the job found is returned; a cancelled one is free
        (life+1), and so is one whose retention has passed. A unique lock that is held answers by its mode. A job with
        `after` is blocked until those have ended (ids not yet known among them are refused with InvalidJob); one with
        a delay or time is delayed; the others are waiting, behind those of their priority, or in front with `lifo`.
        A job with a key fixes an unset mode to keyed, one without to plain; a job of the other kind is a ConfigError.
        A cost above the capacity of the bucket that would pay for it is InvalidJob.

        A queue with `max_waiting` refuses new jobs beyond it, each for itself: the answer of a refused spec has
        `full` set to that number and `state` None, nothing of it is stored, and the rest of the call is not affected
        (core/bounds.py says what counts and who is never refused). If some specs of the call wait for others of them
        and not all fit, the whole call is refused so. A partition holds an equal share of the number, rounded up.

        With `flow`, the specs (at least one; else InvalidJob) are staged under that id and invisible until a call with
        `last` submits all of them, whichever queues they are in, by one decision: before it none of them is ever seen;
        after it all of them are, when the call returns at the latest, or by ticks if its caller died. Where that takes
        several steps each is bounded, and no job starts before those that wait for it are in. A flow never finished is
        swept (finishing it then is InvalidJob). The same flow finished again changes nothing.
        Members take their places under `max_waiting` when they are staged. QueueFull if those of the call do not all
        fit; like any other refusal of a call of the flow, it discards the flow, and the places it had are free again.
        So does the sweep.
        """
        ...

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """End runs, then claim more: the one exchange of a working worker.

        An outcome whose token is not (any more) the job's lease changes nothing and is named in `stale`. A job that was
        asked to cancel ends as completed if it completed, otherwise as cancelled, whatever the outcome says.
        The end of a job releases its unique lock and its key's and queue's slots, and tells the jobs that wait for it.

        Claiming first promotes what is due and repairs expired leases of those queues (bounded), then takes up to
        `then.limit` jobs: highest priority first, in line order, as limits allow; from keyed queues one per key in
        turn. A paused queue is promoted and repaired, not claimed from. Jobs past their ttl fail as `expired` instead.
        A claimed job is active: attempt+1, under a token of this claim, until `lease_ms` from now.
        A job on its last chance (`core.stalls`) is the only lease of the whole reply, or the claim ends before it: `last_chance`.
        If it is at the head of the first queue that has jobs to claim, it is claimed: no claim is empty because of it.

        `call` names the exchange, unique for the worker: repeated, it answers as the first time (the same stale ones,
        the leases it granted) and does nothing. A call belongs to a lane, which its name may tell (`core.records.lane_of`).
        A worker has one exchange under way at a time in each lane, and the store remembers the last call of each lane.
        A worker that is told it is `asleep`, because there was nothing to claim, counts as such until its next exchange: work
        that arrives wakes it (see `sleep`). If the call settles nothing and finds nothing to claim, `asleep` is True.
        """
        ...

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases to `lease_ms` from now; the answers stand in their order."""
        ...

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """Store progress (the last one), log lines (the last 1,000 per job) and saved state of running jobs.

        Returns the state of each lease, in order, as `extend` does; it renews none of them. Under a lost lease nothing is
        stored. Saved state is as durable as an outcome that `settle` has accepted. None of this is in the event log."""
        ...


class SignalStore(Protocol):
    """Being told instead of asking. Signals can be lost: whoever waits also looks, slowly."""

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """Wait until there may be work in one of the queues (True), or for the timeout (False).

        Work that arrived since the worker's last exchange found nothing is not missed. n jobs becoming waiting wake
        workers with about n free slots between them, not all. If those do not come for the work (they are frozen, or dead),
        another sleeper wakes within about a second.
        """
        ...

    def listen(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """Signals for these topics from the moment the context is entered. Look at the state after entering, then wait."""
        ...


class OperatorStore(Protocol):
    """What people and their tools do to jobs and queues.

    What changes a queue is recorded in shard 0 of its log, as an event of a `QueueKind` without a job. A call that changes
    nothing records nothing. `actor` is who made the call, in the caller's words (at most 256 characters). It is part of those
    events, and of the events of the jobs that the call cancels.
    """

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands on single jobs, in order. The answers are in the order of the commands: `done`, `late` (the job
        is not in a state for it) or `missing` (no such job, or its retention has passed)."""
        ...

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """Store what code says about the queue and answer what is in force.

        ConfigError: another mode than stored; the same limits_version with other limits; other partitions. A lower
        limits_version is ignored; a higher one replaces the limits, also those changed at run time. A queue with
        partitions has its mode from the start: plain, unless declared keyed. `max_stalls` is merged into what is stored, and
        holds for all jobs of those tasks that have none of their own, also those put before.
        """
        ...

    async def set_limits(
        self,
        queue: QueueName,
        limits: Limits | None,
        *,
        key: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Change limits at run time, for the queue or for one key; None goes back to what is declared.

        Also lifts holds: a key's limits that of the key, the queue's limits those of the queue and of all its keys."""
        ...

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Nothing more is claimed from the queue; all else goes on."""
        ...

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Claims go on; sleeping workers hear of it. Lifts a hold of the queue as well."""
        ...

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """Claim nothing of the queue, or of one key, for `ms` from now. Running jobs go on; of two holds the later end stays.

        ConfigError for a key of a plain queue. The outcome `Hold` does the same for the key or queue of its job (of a
        partitioned queue, for the partition of an unkeyed job). core/holds.py has the rule."""
        ...

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        """Lift the hold of the queue, or of one key, and wake workers. False if there is none."""
        ...

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Cancel up to `limit` waiting (and delayed and blocked, with `delayed`) jobs as `removed`; how many it were."""
        ...

    async def purge_ended(
        self,
        queue: QueueName,
        state: State,
        *,
        older_than_ms: int = 0,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Remove up to `limit` ended records of a state, oldest first, that ended at least that long ago."""
        ...

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """Remove everything of the queue, up to `limit` jobs at a time; True when nothing is left.

        With active jobs: ConfigError, unless forced (their leases are then lost). Events that are kept stay readable.
        """
        ...


class ScheduleStore(Protocol):
    """Jobs that come by the clock."""

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """Store a schedule. The same spec again keeps its counts and next time; another one starts anew (a pause stays)."""
        ...

    async def drop_schedule(self, queue: QueueName, id: str, *, actor: str | None = None) -> bool:
        """Forget a schedule; the jobs it made stay. False: there is no such schedule."""
        ...

    async def pause_schedule(
        self, queue: QueueName, id: str, *, paused: bool, actor: str | None = None
    ) -> Altered:
        """Stop or go on firing; a paused schedule's times pass as missed. `late`: it is paused, or not, already."""
        ...

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """Schedules of a queue or of all; with `due`, only those whose next time has come and that are not paused."""
        ...

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """Make the jobs of due schedules. Compare and set on the next time, so each fires once among any number of callers.

        If the queue is full (`max_waiting`), the schedule has fired and goes on to its next time, but there is no job of
        this time: the event `missed` is in the log instead.
        """
        ...


class ReadStore(Protocol):
    """Looking."""

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """The jobs as they are now, in order; None where there is none.

        With them come their last failed runs (`JobRecord.errors`): a stall, a timeout and a crash count, being expired or
        cancelled does not. They are kept across reruns and removed with the record. The store sets the attempt, the worker
        and the time of each."""
        ...

    async def find(self, filter: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """Jobs of a queue, newest first within a state, without their `errors`. Looks at a bounded number of records per call."""
        ...

    async def count(self, queue: QueueName) -> dict[State, int]:
        """How many jobs stand where, kept as counters: asking costs the same at any backlog."""
        ...

    async def stats(self, queue: QueueName) -> StatsRecord:
        """The queue at a glance."""
        ...

    async def holds(self, queue: QueueName, *, limit: int = LISTED) -> HoldsRecord:
        """What is held, by an operator or by outcomes: the queue, and up to `limit` of its keys, those that end first."""
        ...

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """The last minutes, oldest first, with empty ones left out. A day is kept."""
        ...

    async def logs(self, job: JobKey) -> list[str]:
        """A job's log lines, oldest first."""
        ...

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        """The queues there are, with what is stored about them."""
        ...


class PresenceStore(Protocol):
    """Which workers there are, what operators ask of them, and which one of them does the upkeep."""

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """A worker announces itself for `ttl_ms`. The answer is what an operator last asked of it, and the size of the fleet.

        A name belongs to one incarnation at a time. While another one's last beat is not older than its ttl, nothing is
        stored and the answer is `displaced`; with `displace` the name is taken from it. A new incarnation inherits no request.
        The size is at least the number of live workers: one that died counts until a tick."""
        ...

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """Forget a worker: it is no longer listed, and no work wakes it. Its leases expire by themselves.
        With `incarnation`: unless another incarnation has the name by now."""
        ...

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """Workers whose last `beat` is not older than its ttl, by name; of one queue, or all."""
        ...

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """Leave a request for a worker, which its next beats return until another one takes its place, so that a lost reply
        loses no request. False: there is no such worker."""
        ...

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """Hold the office `name` for `ttl_ms`: True for one `who` at a time, which renews by asking again."""
        ...


class EventStore(Protocol):
    """The log of everything that happened, per queue.

    The events of each shard of a log (a partition of the queue; 0 for one that has none) are numbered from 1 without gaps,
    `obliterate` or not. An event id is never given to another event, even if the store has lost its last writes: ids then
    differ where numbers repeat.
    """

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """Events after a position, about `limit` of them. None: nothing yet, only the present end; "0": from the oldest kept.

        A position has the form of `core.event_log.places` on every store, and a place for each shard of the log. With `until`, a
        position that the log has reached, no event past it is returned, and an empty page says that all were read."""
        ...

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """Register `reader`, or move it on to `position`; answers where it stands. What it has not acknowledged is kept,
        up to the log's hard cap; whoever comes from before what is kept reads a `gap` event first. None asks only."""
        ...

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """The registered readers, and where each stands."""
        ...

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """Keep nothing for this reader any more: it will not come back. False if there is none of that name."""
        ...


class LifecycleStore(Protocol):
    """Opening, closing, upkeep. A handle belongs to the event loop that first awaits it; another loop opens another handle."""

    async def migrate(self) -> None:
        """Connect, and bring the schema up to date. Every other call needs it first. Idempotent, safe in parallel."""
        ...

    async def aclose(self) -> None:
        """Give back what the handle holds. Nothing stored changes."""
        ...

    async def tick(self, *, limit: int = 500) -> int:
        """Upkeep in all queues, at most `limit` steps: promote, repair, expire, apply retention, sweep, trim the log.

        Answers how many steps it took; `limit` means there is more to do."""
        ...

    async def __aenter__(self) -> Self:
        """Migrate."""
        ...

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close."""
        ...


class Store(
    HotStore,
    SignalStore,
    OperatorStore,
    ScheduleStore,
    ReadStore,
    PresenceStore,
    EventStore,
    LifecycleStore,
    Protocol,
):
    """All of it. `url` is where it keeps jobs, with passwords left out."""

    url: str


class Pipelined(Protocol):
    """What a store may offer besides: ways to have it work while its caller does. All three, or none.

    Nothing depends on it for being correct, so the rest of jobq asks `pipeline_of(store)` and does without if it is None.
    """

    @property
    def lanes(self) -> int:
        """How many exchanges of a worker, and puts of a producer, are worth having under way at a time."""
        ...

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """The same specs, encoded ahead for a `put` of exactly these: done while another put is under way."""
        ...

    def expect(self, job: JobKey) -> AbstractAsyncContextManager[AsyncIterator[JobRecord | None]]:
        """Hear of the end of a job that this handle puts while the context lasts: request and response without a call to
        register. Yields the record of the ended job, or None if the store only knows that the job has ended.

        A job that was stored before (a duplicate) is not heard of; use `listen` for it."""
        ...


def pipeline_of(store: object) -> Pipelined | None:
    """The store as one that is `Pipelined`; None if it is not."""
    return cast(Pipelined, store) if hasattr(store, "lanes") else None
