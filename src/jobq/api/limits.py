"""What holds starts and new jobs back: declared by `Queue(…)`, changed at run time by `set_limits`. `Queue` has all of this.

A declaration carries its `limits_version`. A change at run time is stored apart and wins until a higher version is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any

import msgspec

from jobq.api.context import QueueMethods
from jobq.core import checks
from jobq.core.checks import Seconds, shown
from jobq.core.moments import moment, moment_or_none
from jobq.core.policies import Bucket, Rate
from jobq.core.queues import HoldsRecord, Limits, LimitsRecord, QueueRecord, RateData, Window
from jobq.errors import ConfigError

MAX_LIMIT = 2**31 - 1
"""Stores keep limits as signed 32-bit numbers."""


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one key has of its own. None: as all keys of its queue."""

    key_limit: int | None
    key_rate: Rate | Bucket | None


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force. `version`: of the declaration; `changed`: they were set at run time and stand instead of it."""

    limit: int | None
    rate: Rate | Bucket | None
    key_limit: int | None  # of a keyed queue; None there: 1
    key_rate: Rate | Bucket | None
    max_waiting: (
        int | None
    )  # jobs that are waiting, delayed or blocked; beyond it new ones are refused with QueueFull
    version: int
    changed: bool
    keys: Mapping[str, KeyLimits]
    held_until: datetime | None = None  # nothing of the queue starts before: a hold
    held_keys: Mapping[
        str, datetime
    ] = {}  # the same for single keys; at most 100, those that end first


class LimitMethods(QueueMethods):
    """The limits of a queue: look, change, go back to what is declared."""

    async def limits(self) -> QueueLimits:
        """What is in force now, also for single keys, and what is held."""
        record = await self._queue_record()
        held = await (await self._context.store()).holds(self.qname)
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
        """Change limits now, for all workers. What is not named stays as it is; None removes a limit.

        With `key`, `key_limit` and `key_rate` become that key's own; None gives it back what all keys have.
        Raised limits let waiting jobs start at once; lowered ones wait for running jobs to end. A `max_waiting` below the
        number of jobs there are removes none of them: new ones are refused until enough have started. Two callers that change
        different limits in the same moment may undo each other: look with `limits()`.
        """
        given = {
            "limit": limit,
            "rate": rate,
            "key_limit": key_limit,
            "key_rate": key_rate,
            "max_waiting": max_waiting,
        }
        wanted = {name: _checked(name, value) for name, value in given.items() if value is not ...}
        if not wanted:
            raise ConfigError(
                "set_limits() names no limit; give limit, rate, key_limit, key_rate or max_waiting (or None)"
            )
        record = await self._queue_record()
        stored = LimitsRecord() if record is None else record.limits
        store = await self._context.store()
        if key is None:
            if any(wanted.get(name) is not None for name in ("key_limit", "key_rate")):
                self._check_has_keys(record)
            await store.set_limits(
                self.qname, msgspec.structs.replace(stored.effective, **wanted), actor=self.actor
            )
            return
        self._check_key_limits(record, wanted)
        own = msgspec.structs.replace(stored.keys.get(checks.check_key(key), Limits()), **wanted)
        await store.set_limits(
            self.qname,
            None if own == Limits() else own,
            key=checks.check_key(key),
            actor=self.actor,
        )

    async def reset_limits(self, *, key: str | None = None) -> None:
        """Forget what was changed at run time: the declared limits hold again; with `key`, those of all keys hold for it.

        Lifts holds as well: of the key, or of the queue and all its keys."""
        key = None if key is None else checks.check_key(key)
        await (await self._context.store()).set_limits(self.qname, None, key=key, actor=self.actor)

    # ── holds ─────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, seconds: Seconds, key: str | None = None) -> None:
        """Start nothing of the queue, or of one key, for so long: the service behind it is down, say.

        What runs goes on and new jobs are accepted. Of two holds the later end stays; `RateLimited` raised by a handler is
        one too. It ends by itself; `release_hold`, `resume` and `reset_limits` (or any change of limits) end it sooner.
        """
        ms = checks.to_ms(seconds, "seconds", positive=True)
        await (await self._context.store()).hold(
            self.qname, ms, None if key is None else checks.check_key(key), actor=self.actor
        )

    async def release_hold(self, key: str | None = None) -> bool:
        """Lift the hold of the queue, or of one key: jobs start at once. False if there is none."""
        key = None if key is None else checks.check_key(key)
        return await (await self._context.store()).release_hold(self.qname, key, actor=self.actor)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    def _check_key_limits(self, record: QueueRecord | None, wanted: Mapping[str, Any]) -> None:
        for name in ("limit", "rate", "max_waiting"):
            if name in wanted:
                raise ConfigError(
                    f"set_limits(key=…): {name} is the queue's; a key has key_limit and key_rate"
                )
        self._check_has_keys(record)

    def _check_has_keys(self, record: QueueRecord | None) -> None:
        if record is not None and record.mode == "plain":
            raise ConfigError(
                f"queue {self.qname.queue!r} is plain: its jobs have no keys to limit"
            )

    async def _queue_record(self) -> QueueRecord | None:
        """What is stored about the queue. Looking makes no queue."""
        records = await (await self._context.store()).queues(self.qname.tenant)
        return next((record for record in records if record.queue == self.qname), None)


# ── between what users write and what stores keep ─────────────────────────────────────────────────


def declared_limits(**given: Any) -> Limits | None:
    """What `Queue(limit=…, rate=…, …)` declares; None if nothing."""
    limits = Limits(**{name: _checked(name, value) for name, value in given.items()})
    return None if limits == Limits() else limits


def queue_limits(record: LimitsRecord, held: HoldsRecord) -> QueueLimits:
    """A queue's limits, for users."""
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
    """The policy that a store keeps as this."""
    if isinstance(data, Window):
        return Rate(data.limit, per=timedelta(milliseconds=data.per_ms))
    return None if data is None else Bucket(data.capacity, refill=data.refill)


def whole(value: object, option: str) -> int | None:
    """A whole number from 1; None: none."""
    return (
        None
        if value is None
        else checks.check_int(value, option, low=1, high=MAX_LIMIT, error=ConfigError)
    )


def _checked(name: str, value: Any) -> Any:
    if name in ("limit", "key_limit", "max_waiting"):
        return whole(value, name)
    if value is not None and not isinstance(value, (Rate, Bucket)):
        raise ConfigError(f"{name}={shown(value)} is neither a Rate nor a Bucket")
    return None if value is None else value.data
