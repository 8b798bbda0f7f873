"""Open files of a child: which ones it keeps, and what becomes of those that a job leaves."""

from __future__ import annotations

import os
from collections.abc import Iterable

from jobq.executors.sandbox.defaults import NULL

STANDARD = (0, 1, 2)


class Descriptors:
    """The open files of this process. Made before Landlock hides /proc."""

    def __init__(self, keep: Iterable[int]) -> None:
        self._folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own = {*STANDARD, *keep, self._folder}

    def close_others(self) -> None:
        """Close what was inherited, except for the standard streams and what is to be kept."""
        for fd in self._opened() - self._own:
            os.close(fd)

    def keep_opened(self) -> None:
        """Keep what is open now beyond the end of each job, e.g. the event loop's descriptors."""
        self._own |= self._opened()

    def neutralise_others(self) -> None:
        """Replace what a job has left open by /dev/null, so that the next job cannot use it.

        It is not closed: the object that holds the number would then use, and finally close, a
        file of the next job that gets the same number.
        """
        others = self._opened() - self._own
        if not others:
            return
        null = os.open(NULL, os.O_RDWR | os.O_CLOEXEC)
        for fd in others:
            os.dup2(null, fd, inheritable=False)
        os.close(null)

    def _opened(self) -> set[int]:
        listed = map(int, os.listdir(self._folder))
        return {fd for fd in listed if _is_open(fd)}  # the one that listed them is closed again


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
