"""Jobs whose task a worker does not know: put off at no cost, because another worker or the next
deploy may know it. Pure.

A job that was put off each time it was claimed counts as not yet started: its ttl goes on, and it
can still be changed.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records import Mode

FIRST_MS = 1_000
"""The first wait. A rolling deploy often needs no longer."""
LONGEST_MS = 30_000
"""The longest wait: how late a job may run after a worker that knows its task was started."""
GIVE_UP_MS = 3_600_000
"""A job that no worker has known for so long fails: by then the name is a mistake, and not a deploy
under way.
"""


class PutOff(NamedTuple):
    """What a store keeps of a job that was put off in this life."""

    times: int = 0  # how many of its attempts
    since_ms: int = 0  # when the first was
    due_ms: int = (
        0  # when it was due before: its ttl counts from there; 0: it was given another time since
    )

    def again(self, *, now_ms: int, due_ms: int | None) -> PutOff:
        """The same after one more; `due_ms` is the job's. Copied by lua/unknown.lua (J.defer)."""
        return (
            self._replace(times=self.times + 1)
            if self.times
            else PutOff(1, now_ms, due_ms or now_ms)
        )


def starts(attempt: int, put_off: PutOff | None) -> int:
    """How many of its attempts began a run. Copied by lua/unknown.lua (J.starts)."""
    return attempt if put_off is None else attempt - put_off.times


def delay_ms(waited_ms: int) -> int | None:
    """How long to put off a job that was first put off `waited_ms` ago: 1, 2, 4, 8, 16, 30, 30 … s.

    None: give up.
    """
    return None if waited_ms >= GIVE_UP_MS else min(FIRST_MS + max(0, waited_ms), LONGEST_MS)


def waits(mode: Mode | None, delay: int) -> tuple[int, int]:
    """Who waits: (the job, its key), in ms.

    In a keyed queue the job keeps its place and its key is held, so nothing of the key overtakes
    it. Copied by lua/unknown.lua (J.defer).
    """
    return (0, delay) if mode == "keyed" else (delay, 0)
