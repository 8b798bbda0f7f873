"""An append-only file that is synced before anybody relies on it: the ledger outside the store."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.waiting import takes

GATHER_S = 0.01
"""Seconds for which lines are gathered before they are synced: one sync costs as much as many."""


class Journal:
    """Appends lines to a file of this process alone.

    `write` blocks until the lines are on the disk. `note` does the same for coroutines, and syncs
    the lines of several together.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lines: list[str] = []
        self._next: asyncio.Future[None] | None = None  # done when the lines above are synced
        self._writing: asyncio.Task[None] | None = None

    def write(self, text: str) -> None:
        """Append whole lines and sync them."""
        data = text.encode()
        while data:
            data = data[os.write(self._fd, data) :]
        os.fdatasync(self._fd)

    async def note(self, line: str) -> None:
        """Append a line, and return when it is synced."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._lines.append(line)
        synced = self._next
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await asyncio.shield(synced)

    async def _write_all(self) -> None:
        while self._next is not None:
            await takes(GATHER_S)
            lines, self._lines = self._lines, []
            synced, self._next = self._next, None
            await asyncio.to_thread(self.write, "".join(lines))
            synced.set_result(None)
