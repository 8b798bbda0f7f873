"""What a running worker is told to do: by signals, its supervisor, operators, and its own failures.

Almost all of it ends with a stop. The worker knows how to stop; this knows when, and how soon.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING

from jobq.api.stopped import Stopped
from jobq.core.checks import Seconds, shown
from jobq.core.workers import WorkerRequest, asked_concurrency
from jobq.operations.workers import ORDERS

if TYPE_CHECKING:
    from jobq.api.worker import Worker

log = logging.getLogger("jobq")


class Orders:
    """The orders to one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._signalled = False
        self._by_supervisor = False  # the supervisor has ordered the stop
        self.serving = False
        """Whether the program does nothing but wait for the worker (`Worker.run`)."""

    # ── from outside ──

    def signalled(self, number: signal.Signals) -> None:
        """A signal: finish running jobs and stop. The second one releases them."""
        worker = self._worker
        # A second signal may come before the first one's stop has begun.
        again = self._signalled or (worker._ending is not None and not self._by_supervisor)
        self._signalled = True
        if again:
            log.info("worker %s: %s, releasing running jobs", worker.name, number.name)
        else:
            log.info(
                "worker %s: %s, finishing running jobs (up to %g s); "
                "send it again to release them now",
                worker.name,
                number.name,
                worker.settings.drain_ms / 1000,
            )
        self._stop_soon(drain=0 if again else None)

    def supervised(self, *, release: bool) -> None:
        """Stop as the supervisor says. Repeating an order changes nothing.

        A service manager may also send its SIGTERM to every process. The first signal is then not
        the second one after the order, so it must not release the jobs.
        """
        self._by_supervisor = True
        self._stop_soon(drain=0 if release else None)

    def requested(self, request: WorkerRequest) -> None:
        """An operator's request, as of `jq-ctl worker drain`."""
        worker = self._worker
        if (concurrency := asked_concurrency(request)) is not None:
            worker.concurrency = concurrency
            log.info("worker %s was asked to run up to %d jobs at once", worker.name, concurrency)
            return
        if request not in ORDERS:  # of a newer jq-ctl
            log.warning("worker %s ignores the unknown request %s", worker.name, shown(request))
            return
        log.info("worker %s was asked to %s", worker.name, ORDERS[request])
        if request in ("drain", "resume"):
            worker._set_draining(request == "drain")
        else:
            if worker._supervision is not None:
                worker._supervision.shut_down()
            self._stop_soon(drain=None if request == "shutdown" else 0)

    # ── from the worker itself ──

    def interrupted(self) -> None:
        """Stop as on a signal, because a handler raised KeyboardInterrupt. Its job is released."""
        worker = self._worker
        for station in worker._stations:
            station.drain()  # at once, or the next exchange would claim the released job
        if self._signalled or worker._ending is not None:
            return
        self.signalled(signal.SIGINT)
        if not self.serving:  # the program runs its own code beside the worker: interrupt that too
            self._stopping.add_done_callback(_interrupt)

    def failed(self) -> None:
        """Release running jobs and stop, because a loop of the worker has failed."""
        self._stop_soon(drain=0)

    def lifespan_broke(self) -> None:
        """The same, because the lifespan ended by itself."""
        log.critical("worker %s stops: its lifespan ended by itself", self._worker.name)
        self.failed()

    def displaced(self) -> None:
        """Stop, because another worker took this worker's name while it sent no heartbeats."""
        if self._worker._ending is None:
            log.error(
                "worker %s stops: another worker took its name while it sent no heartbeats",
                self._worker.name,
            )
            self._stop_soon(drain=None)

    def _stop_soon(self, drain: Seconds | None) -> None:
        task = asyncio.get_running_loop().create_task(self._worker.stop(drain=drain))
        self._stopping = task  # keep a reference, or the task might be garbage-collected


def _interrupt(_: asyncio.Task[Stopped]) -> None:
    raise KeyboardInterrupt
