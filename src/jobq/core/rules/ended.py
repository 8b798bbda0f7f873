"""What becomes of ended jobs: how long their record is kept, and their copy in a dead-letter queue.

lua/record.lua (J.own_ttl, J.retention) copies `kept_ms`, and lua/put.lua (J.in_the_way) copies
`next_life`.
"""

from __future__ import annotations

import hashlib

from jobq.core.records.defaults import WATCHED_MS
from jobq.core.records.jobs import Mode
from jobq.core.records.queues import RetentionData
from jobq.core.records.states import State
from jobq.core.values.checks import MAX_ID_LENGTH


def by_state(retention: RetentionData, state: State) -> int | None:
    """The queue's retention for jobs that ended in this state, in milliseconds. None: forever."""
    if state is State.COMPLETED:
        return retention.completed_ms
    return retention.failed_ms if state is State.FAILED else retention.cancelled_ms


def kept_ms(
    retention: RetentionData,
    state: State,
    *,
    result_ttl_ms: int | None = None,
    watched: bool = False,
) -> int | None:
    """How long after its end a record can be read. None: forever.

    An explicit result_ttl takes precedence, except for cancelled jobs, which have no result. While
    a caller waits for the job (`watched`), the queue's retention leaves the caller time to read the
    result.
    """
    if result_ttl_ms is not None and state is not State.CANCELLED:
        return result_ttl_ms
    ms = by_state(retention, state)
    return max(ms, WATCHED_MS) if watched and ms is not None else ms


def next_life(life: int | None, *, expired: bool = False) -> int:
    """The life of a new job with the id of a job that was in this life; None: there is no record.

    A record that has expired is as good as removed, whether a store has removed it yet or not. So
    (id, life) may repeat: in the event log, the number of `accepted` distinguishes two jobs.
    """
    return 0 if life is None or expired else life + 1


# The copy of a failed job in a dead-letter queue.
#
# lua/dead_letters.lua (J.forward, J.MAIL.letter) copies these rules. The copy keeps the original's
# name, arguments, and the options of `core.rules.options.LETTER`. Its `failure` is the
# original's until the copy itself fails, so `failure.attempt` says how many attempts the original
# took. Its counters start at 0, because the copy has not run.

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
