"""The process's own maker of ids. Nothing is decided by its clock: a store never looks into an id."""

from __future__ import annotations

import os
import threading
import time

from jobq.core.ids import CHANCE_BITS, IdMaker


def _maker() -> IdMaker:
    # The counter starts anywhere in its lower range: two makers of the same chance would still have to meet in it.
    return IdMaker(chance=int.from_bytes(os.urandom(CHANCE_BITS // 8)), count=int.from_bytes(os.urandom(4)))


_lock = threading.Lock()
_ids = _maker()


def new_id() -> str:
    """A new id, later in order than all that this process made before. Safe among threads."""
    with _lock:
        return _ids.next(time.time_ns() // 1_000_000)


def _begin_anew() -> None:
    # A forked child would go on with its parent's counter and chance, and perhaps with its lock held.
    global _lock, _ids
    _lock, _ids = threading.Lock(), _maker()


os.register_at_fork(after_in_child=_begin_anew)
