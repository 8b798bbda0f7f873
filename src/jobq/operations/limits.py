"""Limits of queues and keys: how they are written, checked and changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from jobq.core.policies import Bucket, Rate
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Limits, LimitsRecord, QueueRecord
from jobq.core.values import checks
from jobq.core.values.checks import shown
from jobq.core.values.units import parse_duration
from jobq.errors import ConfigError
from jobq.operations.listing import find_queue
from jobq.stores.base import Store

_BUCKET = re.compile(r"(\d+)\+(\d+(?:\.\d+)?)/s")
_WINDOW = re.compile(r"(\d+)/(.+)")


def parse_rate(text: str) -> Rate | Bucket:
    """A rate as people write it: `100/1m`, or `10+0.5/s` for a bucket. ConfigError if it is not.

    `100/1m` allows 100 starts per minute. `10+0.5/s` is a bucket of 10 tokens, refilled with half a
    token per second."""
    if bucket := _BUCKET.fullmatch(text):
        return Bucket(int(bucket[1]), refill=float(bucket[2]))
    if window := _WINDOW.fullmatch(text):
        try:
            return Rate(int(window[1]), per=parse_duration(window[2]))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    raise ConfigError(
        f"{text!r} is not a rate: use 100/1m for 100 starts per minute, or 10+0.5/s for a bucket "
        "of 10 refilled with 0.5 per second"
    )


def checked_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """Limits with the values that are stored. None is no limit. ConfigError names a wrong one."""
    return {name: _checked(name, value) for name, value in given.items()}


async def set_limits(
    store: Store,
    queue: QueueName,
    wanted: Mapping[str, Any],
    *,
    key: str | None,
    actor: str | None,
    keep: bool = True,
) -> None:
    """Change the limits of a queue, or of one key. With `keep`, limits that are not named stay.

    `wanted` are the results of `checked_limits`."""
    record = await find_queue(store, queue)
    stored = LimitsRecord() if record is None else record.limits
    if key is None:
        if any(wanted.get(name) is not None for name in ("key_limit", "key_rate")):
            _check_has_keys(queue, record)
        now = stored.effective if keep else Limits()
        await store.set_limits(queue, msgspec.structs.replace(now, **wanted), actor=actor)
        return
    for name in ("limit", "rate", "max_waiting"):
        if name in wanted:
            raise ConfigError(
                f"set_limits(key=…): {name} is a limit of the whole queue; give key_limit or "
                "key_rate"
            )
    _check_has_keys(queue, record)
    key = checks.check_key(key)
    own = msgspec.structs.replace(stored.keys.get(key, Limits()) if keep else Limits(), **wanted)
    await store.set_limits(queue, None if own == Limits() else own, key=key, actor=actor)


def _check_has_keys(queue: QueueName, record: QueueRecord | None) -> None:
    if record is not None and record.mode == "plain":
        raise ConfigError(f"queue {queue.queue!r} is plain: its jobs have no keys to limit")


def _checked(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in ("limit", "key_limit", "max_waiting"):
        return checks.check_int(value, name, low=1, high=checks.MAX_COUNT, error=ConfigError)
    if not isinstance(value, (Rate, Bucket)):
        raise ConfigError(f"{name}={shown(value)} is neither a Rate nor a Bucket")
    return value.data
