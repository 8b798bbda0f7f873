"""New job ids, made by one generator per thread.

An id contains this machine's time, but nothing depends on that: stores never look into an id.
"""

from __future__ import annotations

import os
import threading
import time

from jobq.core.values.ids import CHANCE_BITS, IdMaker


class _PerThread(threading.local):
    """A thread's generator. Its random part and the start of its counter are random, so two
    generators practically never make the same id."""

    def __init__(self) -> None:
        self.next = IdMaker(
            chance=int.from_bytes(os.urandom(CHANCE_BITS // 8)), count=int.from_bytes(os.urandom(4))
        ).next


_ids = _PerThread()


def new_id() -> str:
    """A new id. It sorts after all ids that this thread made before. Safe to call in any thread."""
    return _ids.next(time.time_ns() // 1_000_000)


def _reset() -> None:
    """Make new generators in a forked child, which would otherwise repeat its parent's ids."""
    global _ids
    _ids = _PerThread()


os.register_at_fork(after_in_child=_reset)
