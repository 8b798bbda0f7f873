"""What the copy of a failed job in a dead-letter queue is. lua/flow.lua (J.forward, J.MAIL.letter) copies these rules.

The copy has an id made of the original's, so that a second copy is impossible. Of the original's options it keeps the priority.
Its `failure` is the original's until it fails itself: `failure.attempt` says how many attempts the original took. Its own
counters begin at 0, because it has not run.
"""

from __future__ import annotations

from jobq.core.records import MAX_ID_LENGTH, Mode


def letter_id(queue: str, id: str, life: int) -> str:
    """The copy's id. Of a text too long for an id, the end is what tells jobs apart."""
    return f"{queue}/{id}/{life}"[-MAX_ID_LENGTH:]


def origin(queue: str, id: str) -> str:
    """What the copy says about where it comes from."""
    return f"{queue}/{id}"


def letter_key(mode: Mode | None, key: str | None, queue: str) -> str | None:
    """The copy's key in a queue of this mode (None: the copy is its first job). A keyed queue takes jobs of a plain one under the
    name of the queue they come from."""
    if mode == "plain":
        return None
    return key if key is not None or mode is None else queue
