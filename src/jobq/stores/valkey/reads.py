"""Reads jobs, counts and figures, and the event log with its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core.records import event_log, refusals
from jobq.core.records.event_log import STATE_CODES, STATES
from jobq.core.records.events import EventPage, EventRecord
from jobq.core.records.jobs import Filter, JobKey, JobRecord, Page, QueueName
from jobq.core.records.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records.states import State
from jobq.stores.valkey import keys, packing
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.jobs import record
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.presence import Presence
from jobq.stores.valkey.queues import queue_record
from jobq.stores.valkey.servers import Servers

_BATCH = 500
"""Jobs per call of `get`: the server does nothing else meanwhile."""
_QUEUES_AT_ONCE = 100
"""Queues that are described concurrently."""
_SKIP = 10_000
"""Entries that one `skip` passes at the most: a few milliseconds."""


def _parsed(cursor: str | None, prefixes: Sequence[str]) -> tuple[int, str]:
    """The partition of a cursor, and the cursor inside it."""
    number, _, inner = (cursor or "0/").partition("/")
    if not number.isdigit() or int(number) >= len(prefixes):
        raise refusals.no_cursor(cursor or "")
    return int(number), inner


def _following(number: int, reply: bytes, partitions: int) -> str | None:
    """The cursor after a call, which goes on in this partition, in the next one, or nowhere."""
    if reply:
        return f"{number}/{reply.decode()}"
    return f"{number + 1}/" if number + 1 < partitions else None


class Reads:
    """Reads jobs, counts and figures.

    Those of a partitioned queue are added up over its partitions.
    """

    def __init__(self, calls: Calls, partitions: Partitions, presence: Presence) -> None:
        self._calls = calls
        self._partitions = partitions
        self._presence = presence

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """See ReadStore."""
        records: list[JobRecord | None] = [None] * len(jobs)
        for prefix, positions in (await self._partitions.prefixes_of(jobs)).items():
            for start in range(0, len(positions), _BATCH):
                part = positions[start : start + _BATCH]
                views = await self._calls.fcall(
                    "get", prefix, self._calls.now(), *(jobs[n].id for n in part)
                )
                for n, view in zip(part, views, strict=True):
                    if view:
                        records[n] = record(jobs[n].queue, view, whole=True)
        return records

    async def find(
        self,
        filter: Filter,
        *,
        cursor: str | None = None,
        limit: int = 100,
        until: str | None = None,
    ) -> Page:
        """See ReadStore. The cursor of a partitioned queue begins with a partition's number."""
        prefixes = await self._partitions.prefixes(filter.queue)
        number, inner = _parsed(cursor, prefixes)
        end, last = (len(prefixes), "") if until is None else _parsed(until, prefixes)
        if number > end or (until is not None and number == end and not last):
            return Page(records=())
        state = "" if filter.state is None else STATE_CODES[filter.state]
        name = b"" if filter.name is None else packing.encode(filter.name)
        reply = await self._calls.fcall(
            "find",
            prefixes[number],
            self._calls.now(),
            state,
            name,
            filter.key or "",
            inner,
            limit,
            "1" if filter.oldest_first else "",
            last if number == end else "",
        )
        records = tuple(record(filter.queue, view) for view in reply[1:])
        following = _following(number, reply[0], len(prefixes))
        ended = following == until or (number == end and not reply[0])
        return Page(records=records, cursor=None if ended else following)

    async def skip(
        self, filter: Filter, *, cursor: str | None = None, count: int = 1000
    ) -> str | None:
        """See ReadStore. What is left of a partition that has fewer jobs is skipped as well."""
        if filter.oldest_first:
            raise refusals.not_divided()
        prefixes = await self._partitions.prefixes(filter.queue)
        number, inner = _parsed(cursor, prefixes)
        state = "" if filter.state is None else STATE_CODES[filter.state]
        most = min(max(count, 1), _SKIP)
        reply = await self._calls.fcall(
            "skip", prefixes[number], self._calls.now(), state, inner, most
        )
        return _following(number, reply, len(prefixes))

    async def count(self, queue: QueueName) -> dict[State, int]:
        """See ReadStore."""
        replies = [
            await self._calls.fcall("count", prefix)
            for prefix in await self._partitions.prefixes(queue)
        ]
        return {state: sum(reply[code] for reply in replies) for code, state in enumerate(STATES)}

    async def stats(self, queue: QueueName) -> StatsRecord:
        """See ReadStore."""
        replies = [
            await self._calls.fcall("stats", prefix, self._calls.now())
            for prefix in await self._partitions.prefixes(queue)
        ]
        oldest = [reply[3] for reply in replies if reply[3] >= 0]
        due = [reply[4] for reply in replies if reply[4] >= 0]
        modes = [reply[2].decode() for reply in replies if reply[2]]
        return StatsRecord(
            queue=queue,
            counts={
                state: sum(reply[0][code] for reply in replies) for code, state in enumerate(STATES)
            },
            paused=any(reply[1] for reply in replies),
            mode=modes[0] if modes else None,
            oldest_waiting_ms=max(oldest, default=None),
            next_due_ms=min(due, default=None),
            workers=len(await self._presence.workers(queue)),
            held_until_ms=max(
                (int(float(reply[5])) for reply in replies if reply[5]), default=None
            ),
        )

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """See ReadStore."""
        sums: dict[int, dict[str, int]] = {}
        for prefix in await self._partitions.prefixes(queue):
            flat = await self._calls.fcall("metrics", prefix, self._calls.now(), minutes)
            for minute, figures in zip(flat[::2], flat[1::2], strict=True):
                total = sums.setdefault(int(minute), {})
                for name, n in zip(figures[::2], figures[1::2], strict=True):
                    total[name.decode()] = total.get(name.decode(), 0) + int(n)
        return [
            MinuteRecord(minute_ms=minute, **figures) for minute, figures in sorted(sums.items())
        ]

    async def logs(self, job: JobKey) -> list[str]:
        """See ReadStore."""
        for prefix in await self._partitions.prefixes(job.queue):
            if lines := await self._calls.fcall("logs", prefix, self._calls.now(), job.id):
                return [line.decode() for line in lines]
        return []

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        """See ReadStore."""
        found = (
            await self._partitions.all_queues()
            if tenant is None
            else await self._partitions.queues_of(tenant)
        )
        records: list[QueueRecord] = []
        for start in range(0, len(found), _QUEUES_AT_ONCE):
            some = found[start : start + _QUEUES_AT_ONCE]
            described = await asyncio.gather(
                *(
                    self._calls.fcall("describe", self._partitions.space.prefix(each))
                    for each in some
                )
            )
            records += [
                queue_record(queue, flat, keyed)
                for queue, (flat, keyed) in zip(some, described, strict=True)
            ]
        return records


# Reading the event log, and how far its readers have come.
#
# Each partition is a shard of the log.

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
