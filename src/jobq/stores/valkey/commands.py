"""`alter`: commands on single jobs."""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core.commands import Altered, AnyCommand
from jobq.core.new_jobs import check_commands
from jobq.stores.valkey import keys, packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.wire import Argument

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
