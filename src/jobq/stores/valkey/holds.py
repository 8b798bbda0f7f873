"""Holds of queues and keys."""

from __future__ import annotations

from jobq.core import holds as rule
from jobq.core.queues import HoldsRecord
from jobq.core.records import QueueName
from jobq.stores.valkey.flows import Flows
from jobq.stores.valkey.handle import Refused


class Holds(Flows):
    """`hold`, `release_hold` and `holds`. Each partition has the hold of its queue; that of a key is in the key's partition."""

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """See OperatorStore."""
        await self.meet(queue)
        home = await self.home(queue)
        args = (home, actor or "", key or "", ms, rule.hold_reason(ms, key))
        for prefix in await self._held_at(queue, key):
            try:
                (messages,) = await self.fcall("hold", prefix, self.now(), *args)
            except Refused:
                raise rule.no_keys(queue.queue) from None
            await self.after(queue, prefix, messages=messages)

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        """See OperatorStore."""
        home = await self.home(queue)
        args = (home, actor or "", key or "", rule.lifted_reason(key) or "")
        lifted = False
        for prefix in await self._held_at(queue, key):
            yes, messages, to_wake = await self.fcall("release_hold", prefix, self.now(), *args)
            lifted = lifted or bool(yes)
            await self.after(queue, prefix, to_wake=to_wake, messages=messages)
        return lifted

    async def holds(self, queue: QueueName, *, limit: int = rule.MAX_LISTED) -> HoldsRecord:
        """See ReadStore."""
        ends: list[int] = []
        held: list[tuple[int, str]] = []
        for prefix in await self.prefixes(queue):
            whole, *flat = await self.fcall("holds", prefix, self.now(), limit)
            ends += [int(float(whole))] if whole else []
            held += [
                (int(float(end)), key.decode())
                for key, end in zip(flat[::2], flat[1::2], strict=True)
            ]
        return HoldsRecord(
            until_ms=max(ends, default=None), keys={key: end for end, key in sorted(held)[:limit]}
        )

    async def _held_at(self, queue: QueueName, key: str | None) -> list[str]:
        prefixes = await self.prefixes(queue)
        return prefixes if key is None else [self.place(queue, "", key)]
