"""Erase one subject's jobs from the store and the lake (`jq-pipeline erase`).

The digests of the jobs are stored first. Everything after that can be repeated: a second call with
the same arguments finishes what a crash has interrupted, also if it finds no job any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobq import Queue
from jobq.client.log_reader import LogReader
from jobq.errors import JobNotFound
from jobq.pipeline import erasure
from jobq.pipeline.erasure import Job
from jobq.pipeline.formats import Part
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import Target
from jobq.pipeline.tables import ERASED, EVENTS, QUARANTINE, TABLES, Table

_CONTENT = {"job", "example_job", "raw"}
"""Columns with the content of single jobs. Tables without them have counts, or marks."""
_AT_ONCE = 24  # partitions that one Spark job rewrites: a day of events

Report = Callable[[int, int], None]


class Subject(NamedTuple):
    """Which jobs to erase: those with these ids, and those whose meta has all these values."""

    ids: tuple[str, ...] = ()
    meta: Mapping[str, str] = {}
    tenant: str | None = None
    queue: str | None = None


class Found(NamedTuple):
    """What an erasure would remove."""

    in_lake: frozenset[Job]
    in_store: frozenset[Job]
    events: int
    unfinished: int = 0  # jobs of an interrupted erasure

    @property
    def jobs(self) -> frozenset[Job]:
        """All jobs."""
        return self.in_lake | self.in_store


class Erased(NamedTuple):
    """What an erasure has removed."""

    jobs: int
    events: int
    removed: int  # jobs removed from the store
    running: tuple[Job, ...]  # jobs that the store keeps because a worker runs them


def find(lake: Lake, subject: Subject, *, store: str | None = None) -> Found:
    """Find the jobs of a subject, in the lake and in the store at the URL `store`."""
    rows = lake.read(EVENTS).where(_meant(subject))
    counted = rows.groupBy("tenant", "queue", "job").count().collect()
    in_lake = frozenset(Job(row.tenant, row.queue, row.job) for row in counted)
    return Found(
        in_lake=in_lake,
        in_store=frozenset(asyncio.run(_in_store(store, subject)) if store else ()),
        events=sum(row["count"] for row in counted),
        unfinished=len(erasure.load(lake.files, lake.root).unfinished),
    )


def _meant(subject: Subject) -> Column:
    wanted = F.col("job").isin(list(subject.ids))
    if subject.meta:
        meta = [F.col("meta").getItem(name) == value for name, value in subject.meta.items()]
        wanted = wanted | reduce(Column.__and__, meta)
    for name, value in (("tenant", subject.tenant), ("queue", subject.queue)):
        if value is not None:
            wanted = wanted & (F.col(name) == value)
    return wanted & (F.col("kind") != ERASED) & (F.col("job") != "")


async def _in_store(url: str, subject: Subject) -> set[Job]:
    found = set()
    async with LogReader(url) as log:
        names = await log.queues(subject.tenant)
    for name in names:
        if subject.queue not in (None, name.queue):
            continue
        async with Queue(name.queue, url, tenant=name.tenant) as queue:
            for id in subject.ids:
                if await _there(queue, id):
                    found.add(Job(name.tenant, name.queue, id))
            if subject.meta:
                async for job in queue.find(meta=subject.meta):
                    found.add(Job(name.tenant, name.queue, job.id))
    return found


async def _there(queue: Queue, id: str) -> bool:
    try:
        await queue.job(id).info()
    except JobNotFound:
        return False
    return True


def erase(
    lake: Lake,
    found: Found,
    targets: Sequence[Target],
    *,
    store: str | None = None,
    report: Report = lambda _, __: None,
) -> Erased:
    """Erase these jobs, as the lake's only writer. `report` gets the hours done, and how many.

    The store comes first. What it logs about the removal arrives in the lake later, and becomes a
    tombstone there."""
    listed = erasure.load(lake.files, lake.root)
    new = erasure.digests(lake.spark, listed, found.jobs)
    now = int(time.time() * 1000)
    listed = msgspec.structs.replace(
        listed,
        jobs={**listed.jobs, **dict.fromkeys(new, now)},
        unfinished=tuple(sorted({*listed.unfinished, *new})),
    )
    erasure.save(lake.files, lake.root, listed)
    removed, running = asyncio.run(_remove(store, found.in_store)) if store else (0, ())
    todo = msgspec.structs.replace(
        listed, jobs={digest: listed.jobs[digest] for digest in listed.unfinished}
    )
    count = _from_events(lake, todo, report)
    derive(lake, targets)
    _from_others(lake, todo)
    lake.files.delete(f"{lake.root}/_jobq/audit")  # the audit's examples show whole events
    for table in TABLES:
        if _CONTENT & {*table.columns}:
            lake.space.free(table, 0)  # older versions of the table have the content still
            lake.space.forget(table)
    erasure.save(lake.files, lake.root, msgspec.structs.replace(listed, unfinished=()))
    return Erased(len(todo.jobs), count, removed, running)


async def _remove(url: str, jobs: frozenset[Job]) -> tuple[int, tuple[Job, ...]]:
    """Remove jobs from the store. Returns how many, and those that are running."""
    removed, running = 0, []
    for name in sorted({(job.tenant, job.queue) for job in jobs}):
        async with Queue(name[1], url, tenant=name[0]) as queue:
            for job in sorted(job for job in jobs if (job.tenant, job.queue) == name):
                # Removing an unfinished job cancels it. Removing it again deletes the record.
                done = [await _removed(queue, job.id) for _ in range(2)]
                if any(done):
                    removed += 1
                elif await _there(queue, job.id):
                    running.append(job)
    return removed, tuple(running)


async def _removed(queue: Queue, id: str) -> bool:
    try:
        return await queue.job(id).remove()
    except JobNotFound:
        return False


def _from_events(lake: Lake, erasures: erasure.Erasures, report: Report) -> int:
    """Replace events by tombstones, some hours at a time. Returns the number of events."""
    rows = erasure.with_erasures(lake.read(EVENTS).where(F.col("kind") != ERASED), erasures)
    counts = rows.where(erasure.hit(created=True)).groupBy("day", "hour").count().collect()
    hours = sorted(Part(str(row.day), row.hour) for row in counts)
    report(0, len(hours))
    for start in range(0, len(hours), _AT_ONCE):
        some = hours[start : start + _AT_ONCE]
        # First, so that the derived tables are computed again also if a crash follows.
        lake.outdated(some)
        lake.space.replace(EVENTS, erasure.tombstones(lake.read(EVENTS, some), erasures), some)
        report(start + len(some), len(hours))
    return sum(row["count"] for row in counts)


def _from_others(lake: Lake, erasures: erasure.Erasures) -> None:
    """Remove what other tables have of the jobs, where it was not derived again.

    Rows about one job go; an example in a row about many jobs is emptied; and so is the text of a
    record in quarantine."""
    queue = [F.col("tenant"), F.col("queue")]
    for table in TABLES:
        if table.name == QUARANTINE.name:
            who = [F.get_json_object("raw", f"$.{name}") for name in ("tenant", "queue", "job")]
            _rewrite(lake, table, erasures, who, ("raw",))
        elif "example_job" in table.columns:
            who = [*queue, F.col("example_job")]
            _rewrite(lake, table, erasures, who, ("example", "example_job"))
        elif "job" in table.columns and table.name != EVENTS.name:
            _rewrite(lake, table, erasures, [*queue, F.col("job")], ())


def _rewrite(
    lake: Lake,
    table: Table,
    erasures: erasure.Erasures,
    who: Sequence[Column],
    emptied: Sequence[str],
) -> None:
    """Rewrite the partitions that have rows of erased jobs. Without `emptied`, the rows go."""

    def with_erasures(rows: DataFrame) -> DataFrame:
        return erasure.with_erasures(rows, erasures, who)

    hit = erasure.hit(created=False)
    names = table.partition_names
    found = with_erasures(lake.read(table)).where(hit).select(*names).distinct().collect()
    parts = sorted(Part(str(row[0]), *row[1:]) for row in found)
    for start in range(0, len(parts), _AT_ONCE):
        some = parts[start : start + _AT_ONCE]
        rows = with_erasures(lake.read(table, some))
        if emptied:
            rows = rows.withColumns({name: F.when(~hit, F.col(name)) for name in emptied})
        else:
            rows = rows.where(~hit)
        lake.space.replace(table, rows.select(*table.columns), some)
