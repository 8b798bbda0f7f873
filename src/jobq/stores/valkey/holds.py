"""Holds of queues and keys."""

from __future__ import annotations

from jobq.core import holds as rule
from jobq.core.queues import HoldsRecord
from jobq.core.records import QueueName
from jobq.stores.valkey.calls import Calls, Refused
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions


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
                raise rule.no_keys(queue.queue) from None
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

    async def holds(self, queue: QueueName, *, limit: int = rule.MAX_LISTED) -> HoldsRecord:
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
