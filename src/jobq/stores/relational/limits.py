"""Limits starts: by active jobs, by the rates of queues and keys, and by last chances.

A rate that is used up sets `held_ms` of its queue or key. No claim looks there again before that
time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from jobq.core.records.queues import Limits, RateData, Tokens, Window
from jobq.core.rules import limits
from jobq.core.rules.outcomes import is_last_chance, max_stalls
from jobq.stores.relational import keys
from jobq.stores.relational.packed import unpack_options
from jobq.stores.relational.rows import ACTIVE, WAITING, HeadOfQueue, KeyHead, QueueRow, read_all
from jobq.stores.relational.tx import Tx

_decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode


class Meter:
    """A rate and its state during a claim."""

    def __init__(self, rate: RateData, packed: bytes | None, now: int) -> None:
        self._rate, self._now = rate, now
        self._state = _loaded(rate, packed)
        self.held_ms = 0

    def take(self, cost: int) -> bool:
        """Pay for a start. If the rate does not allow it, `held_ms` says when to try again."""
        taken = limits.take(self._rate, self._state, self._now, cost)
        self._state = taken.state
        self.held_ms = 0 if taken.allowed else self._now + taken.retry_in_ms
        return taken.allowed

    def starts_left(self) -> int:
        """How many starts of cost 1 the rate allows now."""
        return limits.starts_left(self._rate, self._state, self._now)

    @property
    def packed(self) -> bytes | None:
        """The state as it is stored."""
        return (
            None
            if self._state is None
            else msgspec.msgpack.encode(limits.stored_rate(self._rate, self._state))
        )

    @property
    def until_ms(self) -> int:
        """The time from which on the state has no effect."""
        if self._state is None:
            return 0
        if isinstance(self._rate, Window):
            return self._state.at_ms + self._rate.per_ms
        return self._state.at_ms + math.ceil(
            (self._rate.capacity - self._state.value) * 1000 / self._rate.refill
        )


def _loaded(rate: RateData, packed: bytes | None) -> limits.RateState | None:
    """The stored state of a rate. One that cannot be read counts as none: the rate starts over."""
    try:
        return limits.loaded_rate(rate, None if packed is None else _decode(packed))
    except (msgspec.MsgspecError, TypeError, ValueError):
        return limits.loaded_rate(rate, None)


def starts_left(tx: Tx, queue: QueueRow, wanted: int) -> int:
    """How many jobs the queue's own limits allow to start now, if each costs 1."""
    if queue.held_ms > tx.now:
        return 0
    if not queue.has_settings:
        return wanted
    effective = queue.settings.effective
    if effective.limit is not None:
        wanted = min(wanted, effective.limit - tx.count(queue, ACTIVE))
    if isinstance(effective.rate, Window):
        meter = Meter(effective.rate, queue.rate, tx.now)
        if wanted > 0 and not meter.starts_left():
            meter.take(1)
            _keep(queue, meter)
        wanted = min(wanted, meter.starts_left())
    return wanted


def by_cost(queue: QueueRow) -> bool:
    """Whether each start of a plain queue is paid for separately."""
    return isinstance(queue.settings.effective.rate, Tokens)


def affordable(tx: Tx, queue: QueueRow, wanted: int) -> list[int]:
    """The jobs at the head of a plain queue that the bucket can pay for.

    Strictly in order: a cheaper job does not overtake.
    """
    meter = _meter(tx, queue)
    assert meter is not None
    rows = tx.execute(tx.sql.hot["head_facts"], (queue.qid, tx.now, wanted)).fetchall()
    chosen = []
    for job in read_all(rows, HeadOfQueue):
        if not meter.take(unpack_options(job.options).cost):
            break
        chosen.append(job.pk)
    _keep(queue, meter)
    return chosen


def pays_for(queue: QueueRow, cost: int, now: int) -> bool:
    """Whether the queue's bucket can pay for a start of this cost. It does not pay yet.

    If the bucket cannot pay, the queue is held until it can."""
    rate = queue.settings.effective.rate
    if not isinstance(rate, Tokens):
        return True
    meter = Meter(rate, queue.rate, now)
    if meter.take(cost):
        return True
    _keep(queue, meter)
    return False


def key_pays_for(tx: Tx, queue: QueueRow, head: KeyHead) -> bool:
    """The same for the next job of a key and the key's rate.

    If that cannot pay, the key is held."""
    key, cost = head.key or "", unpack_options(head.options).cost
    meter = _key_meter(tx, queue, head, keys.overrides(tx, queue.qid, [key]))
    if meter is not None and not meter.take(cost):
        _hold_key(tx, queue, key, meter)
        keys.settle(tx, queue.qid, [key])
        return False
    return pays_for(queue, cost, tx.now)


def started(tx: Tx, queue: QueueRow, n: int) -> None:
    """Count starts under a window. Starts under a bucket were paid for before."""
    if not queue.has_settings:
        return
    rate = queue.settings.effective.rate
    if isinstance(rate, Window):
        meter = _meter(tx, queue)
        assert meter is not None
        for _ in range(n):
            meter.take(1)
        if tx.count(queue, WAITING) > n and not meter.starts_left():
            meter.take(1)  # refused: sets the time at which workers look again
        _keep(queue, meter)


def keys_affordable(
    tx: Tx, queue: QueueRow, heads: list[KeyHead], overrides: Mapping[str, Limits]
) -> list[KeyHead]:
    """The heads (see `next_keys`) that may start. A key whose rate is used up is held until it may
    start.
    """
    every = queue.settings.effective.key_rate
    bucket = _meter(tx, queue) if by_cost(queue) else None
    if bucket is None and every is None and not overrides:
        return heads
    chosen, limited = [], []
    for head in heads:
        key, cost = head.key or "", unpack_options(head.options).cost
        meter = _key_meter(tx, queue, head, overrides)
        if meter is not None and not meter.take(cost):
            _hold_key(tx, queue, key, meter)
            limited.append(key)
            continue
        if bucket is not None and not bucket.take(cost):
            break
        if meter is not None:
            tx.execute(
                tx.sql.keyed["set_key_rate"], (meter.packed, meter.until_ms, 0, queue.qid, key)
            )
        chosen.append(head)
    if limited:
        keys.settle(tx, queue.qid, limited)
    if bucket is not None:
        _keep(queue, bucket)
    return chosen


def next_times(tx: Tx, queue: QueueRow) -> list[int]:
    """The times at which a held queue or key may start again."""
    times = [queue.held_ms] if queue.held_ms > tx.now else []
    if queue.mode == "keyed":
        row = tx.execute(tx.sql.keyed["next_held"], (queue.qid,)).fetchone()
        times += row or ()
    return times


def _key_meter(
    tx: Tx, queue: QueueRow, head: KeyHead, overrides: Mapping[str, Limits]
) -> Meter | None:
    rate = queue.settings.effective.key_rate
    if head.key is not None and head.key in overrides:
        rate = overrides[head.key].key_rate or rate
    return None if rate is None else Meter(rate, head.rate, tx.now)


def _hold_key(tx: Tx, queue: QueueRow, key: str, meter: Meter) -> None:
    tx.execute(
        tx.sql.keyed["set_key_rate"], (meter.packed, meter.until_ms, meter.held_ms, queue.qid, key)
    )


def _meter(tx: Tx, queue: QueueRow) -> Meter | None:
    rate = queue.settings.effective.rate
    return None if rate is None else Meter(rate, queue.rate, tx.now)


def _keep(queue: QueueRow, meter: Meter) -> None:
    queue.rate, queue.held_ms, queue.dirty = meter.packed, meter.held_ms, True


# Last chances: a job whose next stall would fail it is claimed alone.
#
# So it cannot stall other jobs.
#
# `StoredSettings.frail` counts the waiting jobs that have stalled. While it is 0, which is nearly
# always, claims do not look for jobs on their last chance.


class _Stalling(Protocol):
    """The columns of a job that decide whether it is on its last chance."""

    @property
    def stalls(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> bytes | None: ...


def allowed(queue: QueueRow, job: _Stalling) -> int:
    """How often the job may stall."""
    return max_stalls(unpack_options(job.options).max_stalls, job.name, queue.settings.max_stalls)


def is_last(queue: QueueRow, job: _Stalling) -> bool:
    """Whether the next stall of the job fails it."""
    return job.stalls > 0 and is_last_chance(job.stalls, allowed(queue, job))


def claimable_together(tx: Tx, queue: QueueRow, wanted: int, *, alone: bool) -> int:
    """How many jobs at the head of a plain queue one claim may return together.

    These are the jobs before the first one that is on its last chance. If that job is at the head,
    the claim returns it and nothing else. Without `alone` it returns nothing, and the queue is
    added to `tx.last_chances` if the job could start now."""
    rows = tx.execute(tx.sql.hot["head_facts"], (queue.qid, tx.now, wanted)).fetchall()
    jobs = read_all(rows, HeadOfQueue)
    together = _together([is_last(queue, job) for job in jobs], wanted, alone)
    if not together and pays_for(queue, unpack_options(jobs[0].options).cost, tx.now):
        tx.last_chances.add(queue.qid)
    return together


def together(queue: QueueRow, heads: list[KeyHead], *, alone: bool) -> list[KeyHead]:
    """The same for the next jobs of keys: those that one claim may return together."""
    return heads[: _together([is_last(queue, head) for head in heads], len(heads), alone)]


def _together(last: list[bool], wanted: int, alone: bool) -> int:
    first = last.index(True) if True in last else None
    return wanted if first is None else first or int(alone)
