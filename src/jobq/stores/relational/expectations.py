"""Callers that wait for the end of a job which they are about to put."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from jobq.core.records import JobKey, JobSpec, Signal, Topic
from jobq.stores.relational.mailbox import Mailbox
from jobq.stores.relational.new_jobs import Watch


class Expectations:
    """How many callers wait for the end of each job."""

    def __init__(self) -> None:
        self.callers: dict[JobKey, int] = {}

    @contextlib.asynccontextmanager
    async def expect(self, job: JobKey, box: Mailbox) -> AsyncIterator[AsyncIterator[None]]:
        """Yield once for each notice that the job has ended, while the context lasts."""
        self.callers[job] = self.callers.get(job, 0) + 1
        try:
            async with box.subscribed([Topic("ended", *job)]) as signals:
                yield _ends(signals)
        finally:
            self.callers[job] -= 1
            if not self.callers[job]:
                del self.callers[job]

    def watch(self, specs: Sequence[JobSpec], box: Callable[[], Mailbox]) -> Watch | None:
        """The jobs of a put whose ends are expected; None: there are none."""
        jobs = {JobKey(spec.queue, spec.id) for spec in specs} & self.callers.keys()
        return Watch(box().address, frozenset(jobs)) if jobs else None


async def _ends(signals: AsyncIterator[Signal]) -> AsyncIterator[None]:
    async for _ in signals:
        yield None
