"""The copy of a failed job in a dead-letter queue.

lua/dead_letters.lua (J.forward, J.MAIL.letter) copies these rules. The copy keeps the original's
name, arguments, and the options of `core.options.LETTER`. Its `failure` is the original's until the
copy itself fails, so `failure.attempt` says how many attempts the original took. Its counters start
at 0, because the copy has not run.
"""

from __future__ import annotations

import hashlib

from jobq.core.records import MAX_ID_LENGTH, Mode

_DIGEST_LENGTH = 40
"""Characters of a SHA-1 in hex. Lua on the server has no other digest."""


def letter_id(queue: str, id: str, life: int) -> str:
    """The copy's id. If the text is too long for an id, its beginning is cut off."""
    return f"{queue}/{id}/{life}"[-MAX_ID_LENGTH:]


def second_letter_id(queue: str, id: str, life: int, number: int) -> str:
    """The copy's id if `letter_id` belongs to the copy of another failure.

    This happens when the original was removed and its id is in use again, or when two ids have the
    same end. `number` is the number of the event that recorded the failure, or another one that the
    store gives only once, so two failures never share this id. If the text is too long for an id, a
    digest replaces its beginning.
    """
    text = f"{queue}/{id}/{life}/{number}"
    if len(text) <= MAX_ID_LENGTH:
        return text
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return f"{digest}/{text[_DIGEST_LENGTH + 1 - MAX_ID_LENGTH :]}"


def origin(queue: str, id: str) -> str:
    """The `origin` of the copy: which job it was copied from."""
    return f"{queue}/{id}"


def letter_key(mode: Mode | None, key: str | None, queue: str) -> str | None:
    """The copy's key in a queue of this mode. None if the queue has no jobs yet.

    In a keyed queue, a copy from a plain queue has the name of that queue as its key.
    """
    if mode == "plain":
        return None
    return key if key is not None or mode is None else queue
