"""Unique locks: who holds one, and releasing it by hand."""

from __future__ import annotations

from jobq.core.locks import LockRecord
from jobq.core.records import QueueName
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions


class Locks:
    """Looks up and releases unique locks. A lock is in the partition of the job that holds it."""

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail

    async def find_lock(self, queue: QueueName, lock: str) -> LockRecord | None:
        """See ReadStore."""
        for prefix in await self._partitions.prefixes(queue):
            found = await self._calls.fcall("find_lock", prefix, self._calls.now(), lock)
            if found:
                job, until, follow_up = (value.decode() for value in found)
                return LockRecord(job, int(until) if until else None, follow_up or None)
        return None

    async def release_lock(
        self, queue: QueueName, lock: str, *, job: str | None = None, actor: str | None = None
    ) -> bool:
        """See OperatorStore."""
        home = await self._partitions.home(queue)
        any_released = False
        for prefix in await self._partitions.prefixes(queue):
            released, messages, to_wake = await self._calls.fcall(
                "release_lock", prefix, self._calls.now(), home, actor or "", lock, job or ""
            )
            any_released = any_released or bool(released)
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)
        return any_released
