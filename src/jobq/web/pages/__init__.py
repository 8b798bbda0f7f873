"""The pages: one file each, with `async def page(request) -> Response` and one template.

Names of queues, jobs and tenants are in the query of an address, never in its path: they may
contain any character, and browsers and proxies change paths (`..`, `//`, `%2F`). Build addresses
with `url(name, tenant=…, queue=…)` of `jobq.web.render`.

A page gets its data from `jobq.web.data` with `view_of(request)`, and returns
`render(request, "name.html", …)`. With `part=NAME` in its query, a page returns only that part, for
htmx: `templates/partials/…`.
"""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A page: its name in `url(…)`, its path below the mount, and the call whose scope it needs."""

    name: str
    path: str
    call: str


PAGES: tuple[Page, ...] = (
    Page("overview", "/", "stats"),
    Page("queue", "/queue", "stats"),  # tenant, queue
    Page("jobs", "/jobs", "find"),  # tenant, queue, and the fields of data.jobs.JobQuery; cursor
    Page("job", "/job", "find"),  # tenant, queue, id
    Page("search", "/search", "find"),  # q: an id of a job, or part of a queue's name; tenant
    Page("dead", "/dead", "find"),  # tenant, queue, name
    Page("schedules", "/schedules", "list_schedules"),  # tenant, queue
    Page("flows", "/flows", "find"),  # tenant, queue
    Page("flow", "/flow", "find"),  # tenant, queue, id
    Page("workers", "/workers", "workers"),  # tenant, queue
    Page("worker", "/worker", "workers"),  # name
    Page("tenants", "/tenants", "queues"),
)
"""Every page. `jobq.web.pages.NAME` has its handler, `page`."""
