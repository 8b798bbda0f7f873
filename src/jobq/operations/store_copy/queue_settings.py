"""Declares a queue in the target as it is in the source."""

from __future__ import annotations

import msgspec

from jobq.core.queues import HoldsRecord, QueueConfig, QueueRecord
from jobq.core.records import QueueName
from jobq.errors import ConfigError
from jobq.operations.store_copy.side import Side
from jobq.stores.base import Clock

HOLD_MS = 30_000
"""Milliseconds that a hold of the source lasts while a copy runs. The copy renews it. If the copy
dies, the source goes on after this time with the jobs that have not moved."""


async def copy_settings(source: Side, target: Side, record: QueueRecord, *, clock: Clock) -> None:
    """Give the queue in the target the mode, limits, retention, pause and holds of the source.

    ConfigError, before anything changes, if the target has the queue with another mode or with
    other limits under the same version. What was changed at run time in the target stays.
    """
    queue = record.queue
    held = await source.store.holds(queue)
    there = await _declare(target, record)
    limits = record.limits
    changed_there = there.limits.changed is not None or there.limits.version > limits.version
    if limits.changed is not None and not changed_there:
        await target.store.set_limits(queue, limits.changed, actor=target.actor)
    for key, own in limits.keys.items():
        if key not in there.limits.keys:
            await target.store.set_limits(queue, own, key=key, actor=target.actor)
    if record.paused and not there.paused:
        await target.store.pause(queue, actor=target.actor)
    await _copy_holds(target, queue, held, clock())


async def _declare(target: Side, record: QueueRecord) -> QueueRecord:
    limits = record.limits
    config = QueueConfig(
        mode=record.mode,
        limits=limits.declared if limits.version else None,
        limits_version=limits.version or 1,
        retention=record.retention,
        dead_letters=record.dead_letters,
        max_stalls=record.max_stalls,
        event_meta=record.event_meta,
        defaults=record.defaults,
        partitions=record.partitions if record.partitions > 1 else None,
    )
    try:
        return await target.store.declare(record.queue, config)
    except ConfigError:
        if config.partitions is None:
            raise
    # A store without partitions keeps the order of the whole queue, which is more than a partition
    # promises.
    return await target.store.declare(
        record.queue, msgspec.structs.replace(config, partitions=None)
    )


async def _copy_holds(target: Side, queue: QueueName, held: HoldsRecord, now_ms: int) -> None:
    # A hold of the queue that ends this soon may be the copy's own, of a run that was killed.
    if held.until_ms is not None and held.until_ms > now_ms + HOLD_MS:
        await target.store.hold(queue, held.until_ms - now_ms, actor=target.actor)
    for key, until_ms in held.keys.items():
        if until_ms > now_ms:
            await target.store.hold(queue, until_ms - now_ms, key, actor=target.actor)
