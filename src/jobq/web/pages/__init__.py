"""The pages: a handler `NAME_page(request)` and a template each.

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
    """A page: its name in `url(…)`, and its path below the mount."""

    name: str
    path: str


PAGES: tuple[Page, ...] = (
    Page("overview", "/"),
    Page("queue", "/queue"),  # tenant, queue
    Page("jobs", "/jobs"),  # tenant, queue, and the fields of data.jobs.JobQuery; cursor
    Page("job", "/job"),  # tenant, queue, id
    Page("search", "/search"),  # q: an id of a job, or part of a queue's name; tenant
    Page("dead", "/dead"),  # tenant, queue, name
    Page("schedules", "/schedules"),  # tenant, queue
    Page("flows", "/flows"),  # tenant, queue
    Page("flow", "/flow"),  # tenant, queue, id
    Page("workers", "/workers"),  # tenant, queue
    Page("worker", "/worker"),  # name
    Page("tenants", "/tenants"),
)
"""Every page. `handlers.NAME_page` serves it."""
