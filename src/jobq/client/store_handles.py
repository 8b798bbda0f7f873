"""Shared store handles: one per URL, event loop and process. Its last user closes it.

A handle belongs to the event loop that opened it and does not survive a fork, so both are part of
its key.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Clock, Store

_Key = tuple[str, int, int, Clock | None]


@dataclass(eq=False)
class _Entry:
    """A handle and how many use it. `ready` is done when `migrate` has returned or failed."""

    key: _Key
    loop: asyncio.AbstractEventLoop
    store: Store
    ready: asyncio.Future[None]
    users: int = field(default=0)


_entries: dict[_Key, _Entry] = {}


async def handle(url: str, clock: Clock | None = None) -> Store:
    """A connected handle on the store at `url` for the running event loop. Call `release` once for
    each call."""
    loop = asyncio.get_running_loop()
    key = (url, id(loop), os.getpid(), clock)
    entry = _entries.get(key)
    if entry is None or entry.loop is not loop:
        _forget_closed_loops()
        entry = _entries[key] = _Entry(
            key, loop, open_store(url, clock=clock), loop.create_future()
        )
        entry.users = 1
        return await _open(entry)
    entry.users += 1
    try:
        await asyncio.shield(entry.ready)
    except BaseException:
        await _leave(entry)
        raise
    return entry.store


async def release(store: Store) -> None:
    """Stop using a handle. The last user closes it. Stores that `handle` did not open are
    ignored."""
    loop = asyncio.get_running_loop()
    for entry in list(_entries.values()):  # a copy: other threads open and close handles too
        if entry.store is store and entry.loop is loop:
            await _leave(entry)
            return


async def _open(entry: _Entry) -> Store:
    try:
        await entry.store.migrate()
    except BaseException as error:
        _drop(entry)
        entry.ready.set_exception(
            error
            if isinstance(error, Exception)
            else StoreUnavailable(f"opening {entry.store.url} was cancelled")
        )
        entry.ready.exception()  # mark it as retrieved: there may be no waiter to raise it
        await entry.store.aclose()
        raise
    entry.ready.set_result(None)
    return entry.store


async def _leave(entry: _Entry) -> None:
    entry.users -= 1
    if entry.users <= 0 and _entries.get(entry.key) is entry:
        _drop(entry)
        await entry.store.aclose()


def _drop(entry: _Entry) -> None:
    if _entries.get(entry.key) is entry:
        del _entries[entry.key]


def _forget_closed_loops() -> None:
    """Drop the handles of event loops that ended without releasing them: their id() may be
    reused."""
    for entry in [
        e for e in list(_entries.values()) if e.loop.is_closed() or e.key[2] != os.getpid()
    ]:
        _drop(entry)
