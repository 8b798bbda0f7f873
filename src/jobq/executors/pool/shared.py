"""Two numbers in memory that a worker and its child share. They cost no message.

`begun` is the last job that the child has begun. When a child has died, the worker reads there
whether the job that it had just sent was begun. If not, another child runs it, and the job does not
notice.

`asked` is the last job that the worker has asked to stop. The child compares it when it receives
SIGTERM. So a signal that comes late, or from a service manager that signals every process, does not
interrupt a job.

The child maps the memory. The worker does not: it would be killed by SIGBUS if a handler truncated
the memory. It reads and writes it as a file, which it rarely does.
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
    """The shared numbers, as the child has them."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SIZE)

    def begin(self, job: int) -> None:
        """Tell that this job has begun."""
        _NUMBER.pack_into(self._memory, _BEGUN, job)

    @property
    def asked(self) -> int:
        """The last job that the worker has asked to stop."""
        return int(_NUMBER.unpack_from(self._memory, _ASKED)[0])


class SharedFile:
    """The shared numbers, as the worker has them. The child can write anything there."""

    def __init__(self) -> None:
        self.descriptor = _make()

    def has_begun(self, job: int) -> bool:
        """Whether the child has begun this job, as far as it says so."""
        return os.pread(self.descriptor, _NUMBER.size, _BEGUN) == _NUMBER.pack(job)

    def ask(self, job: int) -> None:
        """Tell that this job is asked to stop."""
        os.pwrite(self.descriptor, _NUMBER.pack(job), _ASKED)

    def close(self) -> None:
        """Give up the memory."""
        os.close(self.descriptor)


def _make() -> int:
    """A new descriptor that both processes can use."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("jobq")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor
