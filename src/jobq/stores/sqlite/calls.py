"""Runs the calls of one handle on its database, and repairs damaged rows that a call meets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import apsw
import msgspec

from jobq.errors import JobqError
from jobq.stores.base import Clock
from jobq.stores.relational.store import Work
from jobq.stores.sqlite import damage, repair
from jobq.stores.sqlite.database import Database
from jobq.stores.sqlite.transactions import TransactionThread

T = TypeVar("T")

DAMAGE = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    msgspec.MsgspecError,
    apsw.MismatchError,
    apsw.ConstraintError,
)
"""What a call raises when it meets a row with a value that jobq never writes."""
SEARCH_S = 60.0
"""Seconds between two searches of the whole database, each about ten seconds per million jobs."""


class Calls:
    """Carries out work(tx, *args) in transactions of a database.

    A call that fails on a damaged row is undone. The row is repaired, and the call is repeated.
    Calls that succeed pay nothing for this."""

    def __init__(self, database: Database, clock: Clock | None) -> None:
        self.database = database
        self._clock = clock
        self._next_search = 0.0

    async def run(
        self, on: TransactionThread, small: bool, work: Work[T], args: tuple[object, ...]
    ) -> T:
        """Run work(tx, *args): at once if it is small and no other transaction is under way on the
        connection, else on its thread."""
        try:
            return await on.submit(small, self._clock, work, args)
        except DAMAGE as error:
            if isinstance(error, JobqError):
                raise
        await self._repair_near(args)
        try:
            return await on.submit(False, self._clock, work, args)
        except DAMAGE as error:
            if isinstance(error, JobqError) or not await self._repair_everywhere():
                raise
        return await on.submit(False, self._clock, work, args)

    async def _repair_near(self, args: tuple[object, ...]) -> None:
        """Repair the bad rows among those that a call with these arguments may have read."""
        names = damage.named(args)
        found = await self._submit_read(damage.near, names)
        if found:
            await self._submit_write(repair.repair, found, names.numbers)

    async def _repair_everywhere(self) -> bool:
        """Repair all bad rows of the database. Returns whether there were any.

        Each step is a transaction of its own, so other calls go on meanwhile."""
        if time.monotonic() < self._next_search:
            return False
        self._next_search = time.monotonic() + SEARCH_S
        repaired = False
        after: int | None = 0
        while after is not None:
            found, after = await self._submit_read(damage.everywhere, after)
            if found:
                await self._submit_write(repair.repair, found, {})
                repaired = True
        return repaired

    def _submit_read(self, work: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        return self.database.reader.submit(False, self._clock, work, args)

    def _submit_write(self, work: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        return self.database.writer.submit(False, self._clock, work, args)
