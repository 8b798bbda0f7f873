"""Jobs that have stalled, for the tests of last chances."""

from __future__ import annotations

from jobq_conformance.kit import SECOND, Desk, complete


async def stall(q: Desk, *ids: str, times: int = 1) -> None:
    """Let a worker die `times` times with these jobs, which are the next to be claimed."""
    for _ in range(times):
        taken: list[str] = []
        while len(taken) < len(ids):
            taken += [
                lease.id
                for lease in await q.claim(len(ids) - len(taken), worker="dies", lease_ms=SECOND)
            ]
        assert sorted(taken) == sorted(ids)
        q.clock.advance(2 * SECOND)
        await q.tick()


async def claimed(q: Desk, n: int = 100) -> list[tuple[str, bool]]:
    return [(lease.id, lease.last_chance) for lease in await q.claim(n)]


async def settle_next(q: Desk, n: int = 100) -> list[str]:
    """Claim and complete jobs, and return the ids that came together."""
    leases = await q.claim(n)
    await q.settle(*(complete(lease) for lease in leases))
    return [lease.id for lease in leases]
