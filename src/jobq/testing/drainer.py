"""The drainer: runs due jobs in a test, without the loops of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from jobq.api.middleware import WorkerMiddleware
from jobq.client.ids import new_id
from jobq.core.records import Claim, QueueName
from jobq.engine.exchange import Exchange
from jobq.engine.executors import Executors
from jobq.engine.handler import Handler
from jobq.engine.notes import Notes
from jobq.engine.runner import Runner
from jobq.engine.settings import WorkerSettings
from jobq.engine.slots import Bell, Slots
from jobq.stores.base import Store
from jobq.testing.inline import CallPlain, InlineExecutors, InlineRunner

_CHECK_AGAIN_S = 0.02
"""Seconds after which `drain` looks for jobs that a running handler may have enqueued."""


class Drainer:
    """Runs jobs with the worker's runner, but without its loops. Stops when there is nothing to
    do."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[QueueName, Mapping[str, Handler]],
        concurrency: int,
        most: int,
        state: Any = None,
        call_plain: CallPlain | None = None,
    ) -> None:
        """`state` is the value of the lifespan. With `call_plain`, runs are inline."""
        settings = WorkerSettings(concurrency=concurrency)
        self.runs = 0
        self._most = most
        self._queues = tuple(tasks)
        self._settings = settings
        self._bell = Bell()
        self._slots = Slots(concurrency)
        inline = call_plain is not None
        self._executors = InlineExecutors(call_plain) if call_plain else Executors()
        self._notes = Notes(store)
        self._runner = (InlineRunner if inline else Runner)(
            tasks,
            executors=self._executors,
            slots=self._slots,
            bell=self._bell,
            notes=self._notes,
            settings=settings,
            around_of=WorkerMiddleware(),
            state=state,
        )
        self._exchange = Exchange(
            store, worker=f"drain-{new_id()}", exchange_timeout_ms=settings.exchange_timeout_ms
        )

    async def run(self) -> int | None:
        """Run jobs until none is due. Returns in how many milliseconds the next one will be."""
        runner = self._runner
        while True:
            ended, runner.ended = runner.ended, []
            error = runner.error if isinstance(runner, InlineRunner) else None
            taken = 0 if error else self._slots.take(self._bell, self._slots.total)
            claim = (
                Claim(queues=self._queues, limit=taken, lease_ms=self._settings.lease_ms)
                if taken
                else None
            )
            since = time.monotonic()
            settled = await self._exchange.ask(ended, claim)
            runner.settled(ended)
            if error is not None:
                raise error
            self._slots.give(taken - len(settled.leases))
            self._count(len(settled.leases))
            runner.start(settled.leases, since)
            if not settled.leases:
                runner.batches.flush()  # there are no more jobs to wait for
            if runner.ended:
                continue
            if runner.open or claim is None:
                # With free slots, look again soon: a running job may wait for one it enqueued.
                await self._bell.wait(_CHECK_AGAIN_S if self._slots.free else None)
            elif not settled.leases:
                return settled.next_due_ms

    def _count(self, more: int) -> None:
        self.runs += more
        if self.runs > self._most:
            raise AssertionError(
                f"drain() has run {self.runs} jobs and there are more: do they snooze or enqueue "
                "each other for ever? If so many runs are right, give a higher most="
            )

    async def aclose(self) -> None:
        """Stop the threads, and interrupt runs that an error has left behind."""
        self._runner.interrupts.release_running()
        await asyncio.sleep(0)
        await self._notes.aclose()
        await self._executors.aclose()
