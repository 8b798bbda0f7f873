"""Calls the handler of a batch task once for up to N jobs. Each job still has its own outcome.

Jobs gather here until their call starts. Every job takes a slot from its claim on, so a worker
never holds more jobs than its concurrency. A batch waits up to its `window` for more jobs. It
starts at once when it is full, when no slot is free, or when the worker stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobq.core.records.jobs import AnyOutcome, Complete
from jobq.core.rules.decide import Raised, Released
from jobq.engine.child_tasks import in_batch
from jobq.engine.handler import Handler
from jobq.engine.run import Run

if TYPE_CHECKING:
    from jobq.engine.runner import Runner


class Batch:
    """Runs that share one call."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.runs: list[Run] = []
        self.called: list[Run] = []  # those whose items the handler gets, once it is called
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None  # its call, once started

    @property
    def abandoned(self) -> bool:
        """Whether none of its results is needed any more."""
        return all(run.concluded or run.cancelled for run in self.runs)


class Batches:
    """The batches of one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._gathering: dict[Handler, Batch] = {}

    # ── gathering ──

    def add(self, run: Run, handler: Handler) -> None:
        """Add the run to the batch of its task that is gathering. A full batch starts."""
        assert handler.batch is not None
        batch = self._gathering.get(handler)
        if batch is None:
            batch = Batch(handler)
            # With no window it starts in the next pass of the event loop, when all jobs of the
            # claim have been added.
            batch.timer = self._runner.loop.call_later(
                handler.batch.window_ms / 1000, self._start, batch
            )
            self._gathering[handler] = batch
        run.batch = batch
        batch.runs.append(run)
        if len(batch.runs) >= handler.batch.size:
            self._start(batch)

    def flush(self) -> None:
        """Start all batches: no more jobs will come."""
        for batch in tuple(self._gathering.values()):
            self._start(batch)

    async def alone(self, run: Run, handler: Handler) -> None:
        """Start a call for this run only, and wait until it has ended."""
        run.batch = batch = Batch(handler)
        batch.runs.append(run)
        self._start(batch)
        assert batch.task is not None
        await asyncio.wait([batch.task])

    def stop_run(self, run: Run) -> None:
        """Stop one run of a batch.

        If its call has not started, the run is released. Otherwise the call goes on for the other
        runs, and is interrupted only when no run is left.
        """
        batch = run.batch
        assert batch is not None
        if batch.task is not None:
            if batch.abandoned:
                self._runner.loop.call_soon(batch.task.cancel)
            return
        self._runner.close(
            run,
            None if run.concluded else self._runner.decide(run, Released(), batch.handler.retry),
        )
        batch.runs.remove(run)
        if not batch.runs:
            self._close_gathering(batch)

    def _close_gathering(self, batch: Batch) -> None:
        if self._gathering.get(batch.handler) is batch:
            del self._gathering[batch.handler]
        if batch.timer is not None:
            batch.timer.cancel()

    # ── running ──

    def _start(self, batch: Batch) -> None:
        try:
            self._close_gathering(batch)
            batch.task = self._runner.loop.create_task(self._whole(batch))
        except Exception as error:
            for run in batch.runs:
                self._runner.rescue(run, error)

    async def _whole(self, batch: Batch) -> None:
        """The task of a batch: whatever its call does, its runs are closed afterwards."""
        try:
            await self._call(batch)
        except GeneratorExit:  # the event loop is gone
            raise
        except BaseException as error:
            for run in batch.runs:
                self._runner.rescue(run, error)
        finally:
            batch.task = None
            for run in batch.runs:
                self._runner.close(run, None)  # unless it is closed

    async def _call(self, batch: Batch) -> None:
        """Decode each item, call the handler once, and end each run."""
        handler, runner = batch.handler, self._runner
        started = time.monotonic()
        for run in batch.runs:
            runner.interrupts.arm(run, handler, started)
        runs, items = self._bound(batch)
        batch.called = runs
        if not runs:
            return
        in_batch.set(runs[0])
        try:
            executor = runner.executors[handler.executor]
            assert not executor.apart  # a worker refuses batch tasks in other processes
            if (around := runner.around(handler)) is None:
                results = await executor.call(runs[0], handler.fn, [items], {})
            else:
                results = await around(
                    runs, lambda: executor.call(runs[0], handler.fn, [items], {})
                )
            results = _one_per_job(results, len(runs), handler.name)
        except KeyboardInterrupt:  # it is meant for the worker: release the jobs
            for run in runs:
                runner.close(run, runner.decide(run, Released(), handler.retry))
            runner.interrupted()
            return
        except BaseException as error:
            results = [error] * len(runs)
        for run, result in zip(runs, results, strict=True):
            runner.guard(run, self._end, handler, result)

    def _bound(self, batch: Batch) -> tuple[list[Run], list[Any]]:
        """Return the runs with their items. A run whose payload does not fit fails alone."""
        runs, items = [], []
        for run in batch.runs:
            if run.closed:
                continue
            try:
                (item,), _ = batch.handler.bind(run.lease)
                run.check()
            except Exception as error:
                self._runner.guard(run, self._end, batch.handler, error)
            else:
                runs.append(run)
                items.append(item)
        return runs, items

    def _end(self, run: Run, handler: Handler, result: Any) -> None:
        self._runner.close(run, self._outcome(run, handler, result))

    def _outcome(self, run: Run, handler: Handler, result: Any) -> AnyOutcome | None:
        if isinstance(result, BaseException):
            return self._runner.raised(run, handler, result)
        lease = run.lease
        try:
            return Complete(
                queue=lease.queue,
                id=lease.id,
                token=lease.token,
                result=handler.encode(result, lease),
            )
        except Exception as error:
            return None if run.concluded else self._runner.decide(run, Raised(error), handler.retry)


def _one_per_job(results: Any, count: int, name: str) -> Sequence[Any]:
    """Return the handler's results. Raises unless there is one per job."""
    if not isinstance(results, (list, tuple)):
        raise TypeError(
            f"batch task {name} returned {type(results).__name__}: return a list with one result "
            "or exception per job"
        )
    if len(results) != count:
        raise ValueError(
            f"batch task {name} returned {len(results)} results for {count} jobs: return one "
            "per job, in order"
        )
    return results
