"""The jobs of all queues in Django's admin: a list with filters, and a page per job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from jobq.api.info import JobInfo
from jobq.client.portal import run
from jobq.core.records.states import State
from jobq.core.values.checks import as_actor, check_id, shown
from jobq.django.models import Job
from jobq.django.queue import Queue
from jobq.django.workers import queues_to_work_on
from jobq.errors import InvalidJob, JobNotFound, JobqError
from jobq.operations import jobs
from jobq.operations.listing import located

# What the pages of the admin show: one page of a queue's jobs, and one job.

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


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """Shows jobs to users with `jobq.view_job`. `jobq.change_job` allows to rerun and cancel
    them."""

    def get_urls(self) -> list[Any]:
        """The list, and the page of one job. They replace the pages of a model with a table."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="jobq_job_changelist"),
            path("job/", view(self.job_view), name="jobq_job_change"),
        ]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Jobs are enqueued by code."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Retention removes jobs."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list of jobs. A POST reruns or cancels the jobs that are ticked."""
        self._check_may_view(request)
        if request.method == "POST":
            self._act(request, request.POST.getlist("id"))
            return HttpResponseRedirect(request.get_full_path())
        filters = Filters.of(request.GET.dict())
        page = None
        try:
            page = read_page(filters)
        except JobqError as error:
            messages.error(request, f"The jobs cannot be read: {error}")
        return self._page(
            request,
            "change_list",
            title="Jobs",
            filters=filters,
            page=page,
            states=list(State),
            next=_query(filters._replace(page=filters.page + 1)),
            previous=_query(filters._replace(page=filters.page - 1)) if filters.page else None,
        )

    def job_view(self, request: HttpRequest) -> HttpResponse:
        """One job. A POST reruns or cancels it."""
        self._check_may_view(request)
        id, queue = request.GET.get("id", ""), known_queues().get(request.GET.get("queue", ""))
        if queue is None:
            raise Http404("no such queue")
        if request.method == "POST":
            self._act(request, [id])
            return HttpResponseRedirect(request.get_full_path())
        try:
            job = queue.sync.job(id)
            info, lines = job.info(), job.logs(-LOG_LINES)
        except (JobNotFound, InvalidJob) as error:
            raise Http404(str(error)) from error
        except JobqError as error:
            messages.error(request, f"The job cannot be read: {error}")
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:jobq_job_changelist"))
        return self._page(
            request,
            "change_form",
            title=f"Job {id}",
            job=info,
            call=call_of(info),
            lines=lines,
            queue=request.GET["queue"],
        )

    def _page(self, request: HttpRequest, name: str, **context: Any) -> HttpResponse:
        context |= {
            **self.admin_site.each_context(request),
            "title": context["title"],
            "opts": self.opts,
            "may_change": self.has_change_permission(request),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/jobq/job/{name}.html", context)

    def _check_may_view(self, request: HttpRequest) -> None:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied

    def _act(self, request: HttpRequest, ids: list[str]) -> None:
        if not self.has_change_permission(request):
            raise PermissionDenied
        action = request.POST.get("action", "")
        queue = known_queues().get(request.POST.get("queue", ""))
        if action not in ACTIONS or queue is None or not ids:
            messages.warning(request, "Nothing was done: choose jobs and an action.")
            return
        try:
            done = act(action, queue, ids[:PAGE], as_actor(f"admin:{request.user}"))
        except JobqError as error:
            messages.error(request, f"The store did not take the command: {error}")
            return
        if done.changed:
            messages.success(request, f"Jobs {ACTIONS[action]}: {done.changed}.")
        if done.unchanged:
            messages.warning(request, f"Jobs left alone, because of their state: {done.unchanged}.")


def _query(filters: Filters) -> str:
    return urlencode({name: value for name, value in filters._asdict().items() if value})
