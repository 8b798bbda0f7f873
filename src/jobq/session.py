"""A queue's way to its store in one event loop: the shared handle, with the sender and the reader that go with it.

Queues on the same URL share one session per event loop, so that their puts and reads ride together.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from jobq.core.records import JobKey, JobRecord
from jobq.engine import handles
from jobq.engine.sender import Sender
from jobq.stores.base import Clock, Store, pipeline_of

T = TypeVar("T")

CHUNK = 1000
"""Jobs per store call, where many are put or changed."""


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, taken as they are needed."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class Reader:
    """Reads single jobs in natural batches: one read in flight; what is asked meanwhile rides in the next."""

    MOST = 500

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[JobKey, asyncio.Future[JobRecord | None]]] = []
        self._busy = False
        self._task: asyncio.Task[None] | None = None

    async def get(self, job: JobKey) -> JobRecord | None:
        """The job as it is now, read after this call was made."""
        loop = asyncio.get_running_loop()
        if self._busy:
            future: asyncio.Future[JobRecord | None] = loop.create_future()
            self._asked.append((job, future))
            return await future
        self._busy = True
        try:
            return (await self._store.get((job,)))[0]
        finally:
            if self._asked:
                self._task = loop.create_task(self._read(), name="jobq reader")
            else:
                self._busy = False

    async def _read(self) -> None:
        try:
            while self._asked:
                batch, self._asked = self._asked[: self.MOST], self._asked[self.MOST :]
                await self._read_batch(
                    [(job, future) for job, future in batch if not future.done()]
                )
        finally:
            self._busy = False
            self._task = None
            for _, future in self._asked:  # only when the loop is being torn down
                future.cancel()
            self._asked.clear()

    async def _read_batch(
        self, batch: list[tuple[JobKey, asyncio.Future[JobRecord | None]]]
    ) -> None:
        try:
            records = await self._store.get([job for job, _ in batch]) if batch else []
        except Exception as error:
            for _, future in batch:
                if (
                    not future.done()
                ):  # each its own copy: a shared one would collect all their tracebacks
                    future.set_exception(copy.copy(error).with_traceback(error.__traceback__))
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), record in zip(batch, records, strict=True):
                if not future.done():
                    future.set_result(record)


class Session:
    """A store handle of the running event loop, and how many queues use it."""

    __slots__ = ("loop", "pipeline", "reader", "sender", "store", "users")

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.pipeline = pipeline_of(store)
        self.sender = Sender(store)
        self.reader = Reader(store)
        self.users = 0


_sessions: dict[int, Session] = {}  # by the id of their store, which they keep alive


async def open_session(url: str, clock: Clock | None = None) -> Session:
    """The session on `url` for the running event loop. Each call is given back by one `close_session`."""
    store = await handles.handle(url, clock)
    session = _sessions.get(id(store))
    if session is None:
        _forget_closed_loops()
        session = _sessions[id(store)] = Session(store)
    session.users += 1
    return session


async def close_session(session: Session) -> None:
    """Give a session back; the last one closes its store."""
    session.users -= 1
    if session.users == 0:
        _sessions.pop(id(session.store), None)
    await handles.release(session.store)


async def close_sessions_here() -> None:
    """Close all sessions of the running event loop, whoever uses them: it is about to end."""
    loop = asyncio.get_running_loop()
    for session in list(_sessions.values()):
        while session.loop is loop and session.users:
            await close_session(session)


def _forget_closed_loops() -> None:
    for key, session in list(
        _sessions.items()
    ):  # a copy made in one step: other threads have sessions too
        if session.loop.is_closed():
            _sessions.pop(key, None)
