"""Runs leases: find the handler, bind, call, encode, decide. What has ended waits in `ended` for the next exchange.

A run ends twice: it is *concluded* when its outcome is decided, and its slot comes free when nothing of it runs any more.
Mostly both happen at once; a thread past its timeout, or a handler that ignores its cancellation, keeps the slot.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from jobq.core.decide import End, Raised, Released, TimedOut, Unknown, decide
from jobq.core.policies import Retry
from jobq.core.printable import one_line
from jobq.core.records import AnyOutcome, Complete, Fail, JobKey, Lease, LeaseState, QueueName
from jobq.core.verdicts import unreadable
from jobq.engine.batches import Batches
from jobq.engine.builtin import BUILTIN
from jobq.engine.child_tasks import unguarded
from jobq.engine.handler import Handler
from jobq.engine.journal import Journal
from jobq.engine.last_chance import LastChance, is_isolated
from jobq.engine.notes import Notes
from jobq.engine.run import LeaseOver, Run
from jobq.engine.settings import WorkerSettings
from jobq.engine.slots import Bell, Slots
from jobq.errors import LeaseLost
from jobq.executors import Executor, open_executor
from jobq.executors.running import running

log = logging.getLogger("jobq")

_DEFAULT_RETRY = Retry()


class Executors(dict[str, Executor]):
    """The executors of a worker, opened when first asked for."""

    def __missing__(self, name: str) -> Executor:
        self[name] = executor = open_executor(name)
        return executor


class Runner:
    """All runs of one station. Belongs to the worker's event loop; only `held` is read from another thread."""

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
    ) -> None:
        """`interrupted` is called when a handler raises KeyboardInterrupt: the worker is to stop. `lease_s`: a run that has not
        begun for so long, with nobody renewing its lease, does not begin. Without `chance` no job needs to be alone."""
        self.loop = asyncio.get_running_loop()
        self.notes = notes
        self.held: set[Run] = set()  # leases to keep: running, or ended and not yet settled
        self.ended: list[Run] = []  # concluded with an outcome, to be settled by the next exchange
        self.open = 0  # runs not yet concluded
        self.refusing = False  # see refuse()
        self.releasing = (
            False  # what arrives is released: refusing, or a job on its last chance is to be alone
        )
        self.lease_s = lease_s
        self.settled_since_stop: list[Run] = []  # runs that were settled after refuse()
        self.interrupted = interrupted
        self.batches = Batches(self)
        self.isolated = all(
            is_isolated(handler) for handlers in tasks.values() for handler in handlers.values()
        )  # no job of these queues can kill the worker
        self._tasks = tasks
        self.executors = executors
        self._slots = slots
        self._bell = bell
        self._settings = settings
        self._journal = Journal()
        self._chance = chance
        self._unknown: set[tuple[QueueName, str]] = (
            set()
        )  # tasks that were asked for and are not there
        self._create_task = unguarded(self.loop)
        self._early: set[JobKey] = set()  # cancels heard of jobs whose lease has not arrived yet

    # ── starting ──

    def start(self, leases: Iterable[Lease], since: float) -> None:
        """Run these, each in a slot already taken. `since`: when their claim was sent."""
        self._journal.check_levels()
        for lease in leases:
            run = Run(lease, self, since)
            self.held.add(run)
            self.open += 1
            if (
                self.releasing
                or lease.cancel_asked
                or (self._early and JobKey(lease.queue, lease.id) in self._early)
            ):
                self.close(run, self.decide(run, Released(), _DEFAULT_RETRY))
                continue
            if lease.unreadable:
                failure = unreadable(attempt=lease.attempt, worker=None, now_ms=run.now_ms)
                self.close(
                    run, Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)
                )
                continue
            handler = self._tasks[lease.queue].get(lease.name) or BUILTIN.get(lease.name)
            if handler is None:
                self._warn_unknown(lease)
                self.close(run, self.decide(run, Unknown(lease.name), _DEFAULT_RETRY))
                continue
            try:
                self._launch(run, lease, handler)
            except (
                Exception
            ) as error:  # no such executor: this job's trouble, not that of those behind it
                self.close(run, self.decide(run, Raised(error), _DEFAULT_RETRY))
        self._early.clear()
        self.batches.claimed(room=self._slots.free > 0)

    def _warn_unknown(self, lease: Lease) -> None:
        """Once per name: its jobs come back every 30 s."""
        name = (lease.queue, lease.name)
        if name not in self._unknown and len(self._unknown) < 1000:
            self._unknown.add(name)
            log.warning(
                "queue %s has jobs of task %s, which this worker does not have: they are put off for other workers, and fail "
                "after an hour. Is the code that defines it deployed and imported?",
                one_line(lease.queue.queue),
                one_line(lease.name),
            )

    def _launch(self, run: Run, lease: Lease, handler: Handler) -> None:
        executor = self.executors[handler.executor]
        run.handler = handler
        if lease.last_chance and self._chance is not None and self._chance.concerns(run, handler):
            if self._chance.close(run):
                run.task = self.loop.create_task(
                    self._run_alone(run, self._chance, handler, executor)
                )
            else:
                self.close(run, self.decide(run, Released(), handler.retry))
            return
        if self._journal.starts:
            self._journal.started(run)
        if handler.batch is not None:
            self.batches.add(run, handler)
            return
        run.executor = executor
        run.task = self._create_task(self._run(run, lease, handler, executor))
        self.arm(run, handler, run.since)

    def arm(self, run: Run, handler: Handler, begun: float) -> None:
        """Set its timeout. `begun` (monotonic) is when its call did, or a little before."""
        timeout_ms = run.lease.timeout_ms
        if timeout_ms is None:
            timeout_ms = handler.timeout_ms
        if timeout_ms:
            run.timeout_s = timeout_ms / 1000
            run.until = begun + (timeout_ms + self._settings.grace_ms) / 1000
            run.timer = self.loop.call_later(run.timeout_s, self._time_out, run, handler)

    def refuse(self) -> None:
        """Stopping: what still arrives goes straight back, and nothing waits for more."""
        self.refusing = self.releasing = True
        self.batches.flush()
        if self._chance is not None and (run := self._chance.waiting_in(self)) is not None:
            run.end = Released()
            self._interrupt(run)

    async def _run(self, run: Run, lease: Lease, handler: Handler, executor: Executor) -> None:
        """The task of a run. A successful one passes through here and `_close` only: this is the hot path."""
        running.set(run)
        outcome: AnyOutcome | None
        try:
            args, kwargs = handler.bind(lease)
            if monotonic() - run.since > self.lease_s:  # rare: ask for more than this once
                run.check()
            value = await executor.call(run, handler.fn, args, kwargs)
            outcome = Complete(
                queue=lease.queue,
                id=lease.id,
                token=lease.token,
                result=handler.encode(value, lease),
            )
        except KeyboardInterrupt:  # somebody stops the process, not the job: raised on, it would end the loop before the release
            outcome = self.decide(run, Released(), handler.retry)
            self.interrupted()
        except BaseException as error:
            outcome = self.raised(run, handler, error)
        self.close(run, outcome)

    async def _run_alone(
        self, run: Run, chance: LastChance, handler: Handler, executor: Executor
    ) -> None:
        """The task of a run that is the job's last chance: wait until nothing else runs, then go on as others do."""
        try:
            await chance.turn()
            if self._journal.starts:
                self._journal.started(run)
            if handler.batch is not None:
                run.task = None
                await self.batches.alone(run, handler)
            else:
                run.executor = executor
                self.arm(run, handler, monotonic())
                await self._run(run, run.lease, handler, executor)
        except asyncio.CancelledError as error:  # interrupted before it began
            self.close(run, self.raised(run, handler, error))
        finally:
            chance.leave(run)

    # ── ending ──

    def close(self, run: Run, outcome: AnyOutcome | None) -> None:
        """Nothing of the run goes on (unless it lingers): conclude it, free its slot."""
        run.task = None
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        if not run.concluded:
            self._conclude(run, outcome)
        if run.unfinished is None:
            self._slots.give(1)
        else:
            run.unfinished.add_done_callback(self._freed)
        self._bell.ring()

    def _conclude(self, run: Run, outcome: AnyOutcome | None) -> None:
        """Its end is decided. No outcome: its lease is another's, and there is nothing to settle."""
        run.concluded = True
        self.open -= 1
        if outcome is None:
            self.held.discard(run)
        else:
            run.outcome = outcome
            self.ended.append(run)
            if self._journal.ends:
                self._journal.ended(run, outcome)

    def _freed(self, _: asyncio.Future[None]) -> None:
        self._slots.give(1)
        self._bell.ring()

    def raised(self, run: Run, handler: Handler, error: BaseException) -> AnyOutcome | None:
        """What a run that raised comes to. An interruption made here means what it was made for; anything else the
        handler raises, or returns, after one counts as if there had been none (as with asyncio.timeout)."""
        if run.concluded:
            return None
        if isinstance(error, LeaseOver):
            if not run.late:  # it shares a batch with one that is
                return self.decide(run, Released(), handler.retry)
            log.warning("%s", error)
            return None
        if isinstance(error, asyncio.CancelledError) and run.end is not None:
            return self.decide(run, run.end, handler.retry)
        return self.decide(run, Raised(error), handler.retry)

    def decide(self, run: Run, end: End, retry: Retry) -> AnyOutcome:
        outcome = decide(
            run.lease, end, retry=retry, now_ms=run.now_ms, random=random.random, encode=run.save
        )
        self._journal.failed(run, outcome, end)
        return outcome

    # ── interrupting ──

    def _time_out(self, run: Run, handler: Handler) -> None:
        """Past its timeout: interrupt it, and past its grace settle it without its consent."""
        if run.concluded or (run.task is None and run.batch is None):
            return
        run.cancelled = True
        run.end = TimedOut(run.timeout_s)
        run.timer = self.loop.call_later(
            self._settings.grace_ms / 1000, self._overrule, run, run.end, handler.retry
        )
        self._interrupt(run)

    def _overrule(self, run: Run, end: End, retry: Retry) -> None:
        """It was interrupted and goes on: settle it now. Its slot stays taken until it really ends."""
        if not run.concluded:
            log.warning(
                "%s was told to stop and goes on; it is settled, and keeps its slot until it ends",
                run,
            )
            self._conclude(run, self.decide(run, end, retry))
            self._bell.ring()

    def cancel(self, queue: QueueName, id: str) -> None:
        """A job was cancelled: ask its run to stop. One whose lease has not arrived yet will not start."""
        for run in self.held:
            if run.lease.id == id and run.lease.queue == queue:
                self._ask(run)
                return
        if len(self._early) < 10_000:
            self._early.add(JobKey(queue, id))

    def lease_reported(self, run: Run, state: LeaseState) -> None:
        """What the store said of a lease, to the keeper or in reply to a note. Of a concluded run the settling says more."""
        if run.concluded or state == "held":
            return
        if state == "cancel":
            self._ask(run)
        else:
            self._lose(run)

    def _ask(self, run: Run) -> None:
        if run.concluded or run.cancelled:
            return
        run.cancelled = True
        run.end = Released()  # asked to cancel, the store ends it as cancelled
        if run.batch is not None:
            self.batches.stop_run(run)
        elif run.executor is not None:
            self.loop.call_soon(
                run.executor.request_stop, run
            )  # not before its first step, see _interrupt
        else:  # it waits for its turn, and has not begun
            self._interrupt(run)

    def _lose(self, run: Run) -> None:
        log.warning("%s", lost(run))
        run.cancelled = True
        self._conclude(run, None)
        self._interrupt(run)
        self._bell.ring()

    def _interrupt(self, run: Run) -> None:
        """CancelledError at its next await. Not now: a task cancelled before its first step never enters its coroutine,
        and nobody would close the run. What is called soon comes after that step."""
        if run.batch is not None:
            self.batches.stop_run(run)
        elif run.task is not None:
            self.loop.call_soon(run.task.cancel)

    def exited(self, run: Run, error: BaseException) -> None:
        """A task that the run's handler created raised KeyboardInterrupt or SystemExit: end the run as if the handler had."""
        stops = isinstance(error, KeyboardInterrupt)
        batch = run.batch
        for each in (run,) if batch is None else batch.runs:
            if not each.concluded:
                each.end = each.end or (Released() if stops else Raised(error))
        if batch is not None and batch.task is not None:
            self.loop.call_soon(batch.task.cancel)
        elif not run.concluded:
            self._interrupt(run)
        if stops:
            self.interrupted()

    def release_running(self) -> None:
        """Interrupt everything that runs; what ends by that is released. `release_rest` does not wait any longer."""
        for run in tuple(self.held):
            if not run.concluded:
                run.cancelled = True
                run.end = run.end or Released()
                self._interrupt(run)

    def release_rest(self) -> None:
        """Release what was interrupted and goes on all the same."""
        for run in tuple(self.held):
            if not run.concluded:
                self._overrule(run, Released(), _DEFAULT_RETRY)

    def settled(self, runs: Iterable[Run]) -> None:
        """The store has these outcomes: their leases need no keeping."""
        self.held.difference_update(runs)
        if self.refusing:
            self.settled_since_stop.extend(runs)


def lost(run: Run) -> LeaseLost:
    """Says which job, what happened and what that means."""
    return LeaseLost(
        f"{run} (attempt {run.lease.attempt}) lost its lease to expiry or to an operator; its result was not stored"
    )
