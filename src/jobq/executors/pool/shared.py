"""Two numbers in memory that a worker and its child share. They cost no message.

`begun` is the last job that the child has begun. When a child has died, the worker reads there
whether the job that it had just sent was begun. If not, another child runs it, and the job does not
notice.

`asked` is the last job that the worker has asked to stop. The child compares it when it receives
SIGTERM. So a signal that comes late, or from a service manager that signals every process, does not
interrupt a job.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile

_NUMBER = struct.Struct("=Q")
_BEGUN, _ASKED = 0, _NUMBER.size
_SIZE = 2 * _NUMBER.size


class Shared:
    """The shared numbers."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE)

    @property
    def begun(self) -> int:
        """The last job that the child has begun."""
        return int(_NUMBER.unpack_from(self._memory, _BEGUN)[0])

    @begun.setter
    def begun(self, job: int) -> None:
        _NUMBER.pack_into(self._memory, _BEGUN, job)

    @property
    def asked(self) -> int:
        """The last job that the worker has asked to stop."""
        return int(_NUMBER.unpack_from(self._memory, _ASKED)[0])

    @asked.setter
    def asked(self, job: int) -> None:
        _NUMBER.pack_into(self._memory, _ASKED, job)

    def close(self) -> None:
        """Give up the memory."""
        self._memory.close()


def make_shared() -> int:
    """A new descriptor that both processes map."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jobq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor
