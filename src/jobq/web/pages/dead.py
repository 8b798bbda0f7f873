"""Dead letters: failed jobs by cause, to rerun or purge them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.dead import dead_letters
from jobq.web.pages.query import given, tenant_and_queue
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /dead?tenant=&queue=&name="""
    view, where, name = view_of(request), tenant_and_queue(request), given(request, "name")
    found = await dead_letters(view, **where, name=name)
    return render(request, "dead.html", dead=found, now_ms=view.now_ms(), name=name or "", **where)
