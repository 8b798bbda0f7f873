"""`memory://` and `sqlite:///path`: the embedded store.

Durability. `sqlite:///path` (WAL, synchronous=NORMAL): an acknowledged call survives the death of
any process, also by SIGKILL. A power cut or a kernel crash may undo the calls of the last two
seconds, each of them as a whole. With `?synchronous=full` calls survive those too, if the disk does
what it reports. `memory://` exists while a handle of the process is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from jobq.core.records import refusals
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.stores.base import Clock
from jobq.stores.relational import signals
from jobq.stores.relational.store import RelationalStore, Work
from jobq.stores.sqlite import database, upkeep
from jobq.stores.sqlite.calls import Calls
from jobq.stores.sqlite.mailbox import LocalMailbox

T = TypeVar("T")


class SqliteStore(RelationalStore):
    """A handle, for one event loop. Handles on the same file share a database (see database.py)."""

    lanes = 1  # the store works in this process: more calls at a time gain nothing

    def __init__(
        self,
        url: str,
        name: str,
        path: str | None,
        *,
        full: bool,
        checksums: bool = False,
        clock: Clock | None,
    ) -> None:
        super().__init__(url)
        self._name, self._path, self._clock = name, path, clock
        self._full, self._checksums = full, checksums
        self._calls: Calls | None = None
        self._mailbox: LocalMailbox | None = None

    # ── lifecycle ─────────────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> None:
        if self._calls is None:
            shared = database.shared(
                self._name, self._path, full=self._full, checksums=self._checksums
            )
            try:
                await shared.ready()
                shared.check_options(full=self._full, checked=self._checksums)
            except BaseException:
                database.released(self._name)
                raise
            self._calls = Calls(shared, self._clock)

    async def aclose(self) -> None:
        if self._calls is None:
            return
        if self._mailbox is not None:
            mailbox, self._mailbox = self._mailbox, None
            with contextlib.suppress(Exception):  # a sweep deletes the registrations later
                await self._write(signals.leave, mailbox.address)
            self._calls.database.post.mailboxes.pop(mailbox.port, None)
            mailbox.close()
        self._calls = None
        await asyncio.get_running_loop().run_in_executor(None, database.released, self._name)

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def tick(self, *, limit: int = 500) -> int:
        return await self._write(upkeep.tick, limit)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    def _opened(self) -> Calls:
        if self._calls is None:
            raise refusals.not_open()
        return self._calls

    def _is_open(self) -> bool:
        return self._calls is not None

    def _log_id(self) -> str:
        return self._opened().database.log_id

    def _write(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a write of any size, on the writer's thread."""
        calls = self._opened()
        return calls.run(calls.database.writer, False, work, args)

    def _write_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a write of at most SMALL jobs, at once if no other transaction is under way."""
        calls = self._opened()
        return calls.run(calls.database.writer, True, work, args)

    def _read(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a read of any size, on the reader's thread."""
        calls = self._opened()
        return calls.run(calls.database.reader, False, work, args)

    def _read_small(self, work: Work[T], *args: object) -> Coroutine[Any, Any, T]:
        """Run a read of at most SMALL jobs, at once."""
        calls = self._opened()
        return calls.run(calls.database.reader, True, work, args)

    async def _has_work(self, queue: QueueName) -> bool:
        """Whether a job of the queue waits or is delayed."""
        counts = await self.count(queue)
        return bool(counts.get(State.WAITING) or counts.get(State.DELAYED))

    def _box(self) -> LocalMailbox:
        if self._mailbox is None:
            opened = self._opened().database
            self._mailbox = LocalMailbox(across_processes=self._path is not None)
            self._mailbox.has_work = self._has_work
            opened.post.mailboxes[self._mailbox.port] = self._mailbox
        return self._mailbox
