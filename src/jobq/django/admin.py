"""The jobs of all queues in Django's admin: a list with filters, and a page per job."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from jobq.core.checks import as_actor
from jobq.core.states import State
from jobq.django import job_pages
from jobq.django.job_pages import ACTIONS, Filters, known_queues, read_page
from jobq.django.models import Job
from jobq.errors import InvalidJob, JobNotFound, JobqError


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
            info, lines = job.info(), job.logs(-job_pages.LOG_LINES)
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
            call=job_pages.call_of(info),
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
            done = job_pages.act(
                action, queue, ids[: job_pages.PAGE], as_actor(f"admin:{request.user}")
            )
        except JobqError as error:
            messages.error(request, f"The store did not take the command: {error}")
            return
        if done.changed:
            messages.success(request, f"Jobs {ACTIONS[action]}: {done.changed}.")
        if done.unchanged:
            messages.warning(request, f"Jobs left alone, because of their state: {done.unchanged}.")


def _query(filters: Filters) -> str:
    return urlencode({name: value for name, value in filters._asdict().items() if value})
