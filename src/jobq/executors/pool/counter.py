"""A number in memory that a worker and its child share: the last job that the child has begun.

It costs no message. When a child has died, the worker reads there whether the job that it had just
sent was begun. If not, another child runs it, and the job does not notice.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

_NUMBER = struct.Struct("=Q")


class Counter:
    """The shared number."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _NUMBER.size)

    @property
    def value(self) -> int:
        """The number."""
        return int(_NUMBER.unpack_from(self._memory)[0])

    @value.setter
    def value(self, number: int) -> None:
        _NUMBER.pack_into(self._memory, 0, number)

    def close(self) -> None:
        """Give up the memory."""
        self._memory.close()


def make_counter() -> int:
    """A new descriptor that both processes map."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jobq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _NUMBER.size)
    return descriptor
