"""Reads of single jobs, in batches that form while another read is in flight."""

from __future__ import annotations

import asyncio

from jobq.client.sender import fail_each
from jobq.core.records.jobs import JobKey, JobRecord
from jobq.stores.base import Store


class Reader:
    """Reads single jobs. While one read is in flight, further requests are gathered for the next
    one."""

    MAX_BATCH = 500
    """Jobs per read, so that one large batch does not delay the reads behind it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests: list[tuple[JobKey, asyncio.Future[JobRecord | None]]] = []
        self._busy = False
        self._task: asyncio.Task[None] | None = None

    async def get(self, job: JobKey) -> JobRecord | None:
        """The job's record, read after this call began. None if there is none."""
        loop = asyncio.get_running_loop()
        if self._busy:
            future: asyncio.Future[JobRecord | None] = loop.create_future()
            self._requests.append((job, future))
            return await future
        self._busy = True
        try:
            return (await self._store.get((job,)))[0]
        finally:
            if self._requests:
                self._task = loop.create_task(self._read(), name="jobq reader")
            else:
                self._busy = False

    async def _read(self) -> None:
        try:
            while self._requests:
                batch, self._requests = (
                    self._requests[: self.MAX_BATCH],
                    self._requests[self.MAX_BATCH :],
                )
                await self._read_batch(
                    [(job, future) for job, future in batch if not future.done()]
                )
        finally:
            self._busy = False
            self._task = None
            for _, future in self._requests:  # not empty only while the event loop shuts down
                future.cancel()
            self._requests.clear()

    async def _read_batch(
        self, batch: list[tuple[JobKey, asyncio.Future[JobRecord | None]]]
    ) -> None:
        try:
            records = await self._store.get([job for job, _ in batch]) if batch else []
        except Exception as error:
            fail_each((future for _, future in batch), error)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), record in zip(batch, records, strict=True):
                if not future.done():
                    future.set_result(record)
