"""What the pages of the admin show: one page of a queue's jobs, and one job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from jobq.api.info import JobInfo
from jobq.client.portal import run
from jobq.core.checks import check_id, shown
from jobq.core.states import State
from jobq.django.queue import Queue
from jobq.django.queues_to_work_on import queues_to_work_on
from jobq.operations import jobs
from jobq.operations.listing import located

PAGE = 50
"""Jobs on a page: what fits on a screen or two."""
MAX_PAGES = 20
"""A page is found by reading the pages before it, so there is a last one. Filters lead further."""
LOG_LINES = 200
"""The last lines of a job's log that its page shows."""


class Filters(NamedTuple):
    """What the user has chosen. Empty means any."""

    queue: str = ""
    state: str = ""
    task: str = ""
    key: str = ""
    page: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """The filters in a query string. What makes no sense there is ignored."""
        state = query.get("state", "")
        page = query.get("page", "0")
        return cls(
            queue=query.get("queue", ""),
            state=state if state in set(State) else "",
            task=query.get("task", ""),
            key=query.get("key", ""),
            page=min(int(page), MAX_PAGES - 1) if page.isdecimal() and len(page) < 9 else 0,
        )


class Row(NamedTuple):
    """A job in a listing."""

    job: JobInfo
    call: str


class JobPage(NamedTuple):
    """A page of jobs, newest first within a state."""

    queues: list[str]
    queue: Queue | None
    counts: list[tuple[State, int]]
    tasks: list[str]
    rows: list[Row]
    has_more: bool


def known_queues() -> dict[str, Queue]:
    """The project's queues by name. Another tenant's queue of the same name has its tenant too."""
    found: dict[str, Queue] = {}
    for queue in queues_to_work_on():
        name = queue.name if queue.name not in found else f"{queue.tenant}/{queue.name}"
        found[name] = queue
    return found


def read_page(filters: Filters) -> JobPage:
    """Read one page. The store narrows the listing, so a call stays cheap in a long queue."""
    queues = known_queues()
    name = filters.queue if filters.queue in queues else next(iter(queues), "")
    if not name:
        return JobPage([], None, [], [], [], False)
    queue = queues[name]
    start = filters.page * PAGE
    exact: dict[str, Any] = {"name": filters.task, "key": filters.key}
    found = queue.sync.find(
        state=filters.state or None,
        max_jobs=start + PAGE + 1,
        **{option: value for option, value in exact.items() if value and "*" not in value},
    )
    jobs = list(islice(found, start, None))
    return JobPage(
        queues=list(queues),
        queue=queue,
        counts=list(queue.sync.counts().items()),
        tasks=sorted(queue.tasks),
        rows=[Row(job, call_of(job)) for job in jobs[:PAGE]],
        has_more=len(jobs) > PAGE and filters.page + 1 < MAX_PAGES,
    )


def call_of(job: JobInfo) -> str:
    """The arguments of a job, as they look in code, cut if they are long."""
    parts = [
        *map(shown, job.args),
        *(f"{name}={shown(value)}" for name, value in job.kwargs.items()),
    ]
    return f"({', '.join(parts)})"


ACTIONS = {"rerun": "started over", "cancel": "cancelled"}
"""What a user can do with jobs, and the word for what was done."""


class Done(NamedTuple):
    """What became of an action."""

    changed: int
    unchanged: int


def act(action: str, queue: Queue, ids: list[str], actor: str) -> Done:
    """Rerun or cancel jobs. Jobs that are gone, or in a state where this is not possible, are left
    alone."""
    known = [check_id(id) for id in ids]

    async def change() -> int:
        store = await queue._context.store()
        found = await located(store, [queue.qname], known)
        records = [record for records in found.values() for record in records]
        return await jobs.change(store, action, records, actor)

    changed = run(change())
    return Done(changed, len(ids) - changed)
