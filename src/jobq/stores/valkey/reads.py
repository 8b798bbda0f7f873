"""Reading jobs, counts and figures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobq.core import refusals
from jobq.core.event_log import STATE_CODES, STATES
from jobq.core.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records import Filter, JobKey, JobRecord, Page, QueueName
from jobq.core.states import State
from jobq.stores.valkey import job_replies, packing, queue_replies
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.presence import Presence

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
                        records[n] = job_replies.record(jobs[n].queue, view, whole=True)
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
        records = tuple(job_replies.record(filter.queue, view) for view in reply[1:])
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
                queue_replies.queue_record(queue, flat, keyed)
                for queue, (flat, keyed) in zip(some, described, strict=True)
            ]
        return records
