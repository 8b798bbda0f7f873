"""The page of a queue: counts, charts, limits, holds and the newest events."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.core.states import SHOWN
from jobq.web.data.queues import queue
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """One queue."""
    tenant = request.query_params.get("tenant", "")
    name = request.query_params.get("queue", "")
    seen = await queue(view_of(request), tenant, name)
    return render(request, "queue.html", seen=seen, states=[state.value for state in SHOWN])
