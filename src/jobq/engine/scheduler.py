"""Makes the jobs of schedules whose time has come. Any number may do this: `fire` compares and sets, so each time fires once."""

from __future__ import annotations

from jobq.core.cron import plan
from jobq.engine.leader import Leader
from jobq.engine.service import Service
from jobq.engine.settings import Settings
from jobq.stores.base import Clock, Store

_DUE = 100


class Scheduler(Service):
    """Due schedules → `core.cron.plan` → `store.fire`, by one worker of the store."""

    name = "schedules"

    def __init__(self, store: Store, leader: Leader, settings: Settings, *, clock: Clock) -> None:
        """`clock` only tells catch-up how late it is; what is due is for the store to say."""
        super().__init__()
        self._store = store
        self._leader = leader
        self._settings = settings
        self._clock = clock

    async def tick(self) -> float:
        """One bounded pass over what is due; a full one is followed by another at once."""
        rest = self._settings.schedule_ms / 1000
        if not await self._leader.leads():
            return rest
        due = await self._store.list_schedules(due=True, limit=_DUE)
        fires = [fire for record in due for fire in plan(record, self._clock())]
        if not fires:
            return rest
        await self._store.fire(fires)
        return 0.0 if len(due) >= _DUE else rest
