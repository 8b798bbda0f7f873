"""Which running jobs of a worker were cancelled, as soon as the store signals it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from jobq.core.records import LeaseRef, Topic
from jobq.engine.service import Outage
from jobq.stores.base import Store

_MAX_RUNNING = 10_000
"""Jobs that are remembered, to name their leases in a cancel. Heartbeats find all others."""


class Cancels:
    """The running jobs of one job stream. Heartbeats find cancels whose signals are missed."""

    def __init__(
        self,
        store: Store,
        worker: str,
        running: Iterable[LeaseRef],
        on_cancel: Callable[[LeaseRef], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._on_cancel = on_cancel
        self._running = {(ref.queue, ref.id): ref for ref in running}

    def started(self, refs: Iterable[LeaseRef]) -> None:
        """These jobs were pushed to the worker."""
        self._running.update({(ref.queue, ref.id): ref for ref in refs})
        while len(self._running) > _MAX_RUNNING:
            del self._running[next(iter(self._running))]

    def ended(self, refs: Iterable[LeaseRef]) -> None:
        """These runs have ended."""
        for ref in refs:
            self._running.pop((ref.queue, ref.id), None)

    async def run(self) -> None:
        """Listen until cancelled."""
        outage = Outage(f"cancels of worker {self._worker}")
        while True:
            try:
                topics = [Topic("cancel", None, self._worker)]
                async with self._store.listen(topics) as signals:
                    outage.over()
                    async for signal in signals:
                        ref = self._running.get((signal.queue, signal.job or ""))
                        if ref is not None:
                            self._on_cancel(ref)
                rest = 1.0
            except Exception as error:
                rest = outage.failed(error)
            await asyncio.sleep(rest)
