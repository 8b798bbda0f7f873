"""Looking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core import event_log, refusals
from jobq.core.event_log import STATE_CODES, STATES
from jobq.core.event_records import EventPage, EventRecord
from jobq.core.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records import (
    Filter,
    JobKey,
    JobRecord,
    Page,
    QueueName,
)
from jobq.core.states import State
from jobq.stores.valkey import keys, packing, unpacking
from jobq.stores.valkey.presence import Presence

_GOT = 500
_ENTRY = 100
"""Entries of the log read at once: each holds a whole batch of events."""


class Reads(Presence):
    """`get`, `find`, counts, figures and the log."""

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """See ReadStore."""
        answers: list[JobRecord | None] = [None] * len(jobs)
        for prefix, places in (await self.places(jobs)).items():
            for start in range(0, len(places), _GOT):
                part = places[start : start + _GOT]
                views = await self.fcall("get", prefix, self.now(), *(jobs[n].id for n in part))
                for n, view in zip(part, views, strict=True):
                    if view:
                        answers[n] = unpacking.record(jobs[n].queue, view, with_errors=True)
        return answers

    async def find(self, filter: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """See ReadStore. The cursor of a partitioned queue begins with the partition it stands in."""
        prefixes = await self.prefixes(filter.queue)
        number, _, inner = (cursor or "0/").partition("/")
        if not number.isdigit() or int(number) >= len(prefixes):
            raise refusals.no_cursor(cursor or "")
        state = "" if filter.state is None else STATE_CODES[filter.state]
        name = b"" if filter.name is None else packing.encode(filter.name)
        reply = await self.fcall(
            "find", prefixes[int(number)], self.now(), state, name, filter.key or "", inner, limit
        )
        records = tuple(unpacking.record(filter.queue, view) for view in reply[1:])
        following: str | None = f"{number}/{reply[0].decode()}" if reply[0] else None
        if following is None and int(number) + 1 < len(prefixes):
            following = f"{int(number) + 1}/"
        return Page(records=records, cursor=following)

    async def count(self, queue: QueueName) -> dict[State, int]:
        """See ReadStore."""
        replies = [await self.fcall("count", prefix) for prefix in await self.prefixes(queue)]
        return {state: sum(reply[code] for reply in replies) for code, state in enumerate(STATES)}

    async def stats(self, queue: QueueName) -> StatsRecord:
        """See ReadStore."""
        replies = [
            await self.fcall("stats", prefix, self.now()) for prefix in await self.prefixes(queue)
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
            workers=len(await self.workers(queue)),
            held_until_ms=max(
                (int(float(reply[5])) for reply in replies if reply[5]), default=None
            ),
        )

    async def metrics(self, queue: QueueName, *, minutes: int = 60) -> list[MinuteRecord]:
        """See ReadStore."""
        sums: dict[int, dict[str, int]] = {}
        for prefix in await self.prefixes(queue):
            flat = await self.fcall("metrics", prefix, self.now(), minutes)
            for minute, figures in zip(flat[::2], flat[1::2], strict=True):
                total = sums.setdefault(int(minute), {})
                for name, n in zip(figures[::2], figures[1::2], strict=True):
                    total[name.decode()] = total.get(name.decode(), 0) + int(n)
        return [
            MinuteRecord(minute_ms=minute, **figures) for minute, figures in sorted(sums.items())
        ]

    async def logs(self, job: JobKey) -> list[str]:
        """See ReadStore."""
        for prefix in await self.prefixes(job.queue):
            if lines := await self.fcall("logs", prefix, self.now(), job.id):
                return [line.decode() for line in lines]
        return []

    async def queues(self, tenant: str | None = None) -> list[QueueRecord]:
        """See ReadStore."""
        found = [
            queue for queue in await self.all_queues() if tenant is None or queue.tenant == tenant
        ]
        described = [await self.fcall("describe", self.keys.prefix(queue)) for queue in found]
        return [
            unpacking.queue_record(queue, flat, keyed)
            for queue, (flat, keyed) in zip(found, described, strict=True)
        ]

    # ── events ────────────────────────────────────────────────────────────────────────────────────

    async def read_events(
        self,
        queue: QueueName,
        *,
        after: str | None = None,
        limit: int = 1000,
        until: str | None = None,
    ) -> EventPage:
        """See EventStore. Each partition is a shard of the log."""
        prefixes = await self.prefixes(queue)
        stands: list[Any] = (
            [None] * len(prefixes) if after is None else event_log.places(after, len(prefixes))
        )
        ends: list[Any] = (
            [None] * len(prefixes) if until is None else event_log.places(until, len(prefixes))
        )
        if len(prefixes) == 1:
            found, position = await self._read_log(prefixes[0], queue, 0, stands[0], limit, ends[0])
            return EventPage(events=tuple(found), position=position)
        merged: list[EventRecord] = []
        for n, prefix in enumerate(prefixes):
            if len(merged) < limit:
                found, stands[n] = await self._read_log(
                    prefix, queue, n, stands[n], limit - len(merged), ends[n]
                )
                reached = event_log.joined([stand or "0" for stand in stands])
                merged += [msgspec.structs.replace(event, position=reached) for event in found]
            else:
                stands[n] = stands[n] or "0"
        return EventPage(events=tuple(merged), position=event_log.joined(stands))

    async def _read_log(
        self,
        prefix: str,
        queue: QueueName,
        shard: int,
        after: str | None,
        limit: int,
        until: str | None,
    ) -> tuple[list[EventRecord], str]:
        """Whole entries until there are `limit` events; a page ends where an entry does."""
        last = None if until is None else event_log.order(until)
        found: list[EventRecord] = []
        start = "" if after is None else after
        while True:
            entries = max(1, min(_ENTRY, limit - len(found)))
            tag, position, gone, gone_to, gone_in, flat = await self.fcall(
                "events", prefix, start, entries
            )
            name = tag.decode()
            end = start if flat else position.decode()
            for at, entry in zip(flat[::2], flat[1::2], strict=True):
                told = event_log.unpack(name, at.decode(), queue, entry, shard=shard)
                if gone:
                    what = f"{int(gone):,} events dropped so far"
                    found.append(
                        event_log.gap(
                            name,
                            gone_to.decode(),
                            queue,
                            told[0].at_ms,
                            what,
                            shard=shard,
                            number=int(gone),
                            incarnation=gone_in.decode(),
                        )
                    )
                    end = gone_to.decode()
                    gone = None  # told once, before the first that is left
                if last is not None and event_log.order(at.decode()) > last:
                    return found, end
                found += told
                end = at.decode()
                if len(found) >= limit:
                    return found, end
            if not flat or after is None:
                return found, end
            start = end

    async def ack_events(self, queue: QueueName, reader: str, position: str | None) -> str | None:
        """See EventStore."""
        prefixes = await self.prefixes(queue)
        if position is not None:
            await self.meet(queue)
        parts = (
            [""] * len(prefixes) if position is None else event_log.places(position, len(prefixes))
        )
        stands = [
            (await self.fcall("ack", prefix, reader, part)).decode()
            for prefix, part in zip(prefixes, parts, strict=True)
        ]
        if not any(stands):
            return None
        return event_log.joined([s or "0" for s in stands])

    async def readers(self, queue: QueueName) -> dict[str, str]:
        """See EventStore."""
        found = [
            await self.servers.command(prefix, "HKEYS", keys.readers(prefix))
            for prefix in await self.prefixes(queue)
        ]
        names = sorted({name.decode() for names in found for name in names})
        return {name: await self.ack_events(queue, name, None) or "0" for name in names}

    async def remove_reader(self, queue: QueueName, reader: str) -> bool:
        """See EventStore."""
        prefixes = await self.prefixes(queue)
        return any(
            [
                await self.servers.command(prefix, "HDEL", keys.readers(prefix), reader)
                for prefix in prefixes
            ]
        )
