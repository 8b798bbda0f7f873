"""Removing many jobs of a queue at once, or the queue with everything in it."""

from __future__ import annotations

from jobq.core import refusals
from jobq.core.event_log import STATE_CODES
from jobq.core.records import QueueName
from jobq.core.states import State
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions


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
