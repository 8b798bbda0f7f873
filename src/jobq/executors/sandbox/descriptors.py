"""Open files of a child: which ones it keeps, and what becomes of those that a job leaves."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from jobq.executors.sandbox.defaults import NULL

STANDARD = (0, 1, 2)
_SPARE = 4
"""Numbers. Listing descriptors takes one, and removing files three."""


class Descriptors:
    """The open files of this process. Made before Landlock hides /proc."""

    def __init__(self, keep: Iterable[int]) -> None:
        self._folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._null = os.open(NULL, os.O_RDWR | os.O_CLOEXEC)
        self._own = {*STANDARD, *keep, self._folder, self._null}
        self._spare: list[int] = []  # numbers for a job that leaves none free
        self._take_spare()

    def close_others(self, but: Iterable[int] = ()) -> None:
        """Close what was inherited, except for the standard streams and what is to be kept.

        `but` are others that are still needed for a moment.
        """
        for fd in self._opened() - self._own - {*but}:
            os.close(fd)

    def keep_opened(self) -> None:
        """Keep what is open now beyond the end of each job, e.g. the event loop's descriptors."""
        self._own |= self._opened()

    @contextmanager
    def room(self) -> Iterator[None]:
        """Have a few numbers free, even if a job has used them all."""
        for fd in self._spare:
            os.close(fd)
        self._spare.clear()
        try:
            yield
        finally:
            self._take_spare()

    def neutralise_others(self) -> int:
        """Replace what a job has left open by /dev/null, so that the next job cannot use it.

        It is not closed: the object that holds the number would then use, and finally close, a
        file of the next job that gets the same number. Returns how many there are.
        """
        others = self._opened() - self._own
        for fd in others:
            os.dup2(self._null, fd, inheritable=False)
        return len(others)

    def _take_spare(self) -> None:
        with suppress(OSError):  # a thread of the job has taken them
            while len(self._spare) < _SPARE:
                self._spare.append(os.dup(self._null))

    def _opened(self) -> set[int]:
        listed = map(int, os.listdir(self._folder))
        # The one that listed them is closed again.
        return {fd for fd in listed if _is_open(fd)} - {*self._spare}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
