"""Schedules: jobs that are put at set times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from jobq.core.commands import Altered
from jobq.core.new_jobs import check_schedule
from jobq.core.queues import Fire, ScheduleRecord, ScheduleSpec
from jobq.core.records import QueueName
from jobq.stores.valkey import job_bodies, keys, packing
from jobq.stores.valkey.calls import Calls, Refused
from jobq.stores.valkey.commands import ALTERED
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.put_results import refuse
from jobq.stores.valkey.scheduled_queues import ScheduledQueues
from jobq.stores.valkey.servers import Servers
from jobq.stores.valkey.wire import Argument

_QUEUES_AT_ONCE = 100
"""Queues whose schedules are read concurrently."""
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
        for start in range(0, len(queues), _QUEUES_AT_ONCE):
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
                for each in queues[start : start + _QUEUES_AT_ONCE]
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
        body = b"" if each.skipped else job_bodies.body_of(job, None)[0]
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
