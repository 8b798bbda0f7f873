"""Runs leases: finds the handler, decodes the arguments, calls it and decides the outcome.

Runs that have ended wait in `ended` until the next exchange settles them.

Whatever raises in a run counts as a failure of that run and of no other one. Two frames promise it,
`guard` for calls and `_whole` for tasks: everything that concerns a run happens inside of one, and
both end in `rescue`, which closes the run.

A run ends in two steps. It is *concluded* when its outcome is decided, and its slot is free when
its handler has returned. Usually both happen at once. But a thread past its timeout, and a handler
that ignores its cancellation, are concluded and keep their slot.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from jobq.core.policies import UNDECLARED, Retry
from jobq.core.records.failures import bounded
from jobq.core.records.jobs import (
    AnyOutcome,
    Complete,
    Fail,
    Failure,
    JobKey,
    Lease,
    QueueName,
)
from jobq.core.rules.decide import End, Raised, Released, Unknown, decide
from jobq.core.rules.outcomes import unreadable_failure
from jobq.engine.batches import Batches
from jobq.engine.builtin import BUILTIN
from jobq.engine.child_tasks import unguarded
from jobq.engine.executors import Executors
from jobq.engine.handler import (
    Around,
    AroundOf,
    Handler,
)
from jobq.engine.identity import WorkerSettings
from jobq.engine.interrupts import Interrupts
from jobq.engine.journal import Journal
from jobq.engine.last_chance import LastChance, is_isolated
from jobq.engine.notes import Notes
from jobq.engine.processes import ApartRuns
from jobq.engine.run import LeaseOver, Run
from jobq.engine.slots import Bell, Slots
from jobq.errors import JobqError
from jobq.executors import Executor
from jobq.executors.running import running
from jobq.stores.base import Completion, transactional_of

# The end of a run that completes its job in a transaction of its handler (`complete_in`).

log = logging.getLogger("jobq")

_FIRST_CHECK_S, _LAST_CHECK_S = 0.02, 1.0
"""Seconds between two looks at a transaction that has not ended; the pause doubles. PostgreSQL
sends no signal when a row is unlocked."""
PATIENCE_S = 60.0
"""Seconds that a run waits for the end of a transaction that its handler left open. After that the
lease runs out, and the job runs again when the transaction has been rolled back."""


class NotCommitted(JobqError):
    """The handler returned, and its transaction with `complete_in` was not committed."""

    def __init__(self) -> None:
        super().__init__(
            "the handler returned, and the transaction of complete_in was not committed: commit it "
            "before the handler returns"
        )


async def completion(run: Run) -> Completion:
    """Whether the transaction of a run's handler was committed. Waits while it is open."""
    transactional = transactional_of(run.store)
    assert transactional is not None
    pause, waited = _FIRST_CHECK_S, 0.0
    while True:
        state: Completion = "open"
        try:
            state = await transactional.completion(run.ref)
        except JobqError as error:  # the store is unavailable: ask again
            log.warning("%s: cannot tell whether complete_in was committed: %s", run, error)
        if state != "open" or waited >= PATIENCE_S:
            return state
        if waited == 0.0:
            log.warning(
                "%s: its handler has ended, and the transaction of complete_in is still open: "
                "commit it or roll it back before the handler returns",
                run,
            )
        await asyncio.sleep(pause)
        waited += pause
        pause = min(2 * pause, _LAST_CHECK_S)


_DEFAULT_RETRY = UNDECLARED


class Runner:
    """All runs of one station.

    Belongs to the worker's event loop. Only `held` is read by another thread, the keeper's.
    """

    def __init__(
        self,
        tasks: Mapping[QueueName, Mapping[str, Handler]],
        *,
        executors: Executors,
        slots: Slots,
        bell: Bell,
        notes: Notes,
        settings: WorkerSettings,
        interrupted: Callable[[], None] = lambda: None,
        chance: LastChance | None = None,
        lease_s: float = math.inf,
        around_of: AroundOf | None = None,
        state: Any = None,
        on_lost: Callable[[Run], None] | None = None,
    ) -> None:
        """`interrupted` is called when a handler raises KeyboardInterrupt: the worker must stop.

        A run that could not start within `lease_s` does not start, unless its lease was renewed.
        Without `chance`, jobs on their last chance run like any other. `around_of` returns what is
        called around a handler, and `state` is the value of the worker's lifespan. `on_lost` is
        called with a run whose lease is lost while it runs.
        """
        self.loop = asyncio.get_running_loop()
        self.notes = notes
        self.held: set[Run] = set()  # not settled yet: the keeper renews their leases
        self.ended: list[Run] = []  # they have an outcome, to be settled by the next exchange
        self.open = 0  # runs not yet concluded
        self.stopping = False  # see stop()
        # Leases that arrive are released: the worker stops, or a job on its last chance runs.
        self.releasing = False
        self.lease_s = lease_s
        self.settled_since_stop: list[Run] = []
        self._around_of = around_of
        self.state = state
        self.interrupted = interrupted
        self.batches = Batches(self)
        self.interrupts = Interrupts(self, bell, settings.grace_ms, on_lost)
        # No job of these queues can kill the worker.
        self.isolated = all(
            is_isolated(handler) for handlers in tasks.values() for handler in handlers.values()
        )
        self._tasks = tasks
        self.executors = executors
        self._slots = slots
        self._bell = bell
        self._journal = Journal()
        self._apart = ApartRuns(self, self._journal)
        self._chance = chance
        self._create_task = unguarded(self.loop)

    # ── starting ──

    def start(self, leases: Sequence[Lease], since: float) -> None:
        """Run these leases, each in a slot already taken. `since` is when their claim was sent.

        If it raises, no run was made, and the slots are still the caller's.
        """
        self._journal.check_levels()
        count, runs = len(leases), [Run(lease, self, since) for lease in leases]
        self.held.update(runs)
        self.open += count
        for run in runs:
            self.guard(run, self._begin)
        self.interrupts.early = set()

    def _begin(self, run: Run) -> None:
        """Start a run, or end it at once."""
        lease, early = run.lease, self.interrupts.early
        if (
            self.releasing
            or lease.cancel_asked
            or (early and JobKey(lease.queue, lease.id) in early)
        ):
            run.cancel_asked = not self.releasing or lease.cancel_asked
            self.close(run, self.decide(run, Released(), _DEFAULT_RETRY))
            return
        if lease.unreadable:
            failure = unreadable_failure(attempt=lease.attempt, worker=None, now_ms=run.now_ms)
            self.close(
                run, Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)
            )
            return
        handler = self._tasks[lease.queue].get(lease.name) or BUILTIN.get(lease.name)
        if handler is None:
            self.close(run, self.decide(run, Unknown(lease.name), _DEFAULT_RETRY))
            return
        self._launch(run, lease, handler)

    def _launch(self, run: Run, lease: Lease, handler: Handler) -> None:
        executor = self.executors[handler.executor]
        run.handler = handler
        if (
            not executor.apart
            and lease.last_chance
            and self._chance is not None
            and self._chance.concerns(run, handler)
        ):
            if self._chance.close(run):
                run.task = self.loop.create_task(
                    self._whole(run, self._run_alone, self._chance, handler, executor)
                )
            else:
                self.close(run, self.decide(run, Released(), handler.retry))
            return
        if executor.apart:
            if self.around(handler) is None:
                run.apart = executor
            run.task = self._create_task(self._whole(run, self._apart.run, handler, executor))
            return
        if self._journal.starts:
            self._journal.started(run)
        if handler.batch is not None:
            self.batches.add(run, handler)
            return
        if self.around(handler) is None:
            run.executor = executor
        self.interrupts.arm(run, handler, run.since)
        run.task = self._create_task(self._whole(run, self._run, handler, executor))

    def stop(self) -> None:
        """Release leases that still arrive, and start batches without waiting for more jobs."""
        self.stopping = self.releasing = True
        self.batches.flush()
        if self._chance is not None and (run := self._chance.waiting_in(self)) is not None:
            run.end = Released()
            self.interrupts.interrupt(run)

    # ── the outermost frames ──

    def guard(self, run: Run, call: Callable[..., None], *args: Any) -> None:
        """Call `call(run, *args)`. If it raises, the run ends."""
        try:
            call(run, *args)
        except Exception as error:
            self.rescue(run, error)

    async def _whole(self, run: Run, body: Callable[..., Awaitable[None]], *args: Any) -> None:
        """The task of a run: whatever its body does, the run is closed afterwards."""
        try:
            await body(run, *args)
        except GeneratorExit:  # the event loop is gone
            raise
        except BaseException as error:
            run.task = None
            self.rescue(run, error)
        finally:
            self.close(run, None)  # unless it is closed

    def rescue(self, run: Run, error: BaseException) -> None:
        """End a run in which something raised that never should. Calls nothing that may raise.

        The error counts as the handler's own. If that cannot be decided either, the job fails.
        """
        with suppress(Exception):  # also the log may be what raised
            log.error("%s: the worker could not handle its run", run, exc_info=error)
        outcome: AnyOutcome | None = None
        if not run.concluded and not run.completing:
            try:
                retry = _DEFAULT_RETRY if run.handler is None else run.handler.retry
                outcome = self.decide(run, Raised(error), retry)
            except Exception as undecided:
                outcome = _undecided(run, undecided)
        goes_on, batch = not run.concluded, run.batch
        if not run.concluded:
            with suppress(Exception):  # the log: the outcome is recorded before
                self.conclude(run, outcome)
        if run.task is None and (batch is None or batch.task is None):
            self.close(run, None)
            if self._chance is not None:
                self._chance.leave(run)
        elif goes_on:  # its handler does: the slot is free when it has ended
            run.cancelled = True
            if run.apart is not None:
                run.apart.kill(run)
            elif run.task is not None:
                self.loop.call_soon(run.task.cancel)  # soon: see Interrupts.interrupt
            elif batch is not None and batch.task is not None and batch.abandoned:
                self.loop.call_soon(batch.task.cancel)
        if isinstance(error, KeyboardInterrupt):
            self.interrupted()

    async def _run(self, run: Run, handler: Handler, executor: Executor) -> None:
        """Call the handler: the body of a run. This is the hot path, with `close`."""
        lease = run.lease
        running.set(run)
        outcome: AnyOutcome | None
        try:
            if self._around_of is None or (around := self._around_of(handler)) is None:
                args, kwargs = handler.bind(lease)
                if monotonic() - run.since > self.lease_s:  # a cheap test first: it is rare
                    run.check()
                value = await executor.call(run, handler.fn, args, kwargs)
            else:
                value = await around((run,), partial(self._call, run, handler, executor))
            outcome = Complete(
                queue=lease.queue,
                id=lease.id,
                token=lease.token,
                result=handler.encode(value, lease),
            )
            if run.completing and not run.concluded:
                outcome = await self._completed(run, handler, None)
        except KeyboardInterrupt:
            # It is meant for the worker. If it left the task, it would end the event loop before
            # the job is released.
            outcome = self.decide(run, Released(), handler.retry)
            self.interrupted()
        except BaseException as error:
            if run.completing and not run.concluded:
                outcome = await self._completed(run, handler, error)
            else:
                outcome = self.raised(run, handler, error)
        self.close(run, outcome)

    def around(self, handler: Handler) -> Around | None:
        """What is called around this handler. None: nothing is."""
        return None if self._around_of is None else self._around_of(handler)

    async def _call(self, run: Run, handler: Handler, executor: Executor) -> Any:
        """Decode the arguments and call the handler, inside its middleware."""
        args, kwargs = handler.bind(run.lease)
        if run.end is not None:  # interrupted before; a thread would not notice
            raise asyncio.CancelledError
        run.check()
        run.executor = executor
        try:
            return await executor.call(run, handler.fn, args, kwargs)
        finally:
            # From here on, an interruption is meant for the middleware, in the task of the run.
            run.executor = None

    async def _completed(
        self, run: Run, handler: Handler, error: BaseException | None
    ) -> AnyOutcome | None:
        """The outcome of a run whose handler has called complete_in. The transaction decides."""
        try:
            state = await completion(run)
        except asyncio.CancelledError:  # timed out, or the worker stops
            state = "open"
        if state == "completed":
            if error is not None:
                log.warning(
                    "%s raised after complete_in was committed, and stays completed: %r", run, error
                )
            lease = run.lease
            return Complete(queue=lease.queue, id=lease.id, token=lease.token)
        if state == "open":
            log.warning("%s: the transaction of complete_in is open, and its lease runs out", run)
            return None
        return self.raised(run, handler, error or NotCommitted())

    async def _run_alone(
        self, run: Run, chance: LastChance, handler: Handler, executor: Executor
    ) -> None:
        """Wait until nothing else runs, then call the handler: the task of a job's last chance."""
        try:
            await chance.turn()
            if self._journal.starts:
                self._journal.started(run)
            if handler.batch is not None:
                run.task = None
                await self.batches.alone(run, handler)
            else:
                if self.around(handler) is None:
                    run.executor = executor
                self.interrupts.arm(run, handler, monotonic())
                await self._run(run, handler, executor)
        except asyncio.CancelledError as error:  # interrupted before it started
            self.close(run, self.raised(run, handler, error))
        finally:
            chance.leave(run)

    # ── ending ──

    def close(self, run: Run, outcome: AnyOutcome | None) -> None:
        """Conclude a run and free its slot. An unfinished run keeps its slot until it has ended.

        Does nothing if it is closed.
        """
        if run.closed:
            return
        run.task = None
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if not run.concluded:
            self.conclude(run, outcome)
        run.closed = True
        if run.unfinished is None:
            self._slots.give(1)
        else:
            run.unfinished.add_done_callback(self._freed)
        self._bell.ring()

    def conclude(self, run: Run, outcome: AnyOutcome | None) -> None:
        """Record the outcome of a run. None: its lease is lost, and there is nothing to settle."""
        if outcome is None:
            self.held.discard(run)
        else:
            run.outcome = outcome
            self.ended.append(run)
        run.concluded = True
        self.open -= 1
        if self._journal.ends and outcome is not None:
            self._journal.ended(run, outcome)

    def _freed(self, _: asyncio.Future[None]) -> None:
        self._slots.give(1)
        self._bell.ring()

    def raised(self, run: Run, handler: Handler, error: BaseException) -> AnyOutcome | None:
        """Return the outcome of a run that raised. None if its lease is lost.

        If the worker interrupted the run, CancelledError means what the worker wanted (`run.end`).
        Any other error, or a result, counts as if there had been no interruption, as with
        asyncio.timeout.
        """
        if run.concluded:
            return None
        if isinstance(error, LeaseOver):
            if not run.late:  # another run of its batch is
                return self.decide(run, Released(), handler.retry)
            log.warning("%s", error)
            return None
        if isinstance(error, asyncio.CancelledError) and run.end is not None:
            return self.decide(run, run.end, handler.retry)
        return self.decide(run, Raised(error), handler.retry)

    def decide(self, run: Run, end: End, retry: Retry) -> AnyOutcome:
        """Return the outcome of a run that ended this way, and log a failure."""
        outcome = decide(
            run.lease,
            end,
            retry=retry,
            now_ms=run.now_ms,
            random=random.random,
            encode=run.save,
            checkpoint=run.checkpoint,
        )
        self._journal.failed(run, outcome, end)
        return outcome

    def settled(self, runs: Sequence[Run]) -> None:
        """Forget these runs: the store has their outcomes."""
        self.held.difference_update(runs)
        if self.stopping:
            self.settled_since_stop.extend(runs)


def _undecided(run: Run, error: Exception) -> Fail:
    """The outcome of a run when `decide` raises: the job fails, because it would raise again."""
    lease = run.lease
    failure = Failure(
        reason="error",
        type=type(error).__name__,
        message=bounded(f"the run ended, and its outcome could not be decided: {error}"),
        attempt=lease.attempt,
        at_ms=lease.started_ms,
        fingerprint="undecided",
    )
    return Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)
