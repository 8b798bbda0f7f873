"""Puts in natural batches: what arrives while one is in flight rides in the next.

A task that puts one job after another has each sent at once, with nothing in between. Puts of several tasks meet first:
the first waits until the tasks that are ready to run have had their turn, and takes theirs along. (A store in this
process answers within the call, so that without this nothing would ever be in flight to wait for.)

A store that works while we do (`Pipelined.lanes`) is sent half of many callers first and the other half right behind it: those
answered first make their next calls while the store has the others'. Their order is that of one batch.
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
from jobq.stores.base import Store, pipeline_of

MOST = 1000
"""Specs per put: enough to make the call's own cost vanish, little enough not to hold up other writers."""

_WORTH = 16
"""Callers that are worth a put of their own beside another in flight."""

_Waiter = tuple[Sequence[JobSpec], "asyncio.Future[list[PutResult]]"]


class Sender:
    """The way into a store, for one event loop. Nobody's bad spec fails another caller's."""

    def __init__(self, store: Store, *, most: int = MOST) -> None:
        self._store = store
        self._most = most
        self._waiting: deque[_Waiter] = deque()
        pipeline = pipeline_of(store)
        self._lanes = 1 if pipeline is None else pipeline.lanes
        self._busy = False
        self._in_flight = 0
        self._flushers: set[asyncio.Task[None]] = set()
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
        if self._busy or not (alone or len(specs) > 1):  # a bulk is a batch already
            loop = asyncio.get_running_loop()
            future: asyncio.Future[list[PutResult]] = loop.create_future()
            self._waiting.append((specs, future))
            if not alone:
                self._last = None if task is None else weakref.ref(task)
            if not self._busy:
                self._busy = True
                self._begin(loop)
            return await future
        self._busy = True
        try:
            return await self._store.put(specs)
        finally:
            if self._waiting:
                self._begin(asyncio.get_running_loop())
            else:
                self._busy = False

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._in_flight += 1
        flusher = loop.create_task(self._flush(loop), name="jobq sender")
        self._flushers.add(flusher)
        flusher.add_done_callback(self._flushers.discard)

    async def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Put what waits. Of two, one goes on only while there is enough for both."""
        try:
            while self._waiting and (self._in_flight == 1 or len(self._waiting) >= _WORTH):
                both = self._in_flight < self._lanes and len(self._waiting) >= 2 * _WORTH
                batch = self._next_batch(-(-len(self._waiting) // 2) if both else self._most)
                if both:
                    self._begin(loop)
                if batch:
                    await self._put_batch(batch)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._busy = False
                for _, future in self._waiting:  # only when the loop is being torn down
                    future.cancel()
                self._waiting.clear()

    def _next_batch(self, callers: int) -> list[_Waiter]:
        """The callers next in line, whole, up to `most` specs (and at least one caller). Those who gave up are left out."""
        batch: list[_Waiter] = []
        room = self._most
        while (
            len(batch) < callers
            and self._waiting
            and (room >= len(self._waiting[0][0]) or not batch)
        ):
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
            _answer(
                batch,
                [_own(s, r) for s, r in zip(specs, results, strict=True)] if again else results,
            )


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
