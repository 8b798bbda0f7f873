"""Puts in natural batches: one in flight; what arrives meanwhile rides in the next.

A task that puts one job after another has each sent at once, with nothing in between. Puts of several tasks meet first:
the first waits until the tasks that are ready to run have had their turn, and takes theirs along. (A store in this
process answers within the call, so that without this nothing would ever be in flight to wait for.)
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections import deque
from collections.abc import Sequence

import msgspec

from jobq.core.records import JobSpec, PutResult
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.base import Store

MOST = 1000
"""Specs per put: enough to make the call's own cost vanish, little enough not to hold up other writers."""

_Waiter = tuple[Sequence[JobSpec], "asyncio.Future[list[PutResult]]"]


class Sender:
    """The way into a store, for one event loop. Nobody's bad spec fails another caller's."""

    def __init__(self, store: Store, *, most: int = MOST) -> None:
        self._store = store
        self._most = most
        self._waiting: deque[_Waiter] = deque()
        self._busy = False
        self._flusher: asyncio.Task[None] | None = None
        self._last: weakref.ref[asyncio.Task[object]] | None = None  # the task that was here last

    async def put(self, spec: JobSpec) -> PutResult:
        """Accept one job."""
        return (await self._send((spec,)))[0]

    async def put_many(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """Accept any number of jobs, in bounded calls; the answers stand in the order of the specs.

        An error leaves the calls before it done: those jobs are accepted, and putting them again changes nothing."""
        if len(specs) <= self._most:
            return await self._send(specs) if specs else []
        results: list[PutResult] = []
        for start in range(0, len(specs), self._most):
            results += await self._send(specs[start : start + self._most])
        return results

    async def _send(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        task = asyncio.current_task()
        alone = self._last is not None and self._last() is task
        if self._busy or not alone:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[list[PutResult]] = loop.create_future()
            self._waiting.append((specs, future))
            if not alone:
                self._last = None if task is None else weakref.ref(task)
            if not self._busy:
                self._busy = True
                self._flusher = loop.create_task(self._flush(), name="jobq sender")
            return await future
        self._busy = True
        try:
            return await self._store.put(specs)
        finally:
            if self._waiting:
                self._flusher = asyncio.get_running_loop().create_task(self._flush(), name="jobq sender")
            else:
                self._busy = False

    async def _flush(self) -> None:
        try:
            while batch := self._next_batch():
                await self._put_batch(batch)
        finally:
            self._busy = False
            self._flusher = None
            for _, future in self._waiting:  # only when the loop is being torn down
                future.cancel()
            self._waiting.clear()

    def _next_batch(self) -> list[_Waiter]:
        """The callers next in line, whole, up to `most` specs (and at least one caller). Those who gave up are left out."""
        batch: list[_Waiter] = []
        room = self._most
        while self._waiting and (room >= len(self._waiting[0][0]) or not batch):
            waiter = self._waiting.popleft()
            if not waiter[1].done():
                batch.append(waiter)
                room -= len(waiter[0])
        return batch

    async def _put_batch(self, batch: list[_Waiter], *, again: bool = False) -> None:
        specs = batch[0][0] if len(batch) == 1 else [spec for specs, _ in batch for spec in specs]
        try:
            results = await self._store.put(specs)
        except JobqError as error:
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                _fail(batch, error)
            else:  # somebody's spec was refused: halve until it stands alone
                middle = len(batch) // 2
                await self._put_batch(batch[:middle], again=True)
                await self._put_batch(batch[middle:], again=True)
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            _answer(batch, [_own(s, r) for s, r in zip(specs, results, strict=True)] if again else results)


def _own(spec: JobSpec, result: PutResult) -> PutResult:
    """A refused call may have been done in part (each queue for itself); a made-up id found there is the job itself."""
    if result.duplicate and not spec.given_id and result.id == spec.id:
        return msgspec.structs.replace(result, duplicate=False, found=None)
    return result


def _answer(batch: list[_Waiter], results: list[PutResult]) -> None:
    start = 0
    for specs, future in batch:
        end = start + len(specs)
        if not future.done():
            future.set_result(results[start:end])
        start = end


def _fail(batch: list[_Waiter], error: BaseException) -> None:
    """Each caller gets an exception of its own: one shared by many would collect all their tracebacks."""
    for _, future in batch:
        if not future.done():
            if isinstance(error, Exception):
                future.set_exception(copy.copy(error).with_traceback(error.__traceback__))
            else:
                future.cancel()
