"""The run that code finds itself in: the engine sets `running`, executors and handlers read it.

The context variable follows a run into its threads and asyncio tasks.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, Protocol

from jobq.core.records.jobs import Checkpoint, JobSpec, Lease, LeaseRef, PutResult, Steps
from jobq.core.rules.waits import Children, Inbox, RecordedSteps
from jobq.stores.base import Store


class Running(Protocol):
    """A run, as its handler and its executor see it."""

    lease: Lease
    task: asyncio.Task[None] | None
    # Set by an executor whose function goes on after the run was cancelled. The run keeps its slot
    # until the future is done.
    unfinished: asyncio.Future[None] | None
    completing: bool  # the handler has called complete_in
    checkpoint: Checkpoint | None  # what the handler has saved last in this run

    @property
    def ref(self) -> LeaseRef:
        """The reference of its lease."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the handler was asked to stop."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The worker's event loop.

        In a child process: the loop of an async handler, and None for a plain function.
        """
        ...

    @property
    def store(self) -> Store:
        """The store of its job. Not in a child process, which asks its worker."""
        ...

    @property
    def now_ms(self) -> int:
        """The store's time, estimated."""
        ...

    @property
    def max_retries(self) -> int:
        """How many failures of its job are retried."""
        ...

    @property
    def children(self) -> Children:
        """The child jobs that it has added."""
        ...

    @property
    def inbox(self) -> Inbox:
        """The signals its job has received."""
        ...

    @property
    def state(self) -> Any:
        """The value of the worker's lifespan."""
        ...

    @property
    def steps(self) -> RecordedSteps:
        """The steps of its job."""
        ...

    def is_stored_at(self, url: str) -> bool:
        """Whether its job is in the store at this URL."""
        ...

    def check(self, step: str | None = None) -> None:
        """Raise LeaseLost if the lease is over, so that neither the handler nor `step` starts.

        Executors call this just before the function, in the thread in which it runs.
        """
        ...

    def encode(self, value: Any, what: str) -> bytes:
        """Encode a value in the job's codec. If it is too large, the error names `what` it is."""
        ...

    def decode(self, data: bytes) -> Any:
        """Decode a value from the job's codec."""
        ...

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        """Store progress and log lines, and wait until that is done.

        If the lease is lost they are dropped, and the run is interrupted.
        """
        ...

    async def keep(self, *, saved: bytes | None = None, steps: Steps = ()) -> None:
        """Store what later runs depend on, and wait until the store has confirmed it. The caller
        has let `steps` admit the steps.

        Raises LeaseLost if the lease is lost: nothing was stored, and the run is interrupted.
        """
        ...


class InChild:
    """A run in a child process, which has no store: what needs one asks the worker."""

    async def put_child(self, label: str, spec: JobSpec, url: str, *, note: bool) -> PutResult:
        """Let the worker enqueue a child job, whose queue is in the store at `url`."""
        raise NotImplementedError


running: ContextVar[Running] = ContextVar("jobq_running")
