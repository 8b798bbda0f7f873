"""Reading the event log, and how far its readers have come.

Each partition is a shard of the log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jobq.core import event_log
from jobq.core.event_records import EventPage, EventRecord
from jobq.core.records import QueueName
from jobq.stores.valkey import keys
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers

_MAX_ENTRIES = 100
"""Entries of the log read at once: each holds a whole batch of events."""


class EventReads:
    """Reads the event log and keeps the positions of readers."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """See EventStore."""
        prefixes = await self._partitions.prefixes(queue)
        positions: list[Any] = (
            [None] * len(prefixes) if after is None else event_log.offsets(after, len(prefixes))
        )
        ends: list[Any] = (
            [None] * len(prefixes) if until is None else event_log.offsets(until, len(prefixes))
        )
        if len(prefixes) == 1:
            found, position = await self._read_log(
                prefixes[0], queue, 0, positions[0], limit, ends[0]
            )
            return EventPage(events=tuple(found), position=position)
        merged: list[EventRecord] = []
        for n, prefix in enumerate(prefixes):
            if len(merged) < limit:
                found, positions[n] = await self._read_log(
                    prefix, queue, n, positions[n], limit - len(merged), ends[n]
                )
                reached = event_log.joined([position or "0" for position in positions])
                merged += [msgspec.structs.replace(event, position=reached) for event in found]
            else:
                positions[n] = positions[n] or "0"
        return EventPage(events=tuple(merged), position=event_log.joined(positions))

    async def _read_log(
        self,
        prefix: str,
        queue: QueueName,
        shard: int,
        after: str | None,
        limit: int,
        until: str | None,
    ) -> tuple[list[EventRecord], str]:
        """Events from whole entries until there are `limit`.

        Returns them, and the position reached.
        """
        last = None if until is None else event_log.order(until)
        found: list[EventRecord] = []
        start = "" if after is None else after
        while True:
            entries = max(1, min(_MAX_ENTRIES, limit - len(found)))
            tag, position, gone, gone_to, gone_in, flat = await self._calls.fcall(
                "events", prefix, start, entries
            )
            name = tag.decode()
            end = start if flat else position.decode()
            for at, entry in zip(flat[::2], flat[1::2], strict=True):
                some = event_log.unpack(name, at.decode(), queue, entry, shard=shard)
                if gone:
                    what = f"{int(gone):,} events dropped so far"
                    found.append(
                        event_log.gap(
                            name,
                            gone_to.decode(),
                            queue,
                            some[0].at_ms,
                            what,
                            shard=shard,
                            number=int(gone),
                            incarnation=gone_in.decode(),
                        )
                    )
                    end = gone_to.decode()
                    gone = None  # one gap, before the first event that is left
                if last is not None and event_log.order(at.decode()) > last:
                    return found, end
                found += some
                end = at.decode()
                if len(found) >= limit:
                    return found, end
            if not flat or after is None:
                return found, end
            start = end

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """See EventStore."""
        prefixes = await self._partitions.prefixes(queue)
        if position is not None:
            await self._partitions.register(queue)
        parts = (
            [""] * len(prefixes) if position is None else event_log.offsets(position, len(prefixes))
        )
        positions = [
            (await self._calls.fcall("ack", prefix, reader, part)).decode()
            for prefix, part in zip(prefixes, parts, strict=True)
        ]
        if not any(positions):
            return None
        return event_log.joined([s or "0" for s in positions])

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """See EventStore."""
        found = [
            await self._servers.command(prefix, "HKEYS", keys.readers(prefix))
            for prefix in await self._partitions.prefixes(queue)
        ]
        names = sorted({name.decode() for names in found for name in names})
        return {name: await self.ack_events(queue, name, None) or "0" for name in names}

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """See EventStore."""
        prefixes = await self._partitions.prefixes(queue)
        return any(
            [
                await self._servers.command(prefix, "HDEL", keys.readers(prefix), reader)
                for prefix in prefixes
            ]
        )
