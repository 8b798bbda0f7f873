"""A queue's way to its store in one event loop: the shared handle, with the sender and the reader that go with it.

Queues on the same URL share one session per event loop, so that their puts and reads ride together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from jobq.client import store_handles
from jobq.client.reader import Reader
from jobq.client.sender import Sender
from jobq.stores.base import Clock, Store, pipeline_of

T = TypeVar("T")

CHUNK = 1000
"""Jobs per store call, where many are put or changed."""


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, taken as they are needed."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


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
    store = await store_handles.handle(url, clock)
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
    await store_handles.release(session.store)


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
