"""What a job prints becomes its log lines: cut into lines, capped, and stored in batches."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

from jobq.core.records.defaults import LOG_LINE, LOG_LINES
from jobq.executors.running import Running

MAX_LINES = LOG_LINES - 1
"""Lines that a run stores of its output. The store keeps one more, which counts the others."""


class Output:
    """The output of one run. `add` takes what was read, `finish` waits until it is stored."""

    def __init__(self, run: Running) -> None:
        self._run = run
        self._partial = b""  # a line that has not ended
        self._cut = False  # the rest of the current line is dropped
        self._lines: list[str] = []
        self._kept = self._dropped = 0
        self._sending: asyncio.Task[None] | None = None

    def add(self, data: bytes) -> None:
        """Take a piece of output. Its complete lines are stored soon."""
        if self._kept >= MAX_LINES:
            self._count(data)
            return
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._end_line(part)
        if rest and not self._cut:
            self._partial += rest
            if len(self._partial) > 4 * LOG_LINE:  # UTF-8: at least LOG_LINE characters
                self._line(self._partial)
                self._partial, self._cut = b"", True
        if self._lines and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def take(self) -> tuple[str, ...]:
        """The lines that are not being stored yet, for a caller that stores them itself."""
        lines, self._lines = tuple(self._lines), []
        return lines

    async def finish(self) -> None:
        """Store what is left, also a last line without an end."""
        if self._partial:
            self._end_line(b"")
        if self._dropped:
            self._lines.append(f"… and {self._dropped:,} lines more, which are not stored")
        if self._sending is not None:
            await self._sending
        if self._lines:
            await self._send()

    def _count(self, data: bytes) -> None:
        """Count the lines of a piece of which nothing is stored."""
        lines = data.count(b"\n")
        if lines:
            self._dropped += lines - (1 if self._cut else 0)  # a cut line is stored
            self._partial, self._cut = b"", False
        if not self._cut:  # all that matters now is whether a last line has begun
            self._partial = (self._partial + data.rpartition(b"\n")[2])[:1]

    def _end_line(self, part: bytes) -> None:
        if not self._cut:
            self._line(self._partial + part)
        self._partial, self._cut = b"", False

    def _line(self, data: bytes) -> None:
        if self._kept >= MAX_LINES:
            self._dropped += 1
            return
        self._kept += 1
        text = data.decode("utf-8", "replace").rstrip("\r")
        if len(text) > LOG_LINE:
            text = f"{text[:LOG_LINE]}… (cut)"
        self._lines.append(text)

    async def _send(self) -> None:
        try:
            while self._lines:
                await self._run.note(None, self.take())
        finally:
            self._sending = None


def read_until_now(pipe: int, read: Callable[[], int]) -> None:
    """Read what is in a pipe now. `read` reads some of it, and returns how many bytes.

    Not until the pipe is empty: a process that writes without a pause would keep it there for ever.
    """
    left = readable_bytes(pipe)
    while left > 0 and (size := read()):
        left -= size


def readable_bytes(pipe: int) -> int:
    """How many bytes are in a pipe or a socket now."""
    (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(size)
