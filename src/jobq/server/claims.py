"""WorkerService.Claim: a claim of its own, outside of a job stream."""

from __future__ import annotations

import asyncio
import hashlib
import time

from jobq.access.guard import GuardedStore
from jobq.core import checks
from jobq.core.records import Claim, LeaseRef, QueueName, Settled
from jobq.errors import InvalidJob, JobqError
from jobq.rpc import convert_workers as convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.confirmations import Confirmations
from jobq.server.handlers import Caller
from jobq.server.sessions import check_worker, made_name
from jobq.server.tasks import Tasks

MAX_WAIT_MS = 50_000
"""How long a Claim may wait for jobs. Proxies cut calls that take a minute."""
_LANE = "/2"
"""The lane of one-shot claims (core.records.lane_of). Streams claim in lane 0."""


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
