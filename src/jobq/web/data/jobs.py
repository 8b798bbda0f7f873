"""Lists of jobs by filter, page by page, and what a bulk action would change."""

from __future__ import annotations

from msgspec.structs import asdict

from jobq.core.records.criteria import Criteria, error_names
from jobq.core.records.jobs import Failure, JobKey, JobRecord, QueueName
from jobq.core.rules.deferral import sentence
from jobq.core.values.checks import check_id
from jobq.operations import bulk
from jobq.operations.listing import MAX_COMPARED, Matching, listed
from jobq.operations.selecting import TIMES, criteria_of_request
from jobq.web.data.queues import all_counts
from jobq.web.data.shown import Problem, Shown, problem, shown_in_row
from jobq.web.data.view import Shape, View

MAX_PAGE = 200
"""Jobs of one page."""
_SAMPLES = 5


class JobQuery(Shape, frozen=True, kw_only=True):
    """Which jobs of a queue. None or an empty text excludes no job."""

    tenant: str
    queue: str
    state: str | None = None
    """One state, or several joined by commas."""
    name: str | None = None
    """The task. `*` stands for any text."""
    key: str | None = None
    id: str | None = None
    """An exact id. The other filters do not apply then."""
    error: str | None = None
    """Type, reason, fingerprint or `type: message` of the failure. `*` stands for any text. If
    payloads are hidden, messages are not compared."""
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    ended_after_ms: int | None = None
    ended_before_ms: int | None = None
    oldest_first: bool = False


class JobRow(Shape, frozen=True, kw_only=True):
    """A job as a row of a list."""

    tenant: str
    queue: str
    id: str
    name: str
    state: str
    key: str | None
    priority: int
    attempt: int
    failures: int
    created_ms: int
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    worker: str | None
    problem: Problem | None
    """The last failure, without its traceback."""
    arguments: Shown
    """The first 200 characters."""
    cancel_asked: bool
    deferred: str | None
    """Why the job waits for another worker. Without the details if payloads are hidden."""
    life: int
    schedule: str | None
    origin: str | None
    flow: bool
    """Whether it waits for other jobs, or others wait for it."""


class JobList(Shape, frozen=True, kw_only=True):
    """A page of jobs. `cursor` continues it; None means there is no more.

    One call looks at a bounded number of jobs, so a page may be short and still have a cursor.
    """

    jobs: tuple[JobRow, ...]
    cursor: str | None
    looked_at: int
    counts: dict[str, int]
    """How many jobs of the queue are in each state, whatever the filter."""


class BulkPreview(Shape, frozen=True, kw_only=True):
    """What a bulk action would change. If it is not `complete`, there may be more."""

    matched: int
    looked_at: int
    complete: bool
    samples: tuple[JobRow, ...]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def jobs(
    view: View, query: JobQuery, *, cursor: str | None = None, limit: int = 50
) -> JobList:
    """The next page of jobs that match. InvalidJob names a filter that is wrong."""
    queue = QueueName(query.tenant, query.queue)
    counts = all_counts(await view.store.count(queue))
    if query.id:
        (record,) = await view.store.get([JobKey(queue, check_id(query.id))])
        rows = () if record is None else (job_row(view, record),)
        return JobList(jobs=rows, cursor=None, looked_at=len(rows), counts=counts)
    page = await listed(
        view.store,
        queue,
        criteria_of(view, query),
        limit=max(1, min(limit, MAX_PAGE)),
        cursor=cursor or "",
        oldest_first=query.oldest_first,
    )
    return JobList(
        jobs=tuple(job_row(view, record) for record in page.records),
        cursor=page.cursor or None,
        looked_at=page.looked_at,
        counts=counts,
    )


async def preview(view: View, query: JobQuery) -> BulkPreview:
    """How many jobs match. By state alone the number is exact; otherwise it looks at 2,000."""
    queue = QueueName(query.tenant, query.queue)
    found = await bulk.preview(
        view.store,
        queue,
        Matching(view.store, queue, criteria_of(view, query)),
        samples=_SAMPLES,
        max_jobs=MAX_COMPARED,
    )
    return BulkPreview(
        matched=found.matched,
        looked_at=found.looked_at,
        complete=found.complete,
        samples=tuple(job_row(view, record) for record in found.samples),
    )


class _WithoutMessages(Criteria, frozen=True, kw_only=True, dict=True):
    """Criteria that compare no message of an error. Patterns could find out hidden ones letter by
    letter."""

    def _failure(self, failure: Failure | None) -> bool:
        return failure is not None and any(map(self._error, error_names(failure)))


def criteria_of(view: View, query: JobQuery) -> Criteria:
    """The criteria of a query. InvalidJob names a filter that is wrong."""
    times = {name: getattr(query, f"{name}_ms") for name in TIMES}
    found = criteria_of_request(
        [state for state in (query.state or "").replace(" ", "").split(",") if state],
        {name: ms for name, ms in times.items() if ms is not None},
        name=query.name or "",
        error=query.error or "",
        key=query.key or None,
    )
    return _WithoutMessages(**asdict(found)) if view.hide_payloads and found.error else found


def job_row(view: View, record: JobRecord) -> JobRow:
    """A record as a row."""
    return JobRow(
        tenant=record.queue.tenant,
        queue=record.queue.queue,
        id=record.id,
        name=record.name,
        state=record.state.value,
        key=record.key,
        priority=record.priority,
        attempt=record.attempt,
        failures=record.failures,
        created_ms=record.created_ms,
        due_ms=record.due_ms,
        started_ms=record.started_ms,
        finished_ms=record.finished_ms,
        worker=record.worker,
        problem=problem(view, record.failure, traceback=False),
        arguments=shown_in_row(view, record.payload, record.codec, record.name),
        cancel_asked=record.cancel_asked,
        deferred=sentence(record, hide=view.hide_payloads),
        life=record.life,
        schedule=record.schedule,
        origin=record.origin,
        flow=bool(record.parents or record.children),
    )
