"""Schedules: their next times; run now, pause, resume and remove."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.schedules import schedules
from jobq.web.pages.query import tenant_and_queue
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /schedules?tenant=&queue="""
    view, where = view_of(request), tenant_and_queue(request)
    found = await schedules(view, **where)
    return render(request, "schedules.html", found=found, now_ms=view.now_ms(), **where)
