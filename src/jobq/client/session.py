"""A session: a store handle in one event loop, with its sender and its reader.

Queues with the same URL share one session per event loop, so their puts and reads share batches.
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
"""Jobs per store call when many are stored or changed: enough that the cost of a call does not
matter, few enough that other writers do not wait long."""


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`. An iterator is read only as far as needed."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class Session:
    """A store handle of the running event loop. `users` counts the queues that have it open."""

    __slots__ = ("loop", "pipeline", "reader", "sender", "store", "users")

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = store
        self.pipeline = pipeline_of(store)
        self.sender = Sender(store)
        self.reader = Reader(store)
        self.users = 0


_sessions: dict[int, Session] = {}  # by id() of the store, which the session keeps alive


async def open_session(url: str, clock: Clock | None = None) -> Session:
    """The session with the store at `url` in the running event loop. Call `close_session` once for
    each call."""
    store = await store_handles.handle(url, clock)
    session = _sessions.get(id(store))
    if session is None:
        _forget_closed_loops()
        session = _sessions[id(store)] = Session(store)
    session.users += 1
    return session


async def close_session(session: Session) -> None:
    """Stop using a session. The last user closes its store."""
    session.users -= 1
    if session.users == 0:
        _sessions.pop(id(session.store), None)
    await store_handles.release(session.store)


async def close_sessions_here() -> None:
    """Close all sessions of the running event loop, which is about to end."""
    loop = asyncio.get_running_loop()
    for session in list(_sessions.values()):
        while session.loop is loop and session.users:
            await close_session(session)


def _forget_closed_loops() -> None:
    for key, session in list(_sessions.items()):  # a copy: other threads change it too
        if session.loop.is_closed():
            _sessions.pop(key, None)
