"""`extend` and `note`: what a worker does with leases it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobq.core.checks import check_steps
from jobq.core.records import LeaseRef, LeaseState, Note
from jobq.stores.valkey import packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.functions import function
from jobq.stores.valkey.partitions import Partition, Partitions
from jobq.stores.valkey.wire import Argument

_EXTEND = function("extend")
_STATES: dict[str, LeaseState] = {"h": "held", "l": "lost", "c": "cancel"}


class Leases:
    """Renews leases, and stores progress, checkpoints, log lines and steps of running jobs."""

    def __init__(self, calls: Calls, partitions: Partitions) -> None:
        self._calls = calls
        self._partitions = partitions

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """See HotStore."""
        groups = await self._by_partition(leases)
        states: list[LeaseState] = ["lost"] * len(leases)

        async def one(prefix: str, suffix: str, positions: list[int]) -> None:
            args: list[Argument] = [self._calls.now(), lease_ms]
            for n in positions:
                args += (leases[n].id, leases[n].token.removesuffix(suffix))
            reply = await self._calls.fcall_list(_EXTEND, prefix, args)
            for n, letter in zip(positions, reply.decode(), strict=True):
                states[n] = _STATES[letter]

        await asyncio.gather(
            *(one(prefix, suffix, positions) for (prefix, _, suffix), positions in groups.items())
        )
        return states

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """See HotStore."""
        for each in notes:
            check_steps(each.steps)
        groups = await self._by_partition([note.lease for note in notes])
        states: list[LeaseState] = ["lost"] * len(notes)
        for (prefix, _, suffix), positions in groups.items():
            args: list[Argument] = []
            for n in positions:
                args += packing.note(notes[n], suffix)
            # Checkpoints and steps are as durable as a settled outcome. Others need not be.
            durable = any(notes[n].durable for n in positions)
            reply = await self._calls.fcall("note", prefix, *args, confirmed=durable)
            for n, letter in zip(positions, reply.decode(), strict=True):
                states[n] = _STATES[letter]
        return states

    async def _by_partition(self, leases: Sequence[LeaseRef]) -> dict[Partition, list[int]]:
        groups: dict[Partition, list[int]] = {}
        for n, lease in enumerate(leases):
            partition = await self._partitions.of_token(lease.queue, lease.token)
            groups.setdefault(partition, []).append(n)
        return groups
