"""Jobs whose task a worker does not know.

They are deferred, because another worker or the next deploy may know the task. A job that was
deferred every time it was claimed counts as not yet started: its ttl continues, and it can still be
changed. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records import Mode

FIRST_MS = 1_000
"""The first delay. A rolling deploy often takes no longer."""
LONGEST_MS = 30_000
"""The longest delay: how late a job may run after a worker that knows its task has started."""
GIVE_UP_MS = 3_600_000
"""A job whose task no worker has known for an hour fails.

By then the name is a mistake, not a deploy in progress.
"""


class PutOff(NamedTuple):
    """What a store keeps about a job that was deferred in this life."""

    times: int = 0  # how many attempts were deferred
    since_ms: int = 0  # when the first one was deferred
    # When the job was due before, which its ttl counts from. 0: it was rescheduled since.
    due_ms: int = 0

    def again(self, *, now_ms: int, due_ms: int | None) -> PutOff:
        """The record after one more deferral.

        `due_ms` is the job's. Copied by lua/unknown.lua (J.defer).
        """
        return (
            self._replace(times=self.times + 1)
            if self.times
            else PutOff(1, now_ms, due_ms or now_ms)
        )


def starts(attempt: int, put_off: PutOff | None) -> int:
    """How many of the attempts began a run. Copied by lua/unknown.lua (J.starts)."""
    return attempt if put_off is None else attempt - put_off.times


def delay_ms(waited_ms: int) -> int | None:
    """The delay of a job that was first deferred `waited_ms` ago: 1, 2, 4, 8, 16, 30, 30 … s.

    None: give up.
    """
    return None if waited_ms >= GIVE_UP_MS else min(FIRST_MS + max(0, waited_ms), LONGEST_MS)


def waits(mode: Mode | None, delay: int) -> tuple[int, int]:
    """The delays of the job and of its key, in ms. Copied by lua/unknown.lua (J.defer).

    In a keyed queue the job keeps its place and its key is held, so no job of the key overtakes it.
    """
    return (0, delay) if mode == "keyed" else (delay, 0)
