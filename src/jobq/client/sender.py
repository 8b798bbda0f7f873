"""Stores jobs in batches that form while another put is in flight.

If one asyncio task puts jobs one after the other, each is sent at once. If several tasks put jobs,
the first put waits until every task that is ready has run, and takes their jobs along. Without
that, a store in this process would never get a batch: it returns before another task can run.

A store that works in parallel to this process (`Pipelined.lanes`) gets many callers' jobs as two
puts. The callers of the first half continue while the store works on the second. The order of the
jobs is that of a single put.

A job is checked before it joins a batch (core/rules/new_jobs.py). So a mistake of one caller fails
no other one.
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from jobq.core.records.jobs import JobSpec, PutResult
from jobq.core.rules.new_jobs import Checked, check_specs
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.base import Store, pipeline_of

# Raises one error in several callers.


def fail_each(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Raise the error in each caller that still waits.

    Each gets a copy: a shared exception would collect all their tracebacks."""
    for future in futures:
        if not future.done():
            future.set_exception(_copied(error))


def _copied(error: Exception) -> Exception:
    try:
        copied = copy.copy(error)
    except Exception:  # a store's own error may need more arguments than it has kept
        return error
    copied.__cause__ = error.__cause__
    return copied.with_traceback(error.__traceback__)


MAX_BATCH = 1000
"""Jobs per put: enough that the cost of a call does not matter, few enough that other writers do
not wait long."""

_MIN_CALLERS_FOR_SECOND_PUT = 16
"""Waiting callers for which a second put beside the one in flight pays off."""

_Waiter = tuple[Checked, "asyncio.Future[list[PutResult]]"]


class Sender:
    """Puts the jobs of one event loop. A job that the store refuses fails only its own caller."""

    def __init__(self, store: Store, *, max_batch: int = MAX_BATCH) -> None:
        self._store = store
        self._max_batch = max_batch
        self._waiting: deque[_Waiter] = deque()
        pipeline = pipeline_of(store)
        self._lanes = 1 if pipeline is None else pipeline.lanes
        self._busy = False
        self._in_flight = 0
        self._flushers: set[asyncio.Task[None]] = set()
        self._last: weakref.ref[asyncio.Task[object]] | None = None  # the last task that called

    async def put(self, spec: JobSpec) -> PutResult:
        """Store one job."""
        return (await self._send(check_specs((spec,))))[0]

    async def put_many(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        """Store any number of jobs in bounded calls. The results are in the order of the specs.

        If a call fails, the jobs of the calls before it are stored; putting them again changes
        nothing."""
        specs = check_specs(specs)
        if len(specs) <= self._max_batch:
            return await self._send(specs) if specs else []
        results: list[PutResult] = []
        for start in range(0, len(specs), self._max_batch):
            results += await self._send(Checked(specs[start : start + self._max_batch]))
        return results

    async def _send(self, specs: Checked) -> list[PutResult]:
        task = asyncio.current_task()
        alone = self._last is not None and self._last() is task
        if self._busy or not (alone or len(specs) > 1):  # many specs are a batch already
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
        """Put waiting jobs until none are left. A second flusher stops when there is work for one
        only."""
        try:
            while self._waiting and (
                self._in_flight == 1 or len(self._waiting) >= _MIN_CALLERS_FOR_SECOND_PUT
            ):
                both = (
                    self._in_flight < self._lanes
                    and len(self._waiting) >= 2 * _MIN_CALLERS_FOR_SECOND_PUT
                )
                batch = self._next_batch(-(-len(self._waiting) // 2) if both else self._max_batch)
                if both:
                    self._begin(loop)
                if batch:
                    await self._put_batch(batch)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._busy = False
                for _, future in self._waiting:  # not empty only while the event loop shuts down
                    future.cancel()
                self._waiting.clear()

    def _next_batch(self, callers: int) -> list[_Waiter]:
        """The next callers with all their specs, up to `max_batch` specs but at least one caller.
        Callers that were cancelled are left out."""
        batch: list[_Waiter] = []
        room = self._max_batch
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

    async def _put_batch(self, batch: list[_Waiter], *, retry: bool = False) -> None:
        specs = batch[0][0]
        if len(batch) > 1:
            specs = Checked(spec for specs, _ in batch for spec in specs)
        try:
            results = await self._store.put(specs)
        except JobqError as error:
            if len(batch) == 1 or isinstance(error, StoreUnavailable):
                _fail(batch, error)
            else:  # a spec was refused: halve the batch until it is alone
                middle = len(batch) // 2
                await self._put_batch(batch[:middle], retry=True)
                await self._put_batch(batch[middle:], retry=True)
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            _resolve(
                batch,
                [_not_duplicate(s, r) for s, r in zip(specs, results, strict=True)]
                if retry
                else results,
            )


def _not_duplicate(spec: JobSpec, result: PutResult) -> PutResult:
    """Undo a false "duplicate" after a retry: a refused put may have stored the jobs of some
    queues. A generated id that the retry finds there belongs to the job itself."""
    if result.duplicate and not spec.given_id and result.id == spec.id:
        return msgspec.structs.replace(result, duplicate=False, found=None)
    return result


def _resolve(batch: list[_Waiter], results: list[PutResult]) -> None:
    start = 0
    for specs, future in batch:
        end = start + len(specs)
        if not future.done():
            future.set_result(results[start:end])
        start = end


def _fail(batch: list[_Waiter], error: BaseException) -> None:
    """Raise the error in each caller, or cancel all of them."""
    if isinstance(error, Exception):
        fail_each((future for _, future in batch), error)
        return
    for _, future in batch:
        future.cancel()
