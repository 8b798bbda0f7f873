"""Dead letters: failed jobs, grouped by the fingerprint of their error."""

from __future__ import annotations

from jobq.core.records.jobs import QueueName
from jobq.core.records.states import State
from jobq.operations import listing
from jobq.operations.failures import Causes, Group, failed
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.view import MAX_QUEUES, Shape, View

_PAGE = 100
_PER_QUEUE = 300
_IN_ALL = 1_000
"""Failed jobs that are grouped: a few tenths of a second."""
_MAX_BYTES = 32 * 2**20
"""Arguments and results that are read for that. Listings contain them."""
_GROUPS = 100
_QUEUES = 50


class ErrorGroup(Shape, frozen=True, kw_only=True):
    """Failed jobs of one cause."""

    tenant: str
    queue: str
    name: str
    """The task."""
    fingerprint: str
    """The fingerprint, or the type of the error if there is none. It is a value for the filter
    `error` of a list or a bulk action."""
    type: str
    message: str
    """Of the newest job. Empty if payloads are hidden."""
    reason: str
    jobs: int
    """Of the jobs that were looked at."""
    first_ms: int
    last_ms: int
    newest: JobRow


class QueueFailures(Shape, frozen=True, kw_only=True):
    """How many failed jobs a queue has."""

    tenant: str
    queue: str
    failed: int


class DeadLetters(Shape, frozen=True, kw_only=True):
    """Groups of failed jobs, the largest first."""

    groups: tuple[ErrorGroup, ...]
    """Up to 100."""
    failed: int
    """All failed jobs of these queues."""
    looked_at: int
    """The newest failed jobs, which the groups are made of."""
    complete: bool
    """Whether all failed jobs were looked at."""
    queues: tuple[QueueFailures, ...]
    """The queues with failed jobs, the most first. Up to 50."""


async def dead_letters(
    view: View,
    *,
    tenant: str | None = None,
    queue: str | None = None,
    name: str | None = None,
) -> DeadLetters:
    """The newest failed jobs by error: up to 300 of each queue and 1,000 in all."""
    numbers: dict[QueueName, int] = {}
    for listed in (await listing.queues(view.store, tenant, queue))[:MAX_QUEUES]:
        if number := (await view.store.count(listed.queue)).get(State.FAILED, 0):
            numbers[listed.queue] = number
    most_first = sorted(numbers, key=lambda each: -numbers[each])
    causes = Causes()
    looked_at, complete, size = 0, True, 0
    for each in most_first:
        taken = 0
        async for page in failed(view.store, each, name, size=_PAGE):
            causes.add(page)
            size += sum(len(record.payload) + len(record.result or b"") for record in page)
            taken += len(page)
            if taken >= _PER_QUEUE or looked_at + taken >= _IN_ALL or size > _MAX_BYTES:
                complete = complete and taken >= numbers[each]
                break
        looked_at += taken
        if looked_at >= _IN_ALL or size > _MAX_BYTES:
            complete = complete and each == most_first[-1]
            break
    largest = causes.largest_first()
    return DeadLetters(
        groups=tuple(_group(view, each) for each in largest[:_GROUPS]),
        failed=sum(numbers.values()),
        looked_at=looked_at,
        complete=complete and len(largest) <= _GROUPS,
        queues=tuple(
            QueueFailures(tenant=each.tenant, queue=each.queue, failed=numbers[each])
            for each in most_first[:_QUEUES]
        ),
    )


def _group(view: View, group: Group) -> ErrorGroup:
    row = job_row(view, group.newest)
    return ErrorGroup(
        tenant=row.tenant,
        queue=row.queue,
        name=row.name,
        fingerprint=group.cause.fingerprint,
        type="" if row.problem is None else row.problem.type,
        message="" if row.problem is None else row.problem.message,
        reason="" if row.problem is None else row.problem.reason,
        jobs=group.jobs,
        first_ms=group.first_ms,
        last_ms=group.newest.finished_ms or 0,
        newest=row,
    )
