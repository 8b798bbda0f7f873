"""What people and their tools do to jobs and queues."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core import refusals
from jobq.core.commands import Altered, AnyCommand
from jobq.core.event_log import STATE_CODES
from jobq.core.queues import Limits, QueueConfig, QueueRecord, limits_reason
from jobq.core.records import QueueName
from jobq.core.states import State
from jobq.errors import ConfigError
from jobq.stores.valkey import keys, packing, unpacking
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.handle import Refused
from jobq.stores.valkey.wire import Argument

_ALTERED = 500
"""Commands per call of a function."""


class Operators(Flows):
    """`alter`, and calls on whole queues."""

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """See OperatorStore."""
        answers: list[Altered] = ["missing"] * len(commands)
        for prefix, places in (await self.places([c.job for c in commands])).items():
            for start in range(0, len(places), _ALTERED):
                part = places[start : start + _ALTERED]
                args: list[Argument] = [self.now(), await self.home(keys.queue_of(prefix))]
                for n in part:
                    args += packing.command(commands[n])
                letters, messages, to_wake = await self.fcall(
                    "alter", prefix, *args, confirmed=True
                )
                for n, letter in zip(part, letters, strict=True):
                    if (
                        answers[n] == "missing"
                    ):  # a job is in one partition at most: the others do not know it
                        answers[n] = unpacking.ALTERED[letter]
                await self.after(keys.queue_of(prefix), prefix, to_wake=to_wake, messages=messages)
        return answers

    # ── queues ────────────────────────────────────────────────────────────────────────────────────

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """See OperatorStore."""
        partitions = config.partitions
        stored = await self.partitions(queue)
        if (
            max(partitions or 1, stored) > 1
            and config.limits is not None
            and (config.limits.limit or config.limits.rate)
        ):
            raise ConfigError(
                f"queue {queue.queue!r} has {partitions or stored} partitions: "
                "a limit or rate of the whole queue needs one partition"
            )
        await self.meet(queue)
        base = self.keys.prefix(queue)
        args = self._declared(queue, config, partitions or stored)
        told = (
            ""
            if config.limits is None
            else limits_reason(config.limits, version=config.limits_version)
        )
        try:
            flat = await self.fcall(
                "declare", base, *args, "", told if max(partitions or 1, stored) == 1 else ""
            )
        except Refused as e:
            raise _declared_otherwise(queue, config, e) from None
        self._partitions.pop(queue, None)
        declared = unpacking.queue_record(queue, flat, (await self.fcall("describe", base))[1])
        if await self.partitions(queue) > 1:
            for n, prefix in enumerate(await self.prefixes(queue)):
                rest = (*args[5:], base, "" if n else told)
                await self.fcall(
                    "declare", prefix, args[0], declared.mode or "", *args[2:4], "", *rest
                )
        return declared

    def _declared(self, queue: QueueName, config: QueueConfig, partitions: int) -> list[Argument]:
        dead = ""
        if config.dead_letters is not None:
            dead = (
                f"{self.keys.prefix(QueueName(queue.tenant, config.dead_letters))}\n{queue.queue}"
            )
        limits = config.limits
        return [
            self.now(),
            config.mode or "",
            "" if limits is None else packing.limits_text(limits),
            config.limits_version,
            "" if config.partitions is None else config.partitions,
            "" if config.retention is None else packing.retention(config.retention),
            dead,
            "" if config.event_meta is None else packing.event_meta(config.event_meta),
            *packing.in_force(limits or Limits(), partitions),
            packing.stalls_text(config.max_stalls) if config.max_stalls else "",
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
        prefixes = await self.prefixes(queue)
        if (
            len(prefixes) > 1
            and key is None
            and limits is not None
            and (limits.limit or limits.rate)
        ):
            raise ConfigError(
                f"queue {queue.queue!r} has {len(prefixes)} partitions: a limit or rate of the whole queue needs one partition"
            )
        await self.meet(queue)
        text = b"" if limits is None else packing.limits_text(limits)
        for prefix in dict.fromkeys([*prefixes, self.keys.prefix(queue)]):
            if key is not None:
                rest = ["" if limits is None else packing.key_in_force(limits)]
            elif limits is not None:
                rest = packing.in_force(limits, len(prefixes))
            else:
                flat, _ = await self.fcall("describe", prefix)
                rest = packing.in_force(
                    unpacking.queue_record(queue, flat).limits.declared, len(prefixes)
                )
            told = (prefixes[0], limits_reason(limits, key=key), actor or "")
            to_wake = await self.fcall("limit", prefix, self.now(), *told, key or "", text, *rest)
            await self.after(queue, prefix, to_wake=to_wake)

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """See OperatorStore."""
        await self._pause(queue, "1", actor)

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """See OperatorStore."""
        await self._pause(queue, "0", actor)

    async def _pause(self, queue: QueueName, paused: str, actor: str | None) -> None:
        await self.meet(queue)
        home = await self.home(queue)
        for prefix in dict.fromkeys([*await self.prefixes(queue), self.keys.prefix(queue)]):
            to_wake = await self.fcall("pause", prefix, self.now(), home, actor or "", paused)
            await self.after(queue, prefix, to_wake=to_wake)

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """See OperatorStore."""
        cleared, home = 0, await self.home(queue)
        for prefix in await self.prefixes(queue):
            more = True
            while more and cleared < limit:
                args = (self.now(), home, actor or "", int(delayed), limit - cleared)
                n, messages, more = await self.fcall("clear", prefix, *args)
                cleared += n
                await self.after(queue, prefix, messages=messages)
        return cleared

    async def purge_ended(
        self,
        queue: QueueName,
        state: State,
        *,
        older_than_ms: int = 0,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """See OperatorStore."""
        if not state.ended:
            raise refusals.not_ended(state)
        cleaned, home = 0, await self.home(queue)
        for prefix in await self.prefixes(queue):
            if cleaned < limit:
                args = (
                    self.now(),
                    home,
                    actor or "",
                    STATE_CODES[state],
                    older_than_ms,
                    limit - cleaned,
                )
                n, messages = await self.fcall("clean", prefix, *args)
                cleaned += n
                await self.after(queue, prefix, messages=messages)
        return cleaned

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """See OperatorStore."""
        home = await self.home(queue)
        # The last one tells of it: of a partitioned queue, that is where it was declared.
        for prefix in dict.fromkeys([*await self.prefixes(queue), self.keys.prefix(queue)]):
            told = (home if prefix == self.keys.prefix(queue) else "", actor or "")
            done, messages = await self.fcall(
                "obliterate", prefix, self.now(), *told, int(force), limit
            )
            await self.after(queue, prefix, messages=messages)
            if not done:
                return False
        await self.servers.command(
            self.keys.queues, "SREM", self.keys.queues, self.keys.prefix(queue)
        )
        self._met.discard(queue)
        self._partitions.pop(queue, None)
        return True


def _declared_otherwise(queue: QueueName, config: QueueConfig, refused: Refused) -> ConfigError:
    what, stored = refused.rest[0], " ".join(refused.rest[1:])
    if what == "mode":
        return refusals.other_mode(queue, "keyed" if stored == "keyed" else "plain", config)
    version, _, text = stored.partition(" ")
    return refusals.other_limits(queue, int(version), text, config.limits)
