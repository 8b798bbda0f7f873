"""Counts handler calls in any number of processes: each one counts in a file of its own.

Uses the standard library only, because it is imported in the environments of other libraries.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_NUMBER = struct.Struct("=Q")


class Ticks:
    """The count of one folder. It follows a fork: the child gets a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._pid = 0
        self._memory: mmap.mmap | None = None
        self._count = 0

    def tick(self) -> None:
        """Count one call. The number is in shared memory, so this needs no system call."""
        if self._pid != os.getpid():
            self._open()
        self._count += 1
        assert self._memory is not None
        _NUMBER.pack_into(self._memory, 0, self._count)

    def total(self) -> int:
        """The calls that all processes have counted."""
        files = [path.read_bytes() for path in self._folder.iterdir()]
        return sum(_NUMBER.unpack(data)[0] for data in files if len(data) == _NUMBER.size)

    def _open(self) -> None:
        self._pid = os.getpid()
        self._count = 0
        with open(self._folder / str(self._pid), "wb+") as file:
            file.truncate(_NUMBER.size)
            self._memory = mmap.mmap(file.fileno(), _NUMBER.size)
