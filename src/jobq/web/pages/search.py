"""The search box: a job by its id, or queues by a part of their name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.web.data.search import search
from jobq.web.render import render, url, view_of

_MAX_TEXT = 256
"""Characters of a search: an id has no more."""


async def page(request: Request) -> Response:
    """What was found. A single hit is opened at once."""
    text = request.query_params.get("q", "")[:_MAX_TEXT]
    view = view_of(request)
    found = await search(view, text, tenant=request.query_params.get("tenant") or None)
    if len(found.jobs) == 1 and not found.queues:
        job = found.jobs[0]
        address = url(request, "job", tenant=job.tenant, queue=job.queue, id=job.id)
        return RedirectResponse(address, status_code=303)
    if len(found.queues) == 1 and not found.jobs:
        queue = found.queues[0]
        address = url(request, "queue", tenant=queue.tenant, queue=queue.queue)
        return RedirectResponse(address, status_code=303)
    return render(request, "search.html", text=text, found=found, now_ms=view.now_ms())
