"""What is declared about queues: their limits, holds and pauses; and removing their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from jobq.core.records import refusals
from jobq.core.records.defaults import MAX_LISTED_HOLDS
from jobq.core.records.event_log import STATE_CODES
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import (
    HoldsRecord,
    JobDefaults,
    Limits,
    LimitsRecord,
    QueueConfig,
    QueueRecord,
    RetentionData,
    limits_reason,
)
from jobq.core.records.states import State
from jobq.core.rules import limits as rule
from jobq.errors import ConfigError
from jobq.stores.valkey import packing
from jobq.stores.valkey.calls import Calls, Refused
from jobq.stores.valkey.connection import Argument
from jobq.stores.valkey.keys import queue_of, texts
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions

# Queues in replies: their settings, and a peek at their counters.

_FIELD = texts("SETTING")
# lua/counters.lua: of 21 doubles, `waiting` is the first; `timer`, `leases` and `seen` are the
# eighth, the ninth and the twelfth.
_waiting = Struct(">d").unpack_from
_timers = Struct(">56xdd16xd").unpack_from


class QueuePeek(NamedTuple):
    """Whether a claim may find a job now; if not, in how many ms one may become claimable."""

    ready: bool
    due_in: int | None


def peek_at_counters(counters: bytes | None, now: int) -> QueuePeek:
    """What the counters of a queue say about claiming from it."""
    if counters is None:
        return QueuePeek(False, None)
    (waiting,), (*timers, seen) = _waiting(counters), _timers(counters)
    times = [int(t) for t in timers if t]
    due = max(0, min(times) - now) if times else None
    if now < seen:  # the clock was set back: only the server knows what is due
        return QueuePeek(True, due)
    return QueuePeek(waiting > 0 or due == 0, due)


def queue_record(
    queue: QueueName, flat: Sequence[bytes], of_keys: Sequence[bytes] = ()
) -> QueueRecord:
    """A queue from its settings, and the limits of its keys."""
    stored = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    m = {name: stored[field] for name, field in _FIELD.items() if field in stored}
    changed = m.get("changed")
    return QueueRecord(
        queue=queue,
        mode=m.get("mode"),  # type: ignore[arg-type]
        limits=LimitsRecord(
            declared=_limits(m.get("declared", "{}")),
            version=int(m.get("version", 0)),
            changed=None if changed is None else _limits(changed),
            keys=_key_limits(of_keys),
        ),
        partitions=int(m.get("partitions", 1)),
        retention=_retention(m),
        dead_letters=_dead_letters(m.get("dead")),
        max_stalls=msgspec.json.decode(m.get("max_stalls", "{}"), type=dict[str, int]),
        event_meta=tuple(name for name in m.get("event_meta", "").split("\n") if name),
        paused=m.get("paused") == "1",
        defaults=JobDefaults(
            max_retries=_number(m.get("retries", "")), ttl_ms=_number(m.get("ttl", ""))
        ),
    )


def _key_limits(flat: Sequence[bytes]) -> dict[str, Limits]:
    """Limits by key (KEY.key_limits): "\\n" and the key are the field of the limits as JSON."""
    fields = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    return {key[1:]: _limits(text) for key, text in fields.items() if key.startswith("\n")}


def _retention(m: dict[str, str]) -> RetentionData:
    if "keep_completed" not in m:
        return RetentionData()
    return RetentionData(
        completed_ms=_number(m["keep_completed"]),
        failed_ms=_number(m["keep_failed"]),
        cancelled_ms=_number(m["keep_cancelled"]),
        count=_number(m["count"]),
    )


def _dead_letters(stored: str | None) -> str | None:
    """The name of the dead-letter queue, from "<its prefix>\\n<name of this queue>"."""
    if stored is None:
        return None
    prefix, _, _ = stored.partition("\n")
    return prefix and queue_of(prefix).queue


def _limits(text: str) -> Limits:
    return msgspec.json.decode(text, type=Limits)


def _number(text: str) -> int | None:
    return int(text) if text else None


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
        declared = queue_record(queue, flat, of_keys)
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
                declared = queue_record(queue, flat).limits.declared
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


# Holds of queues and keys.


class Holds:
    """Holds and releases.

    Every partition has the hold of its queue; a key's is in its partition.
    """

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """See OperatorStore."""
        await self._partitions.register(queue)
        home = await self._partitions.home(queue)
        args = (home, actor or "", key or "", ms, rule.hold_reason(ms, key))
        for prefix in await self._prefixes(queue, key):
            try:
                (messages,) = await self._calls.fcall("hold", prefix, self._calls.now(), *args)
            except Refused:
                raise rule.no_keys_to_hold(queue.queue) from None
            await self._mail.after(queue, prefix, messages=messages)

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        """See OperatorStore."""
        home = await self._partitions.home(queue)
        args = (home, actor or "", key or "", rule.lifted_reason(key) or "")
        lifted = False
        for prefix in await self._prefixes(queue, key):
            was_held, messages, to_wake = await self._calls.fcall(
                "release_hold", prefix, self._calls.now(), *args
            )
            lifted = lifted or bool(was_held)
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)
        return lifted

    async def holds(self, queue: QueueName, *, limit: int = MAX_LISTED_HOLDS) -> HoldsRecord:
        """See ReadStore."""
        ends: list[int] = []
        held: list[tuple[int, str]] = []
        for prefix in await self._partitions.prefixes(queue):
            whole, *flat = await self._calls.fcall("holds", prefix, self._calls.now(), limit)
            ends += [int(float(whole))] if whole else []
            held += [
                (int(float(end)), key.decode())
                for key, end in zip(flat[::2], flat[1::2], strict=True)
            ]
        return HoldsRecord(
            until_ms=max(ends, default=None), keys={key: end for end, key in sorted(held)[:limit]}
        )

    async def _prefixes(self, queue: QueueName, key: str | None) -> list[str]:
        prefixes = await self._partitions.prefixes(queue)
        return prefixes if key is None else [self._partitions.prefix_of(queue, "", key)]


# Removing many jobs of a queue at once, or the queue with everything in it.


class Purges:
    """Purges jobs and obliterates queues. Each call of a function removes a bounded number."""

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """See OperatorStore."""
        purged, home = 0, await self._partitions.home(queue)
        for prefix in await self._partitions.prefixes(queue):
            more = True
            while more and purged < limit:
                args = (self._calls.now(), home, actor or "", int(delayed), limit - purged)
                n, messages, more = await self._calls.fcall("clear", prefix, *args)
                purged += n
                await self._mail.after(queue, prefix, messages=messages)
        return purged

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
        purged, home = 0, await self._partitions.home(queue)
        for prefix in await self._partitions.prefixes(queue):
            if purged < limit:
                n, messages = await self._calls.fcall(
                    "clean",
                    prefix,
                    self._calls.now(),
                    home,
                    actor or "",
                    STATE_CODES[state],
                    older_than_ms,
                    limit - purged,
                )
                purged += n
                await self._mail.after(queue, prefix, messages=messages)
        return purged

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """See OperatorStore."""
        home = await self._partitions.home(queue)
        # The last prefix logs the operation: that is where the queue was declared.
        for prefix in await self._partitions.all_prefixes(queue):
            is_last = prefix == self._partitions.space.prefix(queue)
            logged = (home if is_last else "", actor or "")
            done, messages = await self._calls.fcall(
                "obliterate", prefix, self._calls.now(), *logged, int(force), limit
            )
            await self._mail.after(queue, prefix, messages=messages)
            if not done:
                return False
        await self._partitions.unregister(queue)
        return True
