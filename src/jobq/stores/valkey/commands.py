"""Operators' commands on single jobs (`alter`), and their unique locks."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.jobs import LockRecord, QueueName
from jobq.core.rules.new_jobs import check_commands
from jobq.stores.valkey import keys, packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.connection import Argument
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions

_BATCH = 500
"""Commands per call: the server does nothing else meanwhile."""
ALTERED: dict[int, Altered] = {ord("d"): "done", ord("l"): "late", ord("m"): "missing"}
"""The letters that functions return for commands."""


class Commands:
    """Carries out commands on single jobs."""

    def __init__(self, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """See OperatorStore."""
        commands = check_commands(commands)
        results: list[Altered] = ["missing"] * len(commands)
        by_prefix = await self._partitions.prefixes_of([c.job for c in commands])
        for prefix, positions in by_prefix.items():
            queue = keys.queue_of(prefix)
            for start in range(0, len(positions), _BATCH):
                part = positions[start : start + _BATCH]
                args: list[Argument] = [self._calls.now(), await self._partitions.home(queue)]
                for n in part:
                    args += packing.command(commands[n])
                letters, messages, to_wake = await self._calls.fcall(
                    "alter", prefix, *args, confirmed=True
                )
                for n, letter in zip(part, letters, strict=True):
                    # A job is in one partition; the others return "missing".
                    if results[n] == "missing":
                        results[n] = ALTERED[letter]
                await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages)
        return results


# Unique locks: who holds one, and releasing it by hand.


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
