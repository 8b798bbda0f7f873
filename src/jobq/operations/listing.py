"""Lists of queues and jobs. Jobs are read page by page, by a filter or by criteria."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from jobq.core.records.criteria import Criteria, SelectionCursor, pack_cursor, unpack_cursor
from jobq.core.records.jobs import Filter, JobKey, JobRecord, QueueName
from jobq.core.records.queues import QueueRecord
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.errors import JobNotFound
from jobq.stores.base import ReadStore

PAGE = 500
"""Records per call of `find`: a page of large jobs still takes well under a second."""
MAX_PAGE = 1_000
"""Jobs of one page that a request may ask for. A page of large jobs still fits into one message."""
_REQUEST = 100
"""Jobs of a page if a request names no number."""
MAX_COMPARED = 2_000
"""Jobs that a bounded call compares with the criteria: a fraction of a second."""

Parameters = Callable[[str], Sequence[str]]
"""The names of a task's positional parameters; none if this process does not have its function."""


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


async def find_queue(store: ReadStore, queue: QueueName) -> QueueRecord | None:
    """What is stored about a queue. None if there is no such queue; reading does not create it."""
    records = await store.queues(queue.tenant)
    return next((record for record in records if record.queue == queue), None)


async def get_queue(store: ReadStore, queue: QueueName) -> QueueRecord:
    """What is stored about a queue. JobNotFound if there is no such queue."""
    if (record := await find_queue(store, queue)) is None:
        raise JobNotFound(f"there is no queue {queue.queue!r}")
    return record


async def queues(
    store: ReadStore, tenant: str | None = None, name: str | None = None
) -> list[QueueRecord]:
    """All queues, those of a tenant, or those of a name, by tenant and name."""
    records = await store.queues(tenant)
    return sorted(
        (each for each in records if name is None or each.queue.queue == name),
        key=lambda each: each.queue,
    )


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


def no_such_job(key: JobKey) -> JobNotFound:
    """The error for a job that does not exist."""
    return JobNotFound(
        f"there is no job {key.id!r} in queue {key.queue.queue!r}: it was removed, or its record "
        "has expired"
    )


async def pages(
    store: ReadStore, wanted: Filter, size: int = PAGE, *, limit: int | None = None
) -> AsyncIterator[tuple[JobRecord, ...]]:
    """The jobs that match a filter, up to `size` per page and `limit` in all. No page is empty."""
    cursor: str | None = None
    while size > 0 and limit != 0:
        page = await store.find(
            wanted, cursor=cursor, limit=size if limit is None else min(size, limit)
        )
        records = page.records[:limit]
        if records:
            yield records
        if limit is not None:
            limit -= len(records)
        if (cursor := page.cursor) is None:
            return


class Matching:
    """Reads the jobs that match some criteria, page by page."""

    def __init__(
        self,
        store: ReadStore,
        queue: QueueName,
        wanted: Criteria,
        *,
        oldest_first: bool = False,
        parameters: Parameters = lambda name: (),
    ) -> None:
        self._store = store
        self._queue = queue
        self._oldest_first = oldest_first
        self._parameters = cache(parameters)
        self.wanted = wanted
        self.looked_at = 0
        self.unreadable = 0
        self.effort = 0
        """Like `looked_at`, with at least one for each call."""

    def begin(self, cursor: str | None = None) -> SelectionCursor:
        """Where to read first. InvalidJob if the cursor is not one of these criteria."""
        return unpack_cursor(cursor or None, self.wanted.digest, len(self._states))

    async def page(
        self, at: SelectionCursor, size: int
    ) -> tuple[list[JobRecord], SelectionCursor | None]:
        """The matching jobs of one page, and where the next page begins. None at the end."""
        filter = self.wanted.filter(
            self._queue, self._states[at.state], oldest_first=self._oldest_first
        )
        page = await self._store.find(filter, cursor=at.cursor, limit=size)
        self.effort += max(1, len(page.records))
        matched = [record for record in page.records if self._matches(record)]
        if page.cursor is not None:
            return matched, replace(at, cursor=page.cursor)
        if at.state + 1 < len(self._states):
            return matched, replace(at, state=at.state + 1, cursor=None)
        return matched, None

    async def pages(self, size: int = PAGE) -> AsyncIterator[list[JobRecord]]:
        """The matching jobs of each page, from the beginning. A page may be empty."""
        at: SelectionCursor | None = self.begin()
        while at is not None:
            matched, at = await self.page(at, size)
            yield matched

    async def records(self, limit: int | None, size: int = PAGE) -> AsyncIterator[JobRecord]:
        """The first `limit` jobs that match, or all, read `size` at a time."""
        if limit is not None and not self.wanted.compared_here:
            size = min(size, max(1, limit))
        found = 0
        async for records in self.pages(size):
            for record in records[: None if limit is None else limit - found]:
                yield record
            found += len(records)
            if limit is not None and found >= limit:
                return

    @property
    def _states(self) -> Sequence[State | None]:
        return self.wanted.states or (None,)

    def _matches(self, record: JobRecord) -> bool:
        self.looked_at += 1
        parameters = self._parameters(record.name) if self.wanted.arguments else ()
        verdict = self.wanted.verdict(record, parameters)
        self.unreadable += verdict == "unreadable"
        return verdict == "match"


async def of_queues(
    store: ReadStore,
    names: Iterable[QueueName],
    wanted: Criteria,
    *,
    limit: int,
    oldest_first: bool = False,
) -> AsyncIterator[tuple[QueueName, list[JobRecord]]]:
    """The first `limit` jobs of each queue that match."""
    for queue in names:
        matching = Matching(store, queue, wanted, oldest_first=oldest_first)
        yield queue, [record async for record in matching.records(limit)]


class Listed(NamedTuple):
    """A page. `cursor` is empty if there is no more."""

    records: list[JobRecord]
    cursor: str
    looked_at: int = 0


def page_size(limit: int, default: int = _REQUEST) -> int:
    """How many records a request means. 0 is the default."""
    return checks.check_int(limit, "limit", high=MAX_PAGE) or default


async def listed(
    store: ReadStore,
    queue: QueueName,
    criteria: Criteria,
    *,
    limit: int,
    cursor: str,
    oldest_first: bool = False,
) -> Listed:
    """The next page of jobs that match. It looks at a bounded number of jobs."""
    matching = Matching(store, queue, criteria, oldest_first=oldest_first)
    at: SelectionCursor | None = matching.begin(cursor)
    found: list[JobRecord] = []
    while at is not None and len(found) < limit and matching.effort < MAX_COMPARED:
        records, at = await matching.page(at, limit - len(found))
        found += records
    return Listed(found, "" if at is None else pack_cursor(at), matching.effort)


async def located(
    store: ReadStore, names: Sequence[QueueName], ids: Sequence[str]
) -> dict[str, list[JobRecord]]:
    """The jobs of these ids in these queues, by id."""
    found: dict[str, list[JobRecord]] = {id: [] for id in ids}
    keys = [JobKey(name, id) for id in ids for name in names]
    for record in await store.get(keys) if keys else ():
        if record is not None:
            found[record.id].append(record)
    return found
