"""A run in a child process, as `current_job()` sees it: what needs the store asks the worker."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from jobq.core.records.jobs import Checkpoint, JobSpec, Lease, LeaseRef, PutResult, Steps
from jobq.core.rules.decide import policy_of
from jobq.core.rules.waits import Children, Inbox, RecordedSteps
from jobq.core.values.codec import get_codec
from jobq.executors.handlers import Callee
from jobq.executors.pool.inside.worker_connection import JobOver, WorkerConnection
from jobq.executors.pool.messages import AddRequest, KeepRequest, NoteRequest
from jobq.executors.running import InChild
from jobq.stores.base import Store


class RunInChild(InChild):
    """Fits `executors.running.Running`."""

    unfinished: asyncio.Future[None] | None = None
    task: asyncio.Task[None] | None = None
    completing = False
    checkpoint: Checkpoint | None = None
    saves = 0  # counted as the worker counts them
    state: Any = None  # the value of the lifespan of this process

    def __init__(
        self, n: int, lease: Lease, handler: Callee, connection: WorkerConnection, now_ms: int
    ) -> None:
        """The run of the n-th job of this child."""
        self.lease = lease
        self._n = n
        self.children = Children(lease)
        self.inbox = Inbox(lease)
        self.steps = RecordedSteps(lease)
        self._handler = handler
        self._connection = connection
        self._now_ms = now_ms
        self._since = time.monotonic()

    @property
    def ref(self) -> LeaseRef:
        """The reference of its lease."""
        return LeaseRef(self.lease.queue, self.lease.id, self.lease.token)

    @property
    def now_ms(self) -> int:
        """The store's time, estimated."""
        return self._now_ms + int((time.monotonic() - self._since) * 1000)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of an async function. None for a plain one: its requests block."""
        return self._connection.loop

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop."""
        return self._connection.stop_asked

    @property
    def store(self) -> Store:
        """There is none here: what needs the store asks the worker."""
        raise NotImplementedError

    def is_stored_at(self, url: str) -> bool:
        """The worker checks this."""
        return True

    @property
    def max_retries(self) -> int:
        """How many failures of its job are retried."""
        return policy_of(self.lease, self._handler.retry).max_retries

    def check(self, step: str | None = None) -> None:
        """The worker has checked that the lease is not over."""

    def encode(self, value: Any, what: str) -> bytes:
        """Encode a value in the job's codec."""
        return self._handler.encode(value, self.lease, what)

    def save(self, value: Any) -> bytes:
        """Encode the value that `Snooze` saves."""
        return self.encode(value, "the saved value")

    def decode(self, data: bytes) -> Any:
        """Decode a value from the job's codec."""
        return get_codec(self.lease.codec).decode(data)

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        """Store progress and log lines, and wait until that is done.

        If the job has ended they are dropped: the caller is a thread that outlived it.
        """
        with suppress(JobOver):
            await self._connection.ask(
                self._n, NoteRequest(self._connection.next(), progress, lines)
            )

    async def keep(self, *, saved: bytes | None = None, steps: Steps = ()) -> None:
        """Store what later runs depend on, and wait until the worker has confirmed it.

        Raises LeaseLost if the lease is lost or the job has ended: nothing was stored.
        """
        self.saves += saved is not None
        number = self.saves
        await self._connection.ask(self._n, KeepRequest(self._connection.next(), saved, steps))
        if saved is not None:
            self.checkpoint = Checkpoint(saved, number)

    async def put_child(self, label: str, spec: JobSpec, url: str, *, note: bool) -> PutResult:
        """Let the worker enqueue a child job, whose queue is in the store at `url`."""
        request = AddRequest(self._connection.next(), label, spec, url, note)
        reply = await self._connection.ask(self._n, request)
        assert reply.put is not None
        return reply.put
