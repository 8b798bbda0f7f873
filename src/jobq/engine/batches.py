"""One handler call for up to N jobs. Leases of a batch task gather here until their call begins; each ends for itself.

Every lease has its own slot, gathered or running, so a worker never holds more jobs than its concurrency. A batch waits for
more (`linger`) only while more can come: with no slot free, full, or at a stop it begins at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobq.core.decide import Raised, Released
from jobq.core.records import AnyOutcome, Complete
from jobq.engine.child_tasks import in_batch
from jobq.engine.handler import Handler
from jobq.engine.run import Run

if TYPE_CHECKING:
    from jobq.engine.runner import Runner


class Batch:
    """Runs that share a call."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.runs: list[Run] = []
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None  # its call, once it has begun

    @property
    def abandoned(self) -> bool:
        """Whether nobody wants its results any more."""
        return all(run.concluded or run.cancelled for run in self.runs)


class Batches:
    """The batches of one runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._gathering: dict[Handler, Batch] = {}

    # ── gathering ──

    def add(self, run: Run, handler: Handler) -> None:
        """The run joins the batch of its task that is gathering. A full one begins."""
        assert handler.batch is not None
        batch = self._gathering.get(handler)
        if batch is None:
            batch = self._gathering[handler] = Batch(handler)
        run.batch = batch
        batch.runs.append(run)
        if len(batch.runs) >= handler.batch.size:
            self._begin(batch)

    def claimed(self, *, room: bool) -> None:
        """All leases of a claim have been added: begin what does not wait for more. Without `room` nothing more can come."""
        for batch in tuple(self._gathering.values()):
            window_ms = batch.handler.batch.window_ms if batch.handler.batch is not None else 0
            if not window_ms or not room:
                self._begin(batch)
            elif batch.timer is None:
                batch.timer = self._runner.loop.call_later(window_ms / 1000, self._begin, batch)

    def flush(self) -> None:
        """Begin all that gather: nothing more will come."""
        for batch in tuple(self._gathering.values()):
            self._begin(batch)

    async def alone(self, run: Run, handler: Handler) -> None:
        """A call for this run only; returns when it has ended."""
        run.batch = batch = Batch(handler)
        batch.runs.append(run)
        self._begin(batch)
        assert batch.task is not None
        await asyncio.wait([batch.task])

    def stop_run(self, run: Run) -> None:
        """A run is to stop. Gathering, it leaves; running, the call goes on for the others, and is interrupted for none."""
        batch = run.batch
        assert batch is not None
        if batch.task is not None:
            if batch.abandoned:
                self._runner.loop.call_soon(batch.task.cancel)
            return
        batch.runs.remove(run)
        if not batch.runs:
            self._close_gathering(batch)
        self._runner.close(
            run,
            None if run.concluded else self._runner.decide(run, Released(), batch.handler.retry),
        )

    def _close_gathering(self, batch: Batch) -> None:
        if self._gathering.get(batch.handler) is batch:
            del self._gathering[batch.handler]
        if batch.timer is not None:
            batch.timer.cancel()

    # ── running ──

    def _begin(self, batch: Batch) -> None:
        self._close_gathering(batch)
        batch.task = self._runner.loop.create_task(self._call(batch))
        begun = time.monotonic()
        for run in batch.runs:
            self._runner.arm(run, batch.handler, begun)

    async def _call(self, batch: Batch) -> None:
        """The task of a batch: bind each, call once, end each."""
        handler, runner = batch.handler, self._runner
        runs, items = self._bound(batch)
        if not runs:
            return
        in_batch.set(runs[0])
        try:
            results = await runner.executors[handler.executor].call(
                runs[0], handler.fn, [items], {}
            )
            answers = _answers(results, len(runs), handler.name)
        except KeyboardInterrupt:  # somebody stops the process, not the jobs
            for run in runs:
                runner.close(run, runner.decide(run, Released(), handler.retry))
            runner.interrupted()
            return
        except BaseException as error:
            for run in runs:
                runner.close(run, runner.raised(run, handler, error))
            return
        for run, answer in zip(runs, answers, strict=True):
            runner.close(run, self._outcome(run, handler, answer))

    def _bound(self, batch: Batch) -> tuple[list[Run], list[Any]]:
        """The runs with their items; those whose payload does not fit have failed, alone."""
        runs, items = [], []
        for run in batch.runs:
            try:
                (item,), _ = batch.handler.bind(run.lease)
                run.check()
            except Exception as error:
                self._runner.close(run, self._runner.raised(run, batch.handler, error))
            else:
                runs.append(run)
                items.append(item)
        return runs, items

    def _outcome(self, run: Run, handler: Handler, answer: Any) -> AnyOutcome | None:
        if isinstance(answer, BaseException):
            return self._runner.raised(run, handler, answer)
        lease = run.lease
        try:
            return Complete(
                queue=lease.queue,
                id=lease.id,
                token=lease.token,
                result=handler.encode(answer, lease),
            )
        except Exception as error:
            return None if run.concluded else self._runner.decide(run, Raised(error), handler.retry)


def _answers(results: Any, count: int, name: str) -> Sequence[Any]:
    """What the handler returned, if it is one answer per job."""
    if not isinstance(results, (list, tuple)):
        raise TypeError(
            f"batch task {name} returned {type(results).__name__}: return a list with a result or an error per job"
        )
    if len(results) != count:
        raise ValueError(
            f"batch task {name} returned {len(results)} results for {count} jobs: return one per job, in order"
        )
    return results
