"""One lease that a worker works on, from its claim until its outcome is settled."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from jobq.core.records.jobs import AnyOutcome, Checkpoint, Lease, LeaseRef, Steps
from jobq.core.rules.decide import End, policy_of
from jobq.core.rules.waits import Children, Inbox, RecordedSteps
from jobq.core.values.codec import get_codec
from jobq.core.values.printable import one_line
from jobq.engine.notes import NotePart
from jobq.errors import LeaseLost
from jobq.stores import open_store

if TYPE_CHECKING:
    from jobq.engine.batches import Batch
    from jobq.engine.handler import Handler
    from jobq.engine.notes import Notes
    from jobq.engine.runner import Runner
    from jobq.executors import ApartExecutor, Executor
    from jobq.stores.base import Store


class LeaseOver(LeaseLost):
    """The lease ended before the handler or a step was called. Another worker may have the job."""


class Run:
    """A run is created for every job, so attributes that few runs set are defaults of the class."""

    task: asyncio.Task[None] | None = None
    handler: Handler | None = None
    executor: Executor | None = None
    apart: ApartExecutor | None = None  # runs it in another process
    batch: Batch | None = None  # of a batch task: the runs that share its call
    timer: asyncio.TimerHandle | None = None
    renewed: float = 0.0  # monotonic: when its lease was last renewed, set by the keeper's thread
    until: float | None = None  # monotonic: its lease is not renewed past this
    timeout_s: float = 0.0
    end: End | None = None  # why the run is interrupted, set before it is
    outcome: AnyOutcome | None = None
    concluded = False  # it has an outcome, or has lost its lease
    cancel_asked = False  # an operator or a program has cancelled its job
    closed = False  # its slot is free, or will be when its handler has returned
    cancelled = False  # the handler was asked to stop
    unfinished: asyncio.Future[None] | None = None
    completing = False  # the handler has called complete_in
    checkpoint: Checkpoint | None = None  # what the handler has saved last in this run
    saves = 0  # checkpoints of this run, also those that are not confirmed yet
    _children: Children | None = None
    _inbox: Inbox | None = None
    _steps: RecordedSteps | None = None

    def __init__(self, lease: Lease, runner: Runner, since: float) -> None:
        self.lease = lease
        self.runner = runner
        self.since = since  # monotonic: when its claim was sent, so the lease is younger

    def __repr__(self) -> str:
        return f"<Run of {self}>"

    def __str__(self) -> str:
        return one_line(
            f"job {self.lease.id} ({self.lease.name}) of queue {self.lease.queue.queue}"
        )

    @property
    def ref(self) -> LeaseRef:
        """The reference of its lease."""
        return LeaseRef(self.lease.queue, self.lease.id, self.lease.token)

    @property
    def late(self) -> bool:
        """Whether a whole lease has passed since it was claimed or renewed."""
        return time.monotonic() - max(self.since, self.renewed) > self.runner.lease_s

    def check(self, step: str | None = None) -> None:
        """Raise LeaseOver if it is too late to start the handler, or this step.

        Called just before the handler, in the handler's thread: a worker that was frozen for longer
        than a lease must not start jobs that other workers have run meanwhile. Code that goes on
        after the end of its run must not start steps, because nobody would record them.
        """
        if step is not None and self.concluded:
            raise LeaseOver(f"step {step!r} of {self} was not started: its run has ended")
        if not self.late:
            return
        if step is not None:
            raise LeaseOver(f"step {step!r} of {self} was not started: the job's lease has ended")
        raise LeaseOver(f"{self} was not started: its lease ended before its handler was called")

    @property
    def now_ms(self) -> int:
        """The store's time, estimated: the time of the claim plus what has passed since."""
        return self.lease.started_ms + int((time.monotonic() - self.since) * 1000)

    # ── what a handler reaches through current_job() ──

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The worker's event loop."""
        return self.runner.loop

    @property
    def notes(self) -> Notes:
        """Where the handler's progress and log lines are sent."""
        return self.runner.notes

    @property
    def store(self) -> Store:
        """The store of its job."""
        return self.runner.notes.store

    @property
    def state(self) -> Any:
        """The value of the worker's lifespan."""
        return self.runner.state

    def is_stored_at(self, url: str) -> bool:
        """Whether its job is in the store at this URL."""
        return url == self.store.url or open_store(url).url == self.store.url

    @property
    def max_retries(self) -> int:
        """How many failures of its job are retried, by the job's own policy or its task's."""
        assert self.handler is not None
        return policy_of(self.lease, self.handler.retry).max_retries

    @property
    def children(self) -> Children:
        """The child jobs that it has added."""
        if self._children is None:
            self._children = Children(self.lease)
        return self._children

    @property
    def inbox(self) -> Inbox:
        """The signals its job has received."""
        if self._inbox is None:
            self._inbox = Inbox(self.lease)
        return self._inbox

    @property
    def steps(self) -> RecordedSteps:
        """The steps of its job."""
        if self._steps is None:
            self._steps = RecordedSteps(self.lease)
        return self._steps

    def encode(self, value: Any, what: str) -> bytes:
        """Encode a value in the job's codec.

        Raises PayloadTooLarge, naming `what` it is, if it is larger than a result may be.
        """
        assert self.handler is not None
        return self.handler.encode(value, self.lease, what)

    def save(self, value: Any) -> bytes:
        """Encode the value that `Snooze` saves."""
        return self.encode(value, "the saved value")

    def decode(self, data: bytes) -> Any:
        """Decode a value from the job's codec."""
        return get_codec(self.lease.codec).decode(data)

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        """Store progress and log lines, and wait until that is done.

        If the lease is lost they are dropped, and the run is interrupted.
        """
        part = NotePart(progress=progress, lines=lines)
        self.runner.interrupts.lease_reported(self, await self.notes.add(self.ref, part))

    async def keep(self, *, saved: bytes | None = None, steps: Steps = ()) -> None:
        """Store what later runs depend on, and wait until the store has confirmed it.

        Raises LeaseLost if the lease is lost: nothing was stored, and the run is interrupted.
        """
        self.saves += saved is not None
        part = NotePart(saved=saved, steps=steps, saved_number=self.saves)
        state = await self.notes.add(self.ref, part)
        self.runner.interrupts.lease_reported(self, state)
        if state == "lost":
            what = "what it saved" if saved is not None else f"step {steps[0][0]!r}"
            raise LeaseLost(
                f"{self} (attempt {self.lease.attempt}) lost its lease before {what} was recorded: "
                "another run of the job does it again"
            )
        if saved is not None:
            self.checkpoint = Checkpoint(saved, part.saved_number)


def lost(run: Run) -> LeaseLost:
    """Return an error that tells which job has lost its lease, and what that means."""
    return LeaseLost(
        f"{run} (attempt {run.lease.attempt}) lost its lease: the lease expired, or an operator "
        "ended the job. Its result was not stored"
    )
