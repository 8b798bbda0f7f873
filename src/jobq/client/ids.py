"""The process's own makers of ids, one per thread. Nothing is decided by their clock: a store never looks into an id."""

from __future__ import annotations

import os
import threading
import time

from jobq.core.ids import CHANCE_BITS, IdMaker


class _OfThread(threading.local):
    """A thread's maker. Two makers of the same chance would still have to meet in the counter, which starts anywhere."""

    def __init__(self) -> None:
        self.next = IdMaker(
            chance=int.from_bytes(os.urandom(CHANCE_BITS // 8)), count=int.from_bytes(os.urandom(4))
        ).next


_ids = _OfThread()


def new_id() -> str:
    """A new id, later in order than all that this thread made before. Safe among threads."""
    return _ids.next(time.time_ns() // 1_000_000)


def _begin_anew() -> None:
    # A forked child would go on with its parent's counter and chance.
    global _ids
    _ids = _OfThread()


os.register_at_fork(after_in_child=_begin_anew)
