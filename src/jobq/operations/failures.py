"""Failed jobs by their cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from jobq.core.records.jobs import Filter, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.operations.listing import PAGE, pages
from jobq.stores.base import ReadStore


class Cause(NamedTuple):
    """What the failures of one cause have in common."""

    queue: QueueName
    name: str
    fingerprint: str
    """Or the type of the error, if it has no fingerprint."""


class Group(NamedTuple):
    """The failed jobs of one cause. Of all but the newest, only their number is kept."""

    cause: Cause
    jobs: int
    first_ms: int
    newest: JobRecord


class Causes:
    """Groups failed jobs by cause."""

    def __init__(self) -> None:
        self._groups: dict[Cause, Group] = {}

    def add(self, records: Iterable[JobRecord]) -> None:
        """Count more failed jobs."""
        for record in records:
            key, at_ms = cause(record), record.finished_ms or 0
            known = self._groups.get(key, Group(key, 0, at_ms, record))
            is_newer = at_ms > (known.newest.finished_ms or 0)
            self._groups[key] = Group(
                key,
                known.jobs + 1,
                min(known.first_ms, at_ms),
                record if is_newer else known.newest,
            )

    def largest_first(self) -> list[Group]:
        """The groups, those with the most jobs first."""
        return sorted(self._groups.values(), key=lambda group: -group.jobs)


def cause(record: JobRecord) -> Cause:
    """The cause of a job's failure."""
    failure = record.failure
    name = "" if failure is None else failure.fingerprint or failure.type
    return Cause(record.queue, record.name, name)


def failed(
    store: ReadStore,
    queue: QueueName,
    name: str | None,
    *,
    size: int = PAGE,
    limit: int | None = None,
) -> AsyncIterator[tuple[JobRecord, ...]]:
    """The failed jobs of a queue, or of one of its tasks, page by page."""
    wanted = Filter(queue=queue, state=State.FAILED, name=name or None)
    return pages(store, wanted, size, limit=limit)
