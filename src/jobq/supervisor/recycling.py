"""When a worker process wants to be replaced: after so many jobs, or above so much memory."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

_MEASURE_S = 0.25
"""Seconds between two readings of the memory in use. Each takes about 10 µs."""


class Recycling:
    """Counts ended jobs. Returns once why the process should be replaced.

    Memory is compared when jobs end, so a process in which no job ends is not replaced.
    """

    def __init__(
        self,
        *,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        memory: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_memory` is in bytes, and `memory` returns the bytes in use."""
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._memory = memory or resident_bytes
        self._clock = clock
        self._jobs = 0
        self._measure_at = clock()
        self._reported = False

    def ended(self, jobs: int) -> str | None:
        """Count jobs that have ended. Returns the reason for a replacement, once."""
        self._jobs += jobs
        if self._reported:
            return None
        why = self._why()
        self._reported = why is not None
        return why

    def _why(self) -> str | None:
        if self._max_jobs is not None and self._jobs >= self._max_jobs:
            return f"it has run {self._jobs} jobs (--max-jobs {self._max_jobs})"
        if self._max_memory is not None and (now := self._clock()) >= self._measure_at:
            self._measure_at = now + _MEASURE_S
            if (used := self._memory()) > self._max_memory:
                return f"it uses {_mib(used)} of memory (--max-memory {_mib(self._max_memory)})"
        return None


def resident_bytes() -> int:
    """The resident memory of this process. Where the system only tells its peak, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
