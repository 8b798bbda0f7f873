"""One of the two stores of a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from jobq.errors import StoreUnavailable
from jobq.stores.base import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """A store, the time that it has for each reply in seconds, and who makes the calls."""

    store: Store
    timeout_s: float = 10.0
    actor: str | None = None

    async def within(self, reply: Awaitable[T]) -> T:
        """Wait for a reply. StoreUnavailable if it takes too long."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await reply
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self.store.url} did not reply within {self.timeout_s:g} s; "
                "run the same command again to continue the copy"
            ) from error
