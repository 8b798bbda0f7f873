"""A store whose calls have a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, TypeVar, cast

from jobq.errors import StoreUnavailable
from jobq.stores.base import Store

T = TypeVar("T")


async def within(reply: Awaitable[T], seconds: float, late: str) -> T:
    """Wait for a reply. StoreUnavailable with the text `late` if it takes too long."""
    try:
        async with asyncio.timeout(seconds):
            return await reply
    except TimeoutError as error:
        raise StoreUnavailable(late) from error


def patient(store: Store, seconds: float, late: str) -> Store:
    """The same store, each of whose calls may take some seconds."""
    return cast("Store", _Patient(store, seconds, late))


class _Patient:
    def __init__(self, store: Store, seconds: float, late: str) -> None:
        self._store, self._seconds, self._late = store, seconds, late

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            reply = found(*args, **kwargs)
            # `listen` is no call that is awaited: what it returns is open for long.
            return within(reply, self._seconds, self._late) if isawaitable(reply) else reply

        return call
