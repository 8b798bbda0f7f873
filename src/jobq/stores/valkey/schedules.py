"""Schedules: jobs that are put at set times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from jobq.core.records.commands import Altered
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.rules.new_jobs import check_schedule
from jobq.stores.valkey import jobs, keys, packing
from jobq.stores.valkey.calls import Calls, Refused
from jobq.stores.valkey.commands import ALTERED
from jobq.stores.valkey.connection import Argument, Reply
from jobq.stores.valkey.jobs import refuse
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.servers import Servers

# Which queues may have a due schedule, so that a scheduler need not ask all of them every second.
#
# A sorted set has the queues with schedules, each with a time before which none of its schedules is
# due. The set is in another slot than the queues, so it is only a hint, and no call changes both at
# once. These orders make sure that no time is missed:
#
# - A schedule is stored first. Then the time of its queue is lowered.
# - A queue that is asked first gets a later time. Then it is asked, and then its time is lowered to
#   that of its next schedule.
#
# So a schedule that is stored while its queue is asked is found, or lowers the time after that.

_LATER_MS = 30_000
"""Milliseconds until a queue is asked again at the latest. A scheduler that dies between its two
steps delays a schedule by no more than this."""
_REBUILD_S = 300.0
"""Seconds after which a handle asks all queues whether they have schedules. Older releases do not
write the set."""
_QUEUES_AT_ONCE = 100
"""Queues that are asked concurrently."""
_MOST = 1_000
"""Queues that one look returns."""


class ScheduledQueues:
    """The set of queues with schedules."""

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._key = partitions.space.scheduled
        self._rebuild_at = 0.0  # monotonic clock

    async def lower(self, queue: QueueName, next_ms: int) -> None:
        """A schedule of the queue is due at this time, or earlier."""
        prefix = self._partitions.space.prefix(queue)
        # Without LT, which Redis has since 6.2, a time could become later here.
        await self._command("ZADD", self._key, "LT", next_ms, prefix)

    async def remove(self, queue: QueueName) -> None:
        """The queue is gone."""
        await self._command("ZREM", self._key, self._partitions.space.prefix(queue))

    async def due(self) -> list[QueueName]:
        """The queues that may have a due schedule. The caller asks them, then calls `asked`."""
        if time.monotonic() >= self._rebuild_at:
            await self._rebuild()
            self._rebuild_at = time.monotonic() + _REBUILD_S
        now = await self._now()
        found = await self._command("ZRANGEBYSCORE", self._key, "-inf", now, "LIMIT", 0, _MOST)
        if found:
            later = [each for prefix in found for each in (now + _LATER_MS, prefix)]
            await self._command("ZADD", self._key, "XX", *later)
        return [keys.queue_of(prefix.decode()) for prefix in found]

    async def asked(self, queues: Sequence[QueueName]) -> None:
        """These queues were asked: store when their next schedules are due."""
        now = await self._now() if queues else 0
        for some in _parts(queues):
            times = await asyncio.gather(*(self._next_ms(queue, now) for queue in some))
            lowered = [
                each
                for queue, next_ms in zip(some, times, strict=True)
                if next_ms is not None
                for each in (next_ms, self._partitions.space.prefix(queue))
            ]
            if lowered:
                await self._command("ZADD", self._key, "LT", *lowered)

    async def _next_ms(self, queue: QueueName, now: int) -> int | None:
        """When a schedule of the queue may be due next; None: it has none.

        A schedule without a time may get one when its job ends, and nobody tells. Its queue is
        asked every time."""
        prefix = self._partitions.space.prefix(queue)
        due, states = keys.schedules_due(prefix), keys.schedule_states(prefix)
        first, timed, stored = await asyncio.gather(
            self._servers.command(prefix, "ZRANGE", due, 0, 0, "WITHSCORES"),
            self._servers.command(prefix, "ZCARD", due),
            self._servers.command(prefix, "HLEN", states),
        )
        if timed < stored:
            return now
        return int(float(first[1])) if first else None

    async def _rebuild(self) -> None:
        """Enter all queues that have schedules, to be asked now."""
        for some in _parts(await self._partitions.all_queues()):
            prefixes = [self._partitions.space.prefix(queue) for queue in some]
            stored = await asyncio.gather(
                *(
                    self._servers.command(prefix, "HLEN", keys.schedule_states(prefix))
                    for prefix in prefixes
                )
            )
            entries = [
                each
                for prefix, number in zip(prefixes, stored, strict=True)
                if number
                for each in (0, prefix)
            ]
            if entries:
                await self._command("ZADD", self._key, *entries)

    async def _now(self) -> int:
        """The injected clock's time, or that of the server with the set."""
        given = self._calls.now()
        if given != "":
            return int(given)
        seconds, micros = await self._command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def _command(self, *command: Argument) -> Reply:
        return await self._servers.command(self._key, *command)


def _parts(queues: Sequence[QueueName]) -> Iterator[Sequence[QueueName]]:
    for start in range(0, len(queues), _QUEUES_AT_ONCE):
        yield queues[start : start + _QUEUES_AT_ONCE]


_decode = msgspec.msgpack.Decoder(ScheduleSpec).decode


class Schedules:
    """Stores and fires schedules.

    Those of a partitioned queue are stored at the whole queue's prefix.
    """

    def __init__(self, servers: Servers, calls: Calls, partitions: Partitions, mail: Mail) -> None:
        self._servers = servers
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._scheduled = ScheduledQueues(servers, calls, partitions)

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """See ScheduleStore."""
        spec = check_schedule(spec, next_ms)
        await self._partitions.register(spec.queue)
        rule: dict[str, Any] = {"after": spec.after_complete}
        if spec.every_ms is not None:
            rule["every"] = spec.every_ms
        if spec.limit is not None:
            rule["limit"] = spec.limit
        if spec.end_ms is not None:
            rule["stop"] = spec.end_ms
        stored = (packing.encode(spec), "" if next_ms is None else next_ms, packing.encode(rule))
        record = _record(await self._change("schedule", spec.queue, actor, spec.id, *stored))
        await self._scheduled.lower(spec.queue, record.next_ms or 0)
        return record

    async def drop_schedule(self, queue: QueueName, id: str, *, actor: str | None = None) -> bool:
        """See ScheduleStore."""
        return bool(await self._change("unschedule", queue, actor, id))

    async def pause_schedule(
        self, queue: QueueName, id: str, *, paused: bool, actor: str | None = None
    ) -> Altered:
        """See ScheduleStore."""
        (letter,) = await self._change("pause_schedule", queue, actor, id, int(paused))
        if not paused:
            await self._scheduled.lower(queue, 0)
        return ALTERED[letter]

    async def _change(
        self, function: str, queue: QueueName, actor: str | None, *args: Argument
    ) -> Any:
        """Change a schedule. In a partitioned queue, a message reports it to the event log."""
        prefix = self._partitions.space.prefix(queue)
        answer, messages = await self._calls.fcall(
            function,
            prefix,
            self._calls.now(),
            await self._partitions.home(queue),
            actor or "",
            *args,
        )
        await self._mail.after(queue, prefix, messages=messages)
        return answer

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """See ScheduleStore."""
        if queue is not None:
            return await self._listed([queue], due, limit)
        if not due:
            return await self._listed(await self._partitions.all_queues(), due, limit)
        queues = await self._scheduled.due()
        found = await self._listed(queues, due, limit)
        await self._scheduled.asked(queues)
        return found

    async def _listed(
        self, queues: Sequence[QueueName], due: bool, limit: int
    ) -> list[ScheduleRecord]:
        found: list[ScheduleRecord] = []
        for some in _parts(queues):
            room = limit - len(found)
            if room <= 0:
                break
            calls = [
                self._calls.fcall(
                    "schedules",
                    self._partitions.space.prefix(each),
                    self._calls.now(),
                    int(due),
                    room,
                )
                for each in some
            ]
            found += [_record(view) for views in await asyncio.gather(*calls) for view in views][
                :room
            ]
        return sorted(found, key=lambda r: r.next_ms or 0) if due else found

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """See ScheduleStore."""
        return [await self._fire(each) for each in fires]

    async def _fire(self, each: Fire) -> bool:
        prefix = self._partitions.space.prefix(each.queue)
        packed = await self._servers.command(
            prefix, "HGET", keys.schedule_specs(prefix), each.schedule
        )
        if packed is None:
            return False
        await self._partitions.count(each.queue)
        template = _decode(packed).template
        job = msgspec.structs.replace(
            template,
            queue=each.queue,
            id=each.job_id,
            given_id=False,
            delay_ms=0,
            at_ms=None,
            schedule=each.schedule,
        )
        body = b"" if each.skipped else jobs.body_of(job, None)[0]
        prefix_of_job = self._partitions.prefix_of(each.queue, job.id, job.key)
        try:
            fired, messages, to_wake = await self._calls.fcall(
                "fire",
                prefix,
                self._calls.now(),
                each.schedule,
                each.at_ms,
                "" if each.next_ms is None else each.next_ms,
                packed,
                prefix_of_job,
                "" if each.skipped and not each.missed else job.id,
                body,
                await self._partitions.home(each.queue),
                confirmed=True,
            )
        except Refused as e:
            refuse(e, [job])
        await self._mail.after(each.queue, prefix, to_wake=to_wake, messages=messages)
        return bool(fired)


def _record(view: Sequence[Any]) -> ScheduleRecord:
    _, spec, next_ms, fired, last_ms, paused, created = view
    return ScheduleRecord(
        spec=_decode(spec),
        next_ms=int(next_ms) if next_ms != b"" else None,
        fired=fired,
        last_ms=int(last_ms) if last_ms != b"" else None,
        paused=bool(paused),
        created_ms=created,
    )
