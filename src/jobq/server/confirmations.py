"""Releases jobs that were pushed to workers and that no worker has received. See `pushed.py`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence

from grpc import StatusCode

from jobq.access.guard import GuardedStore
from jobq.core.records import AnyOutcome, Lease, LeaseRef, Release
from jobq.engine.service import Outage
from jobq.errors import StoreUnavailable
from jobq.server.context import ServerContext
from jobq.server.handlers import Refused
from jobq.server.pushed import Push, Pushed, Worker, is_unheard
from jobq.server.streams import JobStream
from jobq.server.tasks import Tasks

log = logging.getLogger("jobq.server")

REPORTS = "/1"
"""The lane of calls that report and release (core.records.lane_of). Streams claim in lane 0."""


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
