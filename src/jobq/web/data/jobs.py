"""Lists of jobs by filter, page by page, and what a bulk action would change."""

from __future__ import annotations

from jobq.core.criteria import Criteria
from jobq.core.records import JobRecord
from jobq.web.data.shown import Problem, Shown
from jobq.web.data.view import Shape, View


class JobQuery(Shape):
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
    """Type, reason, fingerprint or `type: message` of the failure. `*` stands for any text."""
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    ended_after_ms: int | None = None
    ended_before_ms: int | None = None
    oldest_first: bool = False


class JobRow(Shape):
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
    life: int
    schedule: str | None
    origin: str | None
    flow: bool
    """Whether it waits for other jobs, or others wait for it."""


class JobList(Shape):
    """A page of jobs. `cursor` continues it; None means there is no more.

    One call looks at a bounded number of jobs, so a page may be short and still have a cursor.
    """

    jobs: tuple[JobRow, ...]
    cursor: str | None
    looked_at: int
    counts: dict[str, int]
    """How many jobs of the queue are in each state, whatever the filter."""


class BulkPreview(Shape):
    """What a bulk action would change. If it is not `complete`, there may be more."""

    matched: int
    looked_at: int
    complete: bool
    samples: tuple[JobRow, ...]


async def jobs(
    view: View, query: JobQuery, *, cursor: str | None = None, limit: int = 50
) -> JobList:
    """The next page of jobs that match. InvalidJob names a filter that is wrong."""
    raise NotImplementedError


async def preview(view: View, query: JobQuery) -> BulkPreview:
    """How many jobs match. By state alone the number is exact; otherwise it looks at 10,000."""
    raise NotImplementedError


def criteria_of(query: JobQuery) -> Criteria:
    """The criteria of a query. InvalidJob names a filter that is wrong."""
    raise NotImplementedError


def job_row(view: View, record: JobRecord) -> JobRow:
    """A record as a row."""
    raise NotImplementedError
