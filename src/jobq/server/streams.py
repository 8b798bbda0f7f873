"""One job stream: claims jobs within a worker's credit, pushes them, reports cancellations.

The stream waits for whichever comes first: credit, a wake-up of the store, a cancel, or the time
to say that it is alive. A claim is never cancelled: if the stream ends while a claim is under way,
its jobs were not sent, and the server releases them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple

from grpc import StatusCode

from jobq.core.records.jobs import Claim, Lease, LeaseRef, QueueName, Settled, Topic
from jobq.core.records.workers import WorkerRequest
from jobq.core.rules.fleet import Pace, in_turns
from jobq.engine.service import Outage
from jobq.errors import InvalidJob, StoreUnavailable
from jobq.rpc import convert_workers as convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.handlers import Refused
from jobq.server.pushed import Pushed, Worker
from jobq.server.sessions import Session
from jobq.stores.base import Store

# How many jobs the server may claim for a job stream now, and whether that claim is alone. Pure.
#
# A worker grants credits: each is a free slot. The server claims at most as many jobs as the worker
# has granted, and a pushed job uses one credit until the worker grants it again, when the job has
# ended. So the server also knows how many jobs the worker runs.
#
# A job on its last chance (core/rules/outcomes.py) is pushed alone, as the stream's whole credit:
#
# - If the store reports that such a job is next, the stream claims nothing until the worker runs
#   nothing, for one lease at most. Then it claims alone.
# - While the job runs, the stream claims nothing, for `LAST_CHANCE_S` at most. The credits that the
#   worker grants meanwhile are kept.
#
# Times are seconds of a monotonic clock, which the caller passes in.

LAST_CHANCE_S = 60.0
"""Seconds without claims while a job on its last chance runs. A worker of jobq waits as long."""
MAX_CREDITS = 100_000
"""Credits of one stream, as many as a worker may run jobs at once (core/records/workers.py)."""


class Allowance(NamedTuple):
    """What the next claim may ask for."""

    limit: int
    alone: bool


class Credits:
    """The credits of one job stream."""

    def __init__(self, *, lease_s: float, running: int = 0) -> None:
        """`running` is how many jobs the worker ran when it opened the stream."""
        self.free = 0
        """Credits that no job uses."""
        self.running = running
        """Jobs that the worker has not ended, as far as its grants tell."""
        self._lease_s = lease_s
        self._wait_until: float | None = None  # a job on its last chance is next
        self._alone_until: float | None = None  # a job on its last chance runs

    def open_with(self, credits: int) -> None:
        """Take the credits of the first message: free slots, beside the jobs that already run."""
        self.free = min(MAX_CREDITS, max(0, credits))

    def grant(self, credits: int) -> None:
        """The worker has freed this many slots."""
        self.free = min(MAX_CREDITS, self.free + max(0, credits))
        self.running = max(0, self.running - max(0, credits))
        if self.running == 0:
            self._alone_until = None

    def allowance(self, now: float) -> Allowance | None:
        """What the stream may claim now. None: nothing."""
        if self.free == 0:
            return None
        if self._alone_until is not None and now < self._alone_until:
            return None
        if self._wait_until is not None:
            if self.running and now < self._wait_until:
                return None
            return Allowance(self.free, alone=True)
        return Allowance(self.free, alone=self.running == 0)

    def claimed(self, jobs: int, now: float, *, last_chance: bool, next_is: bool) -> None:
        """Record the reply to a claim.

        `last_chance`: the job that was claimed is on its last chance. `next_is`: the store has
        such a job for a claim that is alone.
        """
        self.free = max(0, self.free - jobs)
        self.running += jobs
        if last_chance:
            self._wait_until, self._alone_until = None, now + LAST_CHANCE_S
        elif next_is and self._wait_until is None:
            self._wait_until = now + self._lease_s
        else:
            self._wait_until = None  # another worker has the job, or this claim was its turn

    def changes_at(self) -> float | None:
        """When `allowance` may change although nothing is granted. None: never."""
        if self.free == 0:
            return None
        times = [time for time in (self._wait_until, self._alone_until) if time is not None]
        return min(times, default=None)


# Which running jobs of a worker were cancelled, as soon as the store signals it.

_MAX_RUNNING = 10_000
"""Jobs that are remembered, to name their leases in a cancel. Heartbeats find all others."""


class Cancels:
    """The running jobs of one job stream. Heartbeats find cancels whose signals are missed."""

    def __init__(
        self,
        store: Store,
        worker: str,
        running: Iterable[LeaseRef],
        on_cancel: Callable[[LeaseRef], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_cancel = on_cancel
        self._running = {(ref.queue, ref.id): ref for ref in running}

    def started(self, refs: Iterable[LeaseRef]) -> None:
        """These jobs were pushed to the worker."""
        self._running.update({(ref.queue, ref.id): ref for ref in refs})
        while len(self._running) > _MAX_RUNNING:
            del self._running[next(iter(self._running))]

    def ended(self, refs: Iterable[LeaseRef]) -> None:
        """These runs have ended."""
        for ref in refs:
            self._running.pop((ref.queue, ref.id), None)

    async def run(self) -> None:
        """Listen until cancelled."""
        outage = Outage(f"cancels of worker {self._worker}")
        while True:
            try:
                topics = [Topic("cancel", None, self._worker)]
                async with self._store.listen(topics) as signals:
                    outage.over()
                    async for signal in signals:
                        ref = self._running.get((signal.queue, signal.job or ""))
                        if ref is not None:
                            self._on_cancel(ref)
                rest = 1.0
            except Exception as error:
                rest = outage.failed(error)
            await asyncio.sleep(rest)


MAX_PUSH = 100
"""Jobs of one claim, and so of one message. A worker with more credit gets several messages."""
POLL_MS = 5_000
"""How often an idle stream claims even if nothing wakes it, because signals can be lost."""
ALIVE_S = 5.0
"""Seconds between messages that only say that the stream is alive."""
_EXCHANGE_S = 30.0
"""Seconds after which a claim without a reply is repeated, under the same name."""
_CONFIRM_S = 2.0
"""Seconds that a worker gets to confirm jobs before the server stops."""

_STOPPING = frozenset({"drain", "shutdown", "shutdown-now"})
"""Requests of an operator after which a worker gets no jobs."""


class Beats:
    """How often each side of a stream says that it is alive, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self.every = min(ALIVE_S, lease_s / 3)
        self.deaf = 3 * self.every
        """A stream that is silent for this long has ended."""


class JobStream:
    """The job stream of one worker."""

    def __init__(
        self,
        store: Store,
        session: Session,
        *,
        lease_ms: int,
        running: Sequence[LeaseRef],
        credit: int,
        pushed: Pushed,
        pace: Pace,
        on_push: Callable[[], object],
        beat: Callable[[JobStream], object],
        release: Callable[[asyncio.Future[Sequence[Lease]]], object],
        check_proof: Callable[[], object],
    ) -> None:
        """`beat` announces the worker to the store when its heartbeats come another way. `release`
        releases jobs that were claimed and not sent. `on_push` is called when jobs were pushed.
        `check_proof` raises when the worker's token or certificate has expired."""
        self.session = session
        self.worker = Worker(session.tenant, session.worker)
        self.heard_at = time.monotonic()
        """When the worker last sent something on this stream."""
        self.beaten_at = time.monotonic()
        """When the worker was last announced to the store through this server."""
        self.credits = Credits(lease_s=lease_ms / 1000, running=len(running))
        self.credits.open_with(credit)
        self._store = store
        self._lease_ms = lease_ms
        self._beats = Beats(lease_ms / 1000)
        self._pushed = pushed
        self._pace = pace
        self._on_push, self._beat, self._release = on_push, beat, release
        self._check_proof = check_proof
        self._orders = in_turns(session.queue_names)
        self._turn = 0
        self._bell = asyncio.Event()
        self._end: Exception | None = None
        self._closed = False  # the worker has closed its side
        self._stop_at: float | None = None  # the server stops
        self.paused = False
        """Whether the worker takes no jobs for now."""
        self._draining = False  # by an operator
        self._request: str = ""
        self._unsent = pb.StreamJobsResponse()  # what the next message says, beside jobs
        self._leases: list[Lease] = []  # claimed, not sent
        self._claiming: asyncio.Task[Settled] | None = None
        self._nap: asyncio.Task[None] | None = None
        self._min_nap_ms = 1
        self._call = f"{secrets.token_hex(8)}."
        self._calls = 0
        self._stirs = 0  # how often a call under the worker's name has ended its sleep
        self._cancels = Cancels(store, session.worker, running, self._cancelled)
        self._outage = Outage(f"job stream of worker {session.worker}")

    # ── what others tell the stream ──

    def end(self, error: Exception) -> None:
        """End the stream with this status."""
        if self._end is None:
            self._end = error
        self._bell.set()

    def close(self) -> None:
        """End the stream without an error: its worker leaves."""
        self._closed = True
        self._bell.set()

    def stop(self) -> None:
        """The server stops: push nothing more, and end when the worker has confirmed its jobs."""
        self._stop_at = time.monotonic() + _CONFIRM_S
        self._bell.set()

    def stir(self) -> None:
        """Claim again. A call under the worker's name has ended its sleep in the store."""
        self._stirs += 1
        self._wake_up()
        self._bell.set()

    def heartbeat(self, request: WorkerRequest | None, *, paused: bool) -> None:
        """The worker was announced to the store. An operator may ask something of it."""
        self.beaten_at = time.monotonic()
        self.paused = paused
        if request is not None and request != self._request:
            self._request = self._unsent.request = request
            if request in _STOPPING or request == "resume":
                self._draining = request != "resume"
        self._bell.set()

    def _cancelled(self, ref: LeaseRef) -> None:
        self._unsent.cancelled.append(convert.ref(ref))
        self._bell.set()

    # ── the stream ──

    async def replies(
        self, requests: AsyncIterator[pb.StreamJobsRequest]
    ) -> AsyncIterator[pb.StreamJobsResponse]:
        """The messages to the worker, until the stream ends."""
        tasks = [
            asyncio.create_task(self._read(requests), name="jobq job stream, reader"),
            asyncio.create_task(self._cancels.run(), name="jobq job stream, cancels"),
        ]
        sent_at = time.monotonic() - self._beats.every  # the first message says: the stream is open
        try:
            while True:
                self._bell.clear()
                now = time.monotonic()
                self._check(now)
                if self._closed:
                    return
                message = self._message(now)
                if message is None and now - sent_at >= self._beats.every:
                    message = pb.StreamJobsResponse()
                    self._check_proof()
                    self._announce(now)
                if message is not None:
                    sent_at = now
                    yield message
                    continue
                self._claim(now)
                await self._wait(min(sent_at, self.heard_at + 2 * self._beats.every))
        finally:
            for task in tasks:
                task.cancel()
            self._leave()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self, now: float) -> None:
        """Raise if the stream ends now."""
        if self._end is not None:
            raise self._end
        if now - self.heard_at >= self._beats.deaf:
            raise Refused(
                StatusCode.UNAVAILABLE,
                f"the worker sent nothing for {self._beats.deaf:g} s: open another stream, and "
                "answer each message without a field with one",
            )
        if self._stop_at is not None and (
            now >= self._stop_at or not self._pushed.count(self.worker)
        ):
            raise Refused(StatusCode.UNAVAILABLE, "the server stops: open a stream to another one")

    async def _wait(self, since: float) -> None:
        """Wait for the bell, or until the stream has to say or check something."""
        now = time.monotonic()
        times = [since + self._beats.every, self.credits.changes_at(), self._stop_at]
        until = min(time for time in times if time is not None)
        try:
            async with asyncio.timeout(max(0.0, until - now)):
                await self._bell.wait()
        except TimeoutError:
            pass

    def _message(self, now: float) -> pb.StreamJobsResponse | None:
        """The next message, if there is something to say."""
        if not self._leases and not self._unsent.ByteSize():
            return None
        message, self._unsent = self._unsent, pb.StreamJobsResponse()
        jobs = convert.that_fit(self._leases)
        leases, self._leases = self._leases[: len(jobs)], self._leases[len(jobs) :]
        if leases:
            refs = [(LeaseRef(each.queue, each.id, each.token), each.started_ms) for each in leases]
            self._cancels.started(ref for ref, _ in refs)
            self._pushed.push(
                self.worker,
                refs,
                incarnation=self.session.incarnation,
                now=now,
                lease_s=self._lease_ms / 1000,
            )
            self._on_push()
            message.jobs.extend(jobs)
        return message

    def _announce(self, now: float) -> None:
        """Announce the worker if its heartbeats do not come to this server."""
        if now - self.beaten_at > 1.5 * self._beats.every:
            self._beat(self)

    # ── claiming ──

    def _claim(self, now: float) -> None:
        """Start a claim, if one is allowed and there may be something to claim."""
        if self._claiming is not None or self._leases:
            return
        stopped = self.paused or self._draining or self._stop_at is not None
        allowed = None if stopped else self.credits.allowance(now)
        if allowed is None:
            self._wake_up()
            return
        if self._nap is not None and not self._nap.done():
            return
        self._wake_up()
        self._turn = (self._turn + 1) % len(self._orders)
        claim = Claim(
            queues=self._orders[self._turn],
            limit=min(allowed.limit, MAX_PUSH),
            lease_ms=self._lease_ms,
            alone=allowed.alone,
        )
        self._claiming = asyncio.create_task(self._exchange(claim), name="jobq job stream, claim")
        stirs = self._stirs
        self._claiming.add_done_callback(lambda task: self._claimed(task, stirs))

    async def _exchange(self, claim: Claim) -> Settled:
        """Claim, repeating a call that gets no reply under the same name."""
        self._calls += 1
        call = f"{self._call}{self._calls}"
        while True:
            try:
                async with asyncio.timeout(_EXCHANGE_S):
                    settled = await self._store.settle(
                        [], worker=self.session.worker, call=call, then=claim
                    )
            except (StoreUnavailable, TimeoutError) as error:
                await asyncio.sleep(self._outage.failed(error))
            else:
                self._outage.over()
                return settled

    def _claimed(self, task: asyncio.Task[Settled], stirs: int) -> None:
        """Take the reply to a claim. `stirs`: as it was when the claim was sent."""
        if self._claiming is not task:
            return  # the stream has ended: `_leave` has passed the claim on
        self._claiming = None
        self._bell.set()
        try:
            settled = task.result()
        except Exception as error:
            self.end(error)
            return
        leases = list(settled.leases)
        self._leases += leases
        self.credits.claimed(
            len(leases),
            time.monotonic(),
            last_chance=any(lease.last_chance for lease in leases),
            next_is=settled.last_chance,
        )
        if leases:
            self._min_nap_ms = 1
        elif settled.asleep and stirs == self._stirs:
            self._fall_asleep(settled.next_due_ms)

    def _fall_asleep(self, next_due_ms: int | None) -> None:
        poll_ms, min_ms = int(POLL_MS * self._pace.stretch), self._min_nap_ms
        timeout_ms = poll_ms if next_due_ms is None else max(min_ms, min(next_due_ms, poll_ms))
        # If the store keeps saying that a job is due now, but none can be claimed, sleep longer
        # each time (up to 100 ms) instead of spinning.
        self._min_nap_ms = min(100, 2 * min_ms) if timeout_ms == min_ms else 1
        queues, slots = self._orders[self._turn], max(1, self.credits.free)
        self._nap = asyncio.create_task(
            self._sleep(queues, slots, timeout_ms), name="jobq job stream, sleep"
        )
        self._nap.add_done_callback(lambda _: self._bell.set())

    async def _sleep(self, queues: Sequence[QueueName], slots: int, timeout_ms: int) -> None:
        try:
            await self._store.sleep(
                queues, worker=self.session.worker, slots=slots, timeout_ms=timeout_ms
            )
        except Exception as error:
            await asyncio.sleep(self._outage.failed(error))

    def _wake_up(self) -> None:
        if self._nap is not None:
            self._nap.cancel()
            self._nap = None

    def _leave(self) -> None:
        """Pass on jobs that were not sent, and leave the store's sleepers."""
        asleep = self._nap is not None
        self._wake_up()
        claiming, self._claiming = self._claiming, None
        loop = asyncio.get_running_loop()
        if claiming is not None:
            unsent: asyncio.Future[Sequence[Lease]] = loop.create_future()
            claiming.add_done_callback(lambda task: unsent.set_result(_leases_of(task)))
            self._release(unsent)
        elif self._leases or asleep:
            unsent = loop.create_future()
            unsent.set_result(tuple(self._leases))
            self._release(unsent)
        self._leases = []

    # ── the worker's messages ──

    async def _read(self, requests: AsyncIterator[pb.StreamJobsRequest]) -> None:
        """Take credit and confirmations. The worker ends the stream by closing its side."""
        try:
            async for request in requests:
                self.heard_at = time.monotonic()
                self._take(request)
            self.close()
        except Exception as error:
            self.end(error)

    def _take(self, request: pb.StreamJobsRequest) -> None:
        if request.HasField("open"):
            raise InvalidJob("open is for the first message of a stream only")
        if request.received:
            refs = convert.lease_refs(request.received, self.session.tenant, "received")
            self._pushed.confirm(self.worker, refs)
        if request.credit:
            self.credits.grant(check_credit(request.credit))
            self._wake_up()
        if request.credit or self._stop_at is not None:
            self._bell.set()

    def ended(self, refs: Sequence[LeaseRef]) -> None:
        """These runs have ended, as their worker has reported."""
        self._cancels.ended(refs)


def check_credit(credit: int) -> int:
    """Credits that a worker grants."""
    if not 0 <= credit <= MAX_CREDITS:
        raise InvalidJob(f"credit={credit} is out of range: it must be from 0 to {MAX_CREDITS}")
    return credit


def _leases_of(task: asyncio.Task[Settled]) -> Sequence[Lease]:
    return () if task.cancelled() or task.exception() is not None else task.result().leases
