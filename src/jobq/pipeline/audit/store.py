"""The audit's view of a store: where its logs end, and whether its jobs agree with the lake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from jobq.client.log_reader import LogReader
from jobq.core.records.jobs import Filter, JobKey, JobRecord, QueueName
from jobq.core.records.marks import Mark, reached
from jobq.core.records.states import ENDED, State

_GET = 500  # jobs per call to the store


class Tip(NamedTuple):
    """The last event of a job in the lake."""

    tenant: str
    queue: str
    job: str
    life: int
    attempt: int
    state: str
    name: str
    created_ms: int


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in the store: its jobs per state, and the last event of each shard of its log."""

    counts: Mapping[str, int] = {}
    ends: Sequence[Mark] = ()


class Contradiction(msgspec.Struct, frozen=True, kw_only=True):
    """A job of which store and lake tell different stories."""

    tenant: str
    queue: str
    job: str
    fault: str


async def view(url: str, in_lake: Iterable[tuple[str, str]]) -> dict[tuple[str, str], StoreView]:
    """The store's view of these queues and of all its other queues that were ever used."""
    wanted = {*in_lake}
    async with LogReader(url) as log:
        names = {*wanted, *((name.tenant, name.queue) for name in await log.queues())}
        views = {
            name: StoreView(
                counts={state.value: n for state, n in (await log.counts(*name)).items()},
                ends=tuple(reached(await log.last_events(QueueName(*name))).values()),
            )
            for name in sorted(names)
        }
    return {
        name: found
        for name, found in views.items()
        if name in wanted or found.ends or any(found.counts.values())
    }


async def contradictions(
    url: str, tips: Iterable[Tip], quiet: Mapping[tuple[str, str], bool]
) -> AsyncIterator[Contradiction]:
    """Compare jobs with their records, a bounded number per call.

    `quiet` says of a queue whether the lake has all its events. Otherwise a record may be ahead of
    the lake, and only what no later event can explain is a contradiction."""
    left = iter(tips)
    async with LogReader(url) as log:
        while some := list(islice(left, _GET)):
            keys = [JobKey(QueueName(tip.tenant, tip.queue), tip.job) for tip in some]
            for tip, record in zip(some, await log.jobs(keys), strict=True):
                fault = contradiction(tip, record, quiet=quiet.get((tip.tenant, tip.queue), False))
                if fault:
                    yield Contradiction(
                        tenant=tip.tenant, queue=tip.queue, job=tip.job, fault=fault
                    )


def contradiction(tip: Tip, record: JobRecord | None, *, quiet: bool) -> str | None:
    """What the record says that the job's last event in the lake cannot explain, or None."""
    ended = State(tip.state) in ENDED
    if record is None:  # the store removes records of ended jobs
        gone = f"{tip.state} in the lake, but the store does not have it"
        return gone if quiet and not ended else None
    there = f"life {record.life}, {record.state}, attempt {record.attempt}, task {record.name}"
    here = f"life {tip.life}, {tip.state}, attempt {tip.attempt}, task {tip.name}"
    same_job = record.created_ms == tip.created_ms
    differs = f"{here} in the lake, {there} in the store"
    if not same_job:
        # A new job under an id that was free, of which the lake may not have the events yet.
        return differs if quiet or record.created_ms < tip.created_ms else None
    if record.life < tip.life or record.name != tip.name:
        return differs
    if record.life > tip.life:
        return differs if quiet else None
    if record.state != tip.state or record.attempt != tip.attempt:
        return differs if quiet or ended else None
    return None


async def records(
    url: str, queues: Iterable[tuple[str, str]], *, most: int | None, since_ms: int
) -> AsyncIterator[tuple[str, str, str]]:
    """Tenant, queue and id of the store's jobs, newest first, page by page.

    At most `most` per state, and only jobs that were created after `since_ms`."""
    async with LogReader(url) as log:
        for name in queues:
            for state in State:
                left, cursor, more = most, None, True
                while more and (left is None or left > 0):
                    page = await log.find(
                        Filter(queue=QueueName(*name), state=state), cursor=cursor, limit=_GET
                    )
                    for record in page.records:
                        if record.created_ms > since_ms and (left is None or left > 0):
                            yield (*name, record.id)
                            left = None if left is None else left - 1
                    cursor = page.cursor
                    old = bool(page.records) and page.records[-1].created_ms <= since_ms
                    more = cursor is not None and not old
