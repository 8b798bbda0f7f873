"""Claims outside of a job stream, and the release of pushed jobs that no worker has received."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence

from grpc import StatusCode

from jobq.access.guarded.store import GuardedStore
from jobq.core.records.jobs import AnyOutcome, Claim, Lease, LeaseRef, QueueName, Release, Settled
from jobq.core.values import checks
from jobq.engine.service import Outage
from jobq.errors import InvalidJob, JobqError, StoreUnavailable
from jobq.rpc import convert_workers as convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.context import ServerContext, Tasks
from jobq.server.handlers import Caller, Refused
from jobq.server.pushed import Push, Pushed, Worker, is_unheard
from jobq.server.sessions import check_worker, made_name
from jobq.server.streams import JobStream

# Releases jobs that were pushed to workers and that no worker has received. See `pushed.py`.

log = logging.getLogger("jobq.server")

REPORTS = "/1"
"""The lane of calls that report and release (core.records.jobs.lane_of). Streams claim in lane
0."""


class Confirmations:
    """The jobs of all workers that were pushed and are not confirmed."""

    def __init__(
        self, context: ServerContext, streams: Mapping[Worker, JobStream], tasks: Tasks
    ) -> None:
        """`streams` are those that the service serves now."""
        self.pushed = Pushed()
        self.name = f"jq-server-{secrets.token_hex(6)}"
        """The worker in whose name the server releases jobs."""
        self.stopping = False
        self._store = context.store
        self._lease_s = context.settings.lease_ms / 1000
        self._streams = streams
        self._tasks = tasks
        self._heard: dict[Worker, float] = {}  # last heartbeats of workers with unconfirmed jobs
        self._releaser: asyncio.Task[None] | None = None

    def heartbeat(self, worker: Worker, running: Collection[LeaseRef]) -> None:
        """A worker has said which jobs it runs."""
        self.pushed.confirm(worker, running)
        if self.pushed.count(worker):
            self._heard[worker] = time.monotonic()
        else:
            self._heard.pop(worker, None)

    def expect(self) -> None:
        """Jobs were pushed: release those that are not confirmed in time."""
        if self._releaser is None or self._releaser.done():
            self._releaser = self._tasks.spawn(self._release_unconfirmed())

    async def _release_unconfirmed(self) -> None:
        """Release pushed jobs that are not confirmed when their leases are about to end."""
        while (due := self.pushed.next_due()) is not None:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.stopping:
                return
            late = self.pushed.due(time.monotonic())
            if late:
                await self._release_late(late)

    async def _release_late(self, late: dict[Worker, list[Push]]) -> None:
        try:
            seen = {each.incarnation: each.seen_ms for each in await self._store.workers()}
        except StoreUnavailable as error:
            log.warning("pushed jobs that nobody confirmed return as stalled: %s", error)
            return
        for worker, pushes in late.items():
            heard = self._heard.pop(worker, None)
            unheard = [
                push.lease
                for push in pushes
                if is_unheard(
                    push,
                    heard_here=heard,
                    seen_ms=seen.get(push.incarnation),
                    lease_s=self._lease_s,
                )
            ]
            await self.release(unheard)
            stream = self._streams.get(worker)
            if stream is not None:
                stream.end(
                    Refused(
                        StatusCode.UNAVAILABLE,
                        f"{len(pushes)} jobs were not confirmed before their leases ended: open "
                        "another stream, and name each job in `received` when it arrives",
                    )
                )

    async def release(self, leases: Sequence[LeaseRef]) -> None:
        """Release jobs that were pushed and that no worker runs. An error costs them a stall."""
        if not leases:
            return
        log.info("releasing %d jobs that no worker has received", len(leases))
        outcomes: list[AnyOutcome] = [
            Release(queue=each.queue, id=each.id, token=each.token) for each in leases
        ]
        try:
            await self._store.settle(outcomes, worker=self.name, call=secrets.token_hex(8))
        except StoreUnavailable as error:
            log.warning("pushed jobs that nobody confirmed return as stalled: %s", error)

    async def release_unsent(
        self, store: GuardedStore, worker: Worker, unsent: Awaitable[Sequence[Lease]]
    ) -> None:
        """Release jobs that a stream has claimed and not sent, and stop waking its worker."""
        leases = await unsent
        outcomes = [Release(queue=each.queue, id=each.id, token=each.token) for each in leases]
        if not outcomes and worker in self._streams:
            return  # the worker has another stream here, and may sleep
        outage = Outage(f"releasing jobs of worker {worker.name}")
        call = f"{secrets.token_hex(8)}{REPORTS}"
        until = time.monotonic() + self._lease_s
        while time.monotonic() < until:
            try:
                await store.settle(outcomes, worker=worker.name, call=call)
                break
            except StoreUnavailable as error:
                await asyncio.sleep(outage.failed(error))
        if worker in self._streams:
            self._streams[worker].stir()


MAX_WAIT_MS = 50_000
"""How long a Claim may wait for jobs. Proxies cut calls that take a minute."""
_LANE = "/2"
"""The lane of one-shot claims (core.records.jobs.lane_of). Streams claim in lane 0."""


class OneShotClaims:
    """Claims jobs for calls that wait for the reply."""

    def __init__(self, confirmations: Confirmations, tasks: Tasks) -> None:
        self._confirmations = confirmations
        self._tasks = tasks

    async def claim(
        self, request: pb.ClaimRequest, caller: Caller, call: str, lease_ms: int
    ) -> pb.ClaimResponse:
        """Claim jobs, and wait for them as long as the request allows. `call` is its name."""
        tenant = caller.tenant(request.tenant)
        worker = check_worker(request.worker) if request.worker else made_name()
        call = _secret(call, tenant, caller) + _LANE
        if not request.queues:
            raise InvalidJob("queues is empty: name at least one queue to claim from")
        convert.bounded(request.queues, "queues")
        claim = Claim(
            queues=tuple(
                QueueName(tenant, checks.check_queue_name(queue)) for queue in request.queues
            ),
            limit=checks.check_int(request.limit or 1, "limit", low=1, high=convert.MAX_LEASES),
            lease_ms=lease_ms,
            alone=not request.busy,
        )
        end = time.monotonic() + _patience(request.wait_ms, caller)
        while True:
            settled = await self._claim(caller, worker, call, claim, repeats=bool(request.call))
            left_ms = int((end - time.monotonic()) * 1000)
            if settled.leases or left_ms <= 0 or self._confirmations.stopping:
                break
            if settled.asleep:
                due_ms = left_ms if settled.next_due_ms is None else settled.next_due_ms
                await caller.store.sleep(
                    claim.queues,
                    worker=worker,
                    slots=claim.limit,
                    timeout_ms=max(10, min(left_ms, due_ms, 5_000)),
                )
            else:  # a job on its last chance is next, and this worker is busy
                await asyncio.sleep(min(1.0, left_ms / 1000))
        if not settled.leases:
            await self._stop_looking(caller.store, worker, call)
        jobs = convert.that_fit(settled.leases)
        refs = [LeaseRef(each.queue, each.id, each.token) for each in settled.leases[len(jobs) :]]
        await self._confirmations.release(refs)  # they are too large for one reply
        return pb.ClaimResponse(jobs=jobs)

    async def _claim(
        self, caller: Caller, worker: str, call: str, claim: Claim, *, repeats: bool
    ) -> Settled:
        """Claim. If the caller goes meanwhile and cannot repeat the call, nobody gets the jobs."""
        claiming = asyncio.ensure_future(
            caller.store.settle([], worker=worker, call=call, then=claim)
        )
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._tasks.spawn(self._release_claimed(claiming, repeats=repeats))
            raise

    async def _release_claimed(self, claiming: asyncio.Future[Settled], *, repeats: bool) -> None:
        try:
            settled = await claiming
        except JobqError:
            return  # nothing was claimed, or the store does not say
        if not repeats:
            await self._confirmations.release(
                [LeaseRef(each.queue, each.id, each.token) for each in settled.leases]
            )

    async def _stop_looking(self, store: GuardedStore, worker: str, call: str) -> None:
        """The call ends without a job: new work must not wake its worker."""
        await store.settle([], worker=worker, call=f"end-{call}")


def _patience(wait_ms: int, caller: Caller) -> float:
    """Seconds that a claim waits: a little less than until the caller's deadline."""
    seconds = checks.check_int(wait_ms, "wait_ms", high=MAX_WAIT_MS) / 1000
    left = caller.time_left()
    return seconds if left is None else min(seconds, left - 0.5)


def _secret(call: str, tenant: str, caller: Caller) -> str:
    """A name for the store that only this caller can know, and the same when it repeats the call.

    Tokens of leases contain the name. A worker may count its calls from 1, and no other tenant may
    guess the tokens.
    """
    who = caller.metadata("authorization") or caller.store.principal.subject
    text = "\0".join((who, tenant, call))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
