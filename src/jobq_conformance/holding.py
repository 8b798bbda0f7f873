"""Held queues and keys, for the tests of holds."""

from __future__ import annotations

from jobq.core.records.states import QueueKind
from jobq_conformance.kit import Desk


async def put_keyed(q: Desk, n: int = 2, keys: str = "ab") -> None:
    await q.store.put([q.spec(f"{key}{number}", key=key) for number in range(n) for key in keys])


async def held(q: Desk) -> tuple[int | None, dict[str, int]]:
    """For how much longer the queue and its keys are held, in ms."""
    found, now = await q.store.holds(q.queue), q.clock()
    until = (await q.store.stats(q.queue)).held_until_ms
    assert until == found.until_ms
    return None if until is None else until - now, {
        key: ends - now for key, ends in found.keys.items()
    }


async def hold_events(q: Desk) -> list[tuple[str, str | None, str | None]]:
    """The events about holds: kind, reason, actor."""
    kinds = (QueueKind.HELD, QueueKind.RELEASED_HOLD)
    return [(str(e.kind), e.reason, e.actor) for e in await q.events() if e.kind in kinds]
