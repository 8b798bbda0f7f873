"""Limits of a queue: how many jobs run at once, start per time and wait. `Queue` inherits this.

`Queue(…)` declares limits with a `limits_version`; `set_limits` changes them at run time. A change
is stored apart from the declaration and applies until a higher version is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any

import msgspec

from jobq.api.context import QueueMethods
from jobq.core import checks
from jobq.core.checks import Seconds
from jobq.core.moments import moment, moment_or_none
from jobq.core.policies import Bucket, Rate
from jobq.core.queues import HoldsRecord, Limits, LimitsRecord, RateData, Window
from jobq.errors import ConfigError
from jobq.operations import limits
from jobq.operations.listing import find_queue


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one key. None: the queue's limit for every key applies."""

    key_limit: int | None
    key_rate: Rate | Bucket | None


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that apply now. `version`: the declaration's `limits_version`. `changed`: they
    were set at run time and override the declaration."""

    limit: int | None
    rate: Rate | Bucket | None
    key_limit: int | None  # of a keyed queue, where None means 1
    key_rate: Rate | Bucket | None
    max_waiting: int | None  # with this many waiting, delayed or blocked jobs, QueueFull is raised
    version: int
    changed: bool
    keys: Mapping[str, KeyLimits]
    held_until: datetime | None = None  # a hold: no job starts before this time
    held_keys: Mapping[str, datetime] = {}  # the same by key: the 100 holds that end first


class LimitMethods(QueueMethods):
    """The methods of `Queue` for limits and holds."""

    async def limits(self) -> QueueLimits:
        """The limits that apply now, of the queue and of single keys, and the holds."""
        store = await self._context.store()
        record = await find_queue(store, self.qname)
        held = await store.holds(self.qname)
        return queue_limits(LimitsRecord() if record is None else record.limits, held)

    async def set_limits(
        self,
        *,
        limit: int | EllipsisType | None = ...,
        rate: Rate | Bucket | EllipsisType | None = ...,
        key_limit: int | EllipsisType | None = ...,
        key_rate: Rate | Bucket | EllipsisType | None = ...,
        max_waiting: int | EllipsisType | None = ...,
        key: str | None = None,
    ) -> None:
        """Change limits for all workers at once. Limits that are not given stay; None removes one.

        With `key`, `key_limit` and `key_rate` are set for that key only; None removes the key's own
        limit. After a raise, waiting jobs start at once. After a cut, running jobs finish first. A
        `max_waiting` below the current number of jobs removes none: new jobs are refused until
        enough have started. If two callers change different limits at the same moment, one change
        may be lost: check with `limits()`.
        """
        given = {
            "limit": limit,
            "rate": rate,
            "key_limit": key_limit,
            "key_rate": key_rate,
            "max_waiting": max_waiting,
        }
        wanted = limits.checked_limits(
            {name: value for name, value in given.items() if value is not ...}
        )
        if not wanted:
            raise ConfigError(
                "set_limits() without a limit: give limit, rate, key_limit, key_rate or "
                "max_waiting (None removes a limit)"
            )
        store = await self._context.store()
        await limits.set_limits(store, self.qname, wanted, key=key, actor=self.actor)

    async def reset_limits(self, *, key: str | None = None) -> None:
        """Undo changes made at run time, so that the declared limits apply again.

        With `key`, undo those of this key. This also ends holds: that of the key, or those of the
        queue and all its keys."""
        key = None if key is None else checks.check_key(key)
        await (await self._context.store()).set_limits(self.qname, None, key=key, actor=self.actor)

    # ── holds ─────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, seconds: Seconds, key: str | None = None) -> None:
        """Start no jobs of the queue, or of one key, for some time, for example while a service
        that they need is down.

        Running jobs continue and new ones are accepted. Of two holds, the one that ends later
        counts. A handler that raises `RateLimited` holds its queue or key in the same way. A hold
        ends by itself; `release_hold`, `resume`, `reset_limits` and any change of limits end it
        sooner.
        """
        ms = checks.to_ms(seconds, "seconds", positive=True)
        await (await self._context.store()).hold(
            self.qname, ms, None if key is None else checks.check_key(key), actor=self.actor
        )

    async def release_hold(self, key: str | None = None) -> bool:
        """End the hold of the queue, or of one key. Jobs start at once. False if there is no
        hold."""
        key = None if key is None else checks.check_key(key)
        return await (await self._context.store()).release_hold(self.qname, key, actor=self.actor)


# ── from and to the store's records ──────────────────────────────────────────────────────────────


def declared_limits(**given: Any) -> Limits | None:
    """The limits that `Queue(…)` declares; None if it declares none."""
    declared = Limits(**limits.checked_limits(given))
    return None if declared == Limits() else declared


def queue_limits(record: LimitsRecord, held: HoldsRecord) -> QueueLimits:
    """The QueueLimits of a record."""
    effective = record.effective
    return QueueLimits(
        limit=effective.limit,
        rate=policy(effective.rate),
        key_limit=effective.key_limit,
        key_rate=policy(effective.key_rate),
        max_waiting=effective.max_waiting,
        version=record.version,
        changed=record.changed is not None,
        keys={
            key: KeyLimits(key_limit=own.key_limit, key_rate=policy(own.key_rate))
            for key, own in record.keys.items()
        },
        held_until=moment_or_none(held.until_ms),
        held_keys={key: moment(ends) for key, ends in held.keys.items()},
    )


def policy(data: RateData | None) -> Rate | Bucket | None:
    """The policy of a stored rate."""
    if isinstance(data, Window):
        return Rate(data.limit, per=timedelta(milliseconds=data.per_ms))
    return None if data is None else Bucket(data.capacity, refill=data.refill)
