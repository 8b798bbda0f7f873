"""What is declared about queues, their limits, and pausing them."""

from __future__ import annotations

from jobq.core import refusals
from jobq.core.queues import Limits, QueueConfig, QueueRecord, limits_reason
from jobq.core.records import QueueName
from jobq.errors import ConfigError
from jobq.stores.valkey import packing, queue_replies
from jobq.stores.valkey.calls import Calls, Refused
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.wire import Argument


class Queues:
    """Declares queues, sets limits, pauses and resumes."""

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """See OperatorStore."""
        partitions = self._partitions
        stored = await partitions.count(queue)
        partitioned = max(config.partitions or 1, stored) > 1
        if partitioned:
            _check_limits(queue, config.limits, config.partitions or stored)
        await partitions.register(queue)
        base = partitions.space.prefix(queue)
        args = self._arguments(queue, config, config.partitions or stored)
        reason = ""
        if config.limits is not None:
            reason = limits_reason(config.limits, version=config.limits_version)
        try:
            flat = await self._calls.fcall(
                "declare", base, *args, "", "" if partitioned else reason
            )
        except Refused as e:
            raise _declared_otherwise(queue, config, e) from None
        partitions.forget(queue)
        _, of_keys = await self._calls.fcall("describe", base)
        declared = queue_replies.queue_record(queue, flat, of_keys)
        if await partitions.count(queue) > 1:
            for n, prefix in enumerate(await partitions.prefixes(queue)):
                rest = (*args[5:], base, "" if n else reason)
                await self._calls.fcall(
                    "declare", prefix, args[0], declared.mode or "", *args[2:4], "", *rest
                )
        return declared

    def _arguments(self, queue: QueueName, config: QueueConfig, partitions: int) -> list[Argument]:
        """The arguments of `declare` (lua/queues.lua), without the last two."""
        dead = ""
        if config.dead_letters is not None:
            target = QueueName(queue.tenant, config.dead_letters)
            dead = f"{self._partitions.space.prefix(target)}\n{queue.queue}"
        limits = config.limits
        return [
            self._calls.now(),
            config.mode or "",
            "" if limits is None else packing.limits_text(limits),
            config.limits_version,
            "" if config.partitions is None else config.partitions,
            "" if config.retention is None else packing.retention(config.retention),
            dead,
            "" if config.event_meta is None else packing.event_meta(config.event_meta),
            *packing.in_force(limits or Limits(), partitions),
            packing.stalls_text(config.max_stalls) if config.max_stalls else "",
            "" if config.defaults is None else packing.job_defaults(config.defaults),
        ]

    async def set_limits(
        self,
        queue: QueueName,
        limits: Limits | None,
        *,
        key: str | None = None,
        actor: str | None = None,
    ) -> None:
        """See OperatorStore."""
        prefixes = await self._partitions.prefixes(queue)
        if len(prefixes) > 1 and key is None:
            _check_limits(queue, limits, len(prefixes))
        await self._partitions.register(queue)
        text = b"" if limits is None else packing.limits_text(limits)
        logged = (prefixes[0], limits_reason(limits, key=key), actor or "")
        for prefix in await self._partitions.all_prefixes(queue):
            if key is not None:
                in_force = ["" if limits is None else packing.key_in_force(limits)]
            elif limits is not None:
                in_force = packing.in_force(limits, len(prefixes))
            else:
                flat, _ = await self._calls.fcall("describe", prefix)
                declared = queue_replies.queue_record(queue, flat).limits.declared
                in_force = packing.in_force(declared, len(prefixes))
            to_wake = await self._calls.fcall(
                "limit", prefix, self._calls.now(), *logged, key or "", text, *in_force
            )
            await self._mail.after(queue, prefix, to_wake=to_wake)

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """See OperatorStore."""
        await self._pause(queue, "1", actor)

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """See OperatorStore."""
        await self._pause(queue, "0", actor)

    async def _pause(self, queue: QueueName, paused: str, actor: str | None) -> None:
        await self._partitions.register(queue)
        args = (self._calls.now(), await self._partitions.home(queue), actor or "", paused)
        for prefix in await self._partitions.all_prefixes(queue):
            to_wake = await self._calls.fcall("pause", prefix, *args)
            await self._mail.after(queue, prefix, to_wake=to_wake)


def _check_limits(queue: QueueName, limits: Limits | None, partitions: int) -> None:
    """Refuse limits that partitions cannot hold to together."""
    if limits is not None and (limits.limit or limits.rate):
        raise ConfigError(
            f"queue {queue.queue!r} has {partitions} partitions: "
            "a limit or rate of the whole queue needs one partition"
        )


def _declared_otherwise(queue: QueueName, config: QueueConfig, refused: Refused) -> ConfigError:
    what, stored = refused.rest[0], " ".join(refused.rest[1:])
    if what == "mode":
        return refusals.other_mode(queue, "keyed" if stored == "keyed" else "plain", config)
    version, _, text = stored.partition(" ")
    return refusals.other_limits(queue, int(version), text, config.limits)
