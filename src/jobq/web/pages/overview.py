"""The first page: all queues, the last hour, and the newest failures."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.overview import overview
from jobq.web.render import render, view_of

_MINUTES = 5
"""Minutes that a rate is averaged over: one minute alone jumps, an hour hides what happens now."""


async def page(request: Request) -> Response:
    """The overview of one tenant, or of all that the caller may see."""
    tenant = request.query_params.get("tenant") or None
    after = request.query_params.get("after") or None
    seen = await overview(view_of(request), tenant=tenant, after=after)
    return render(
        request,
        "overview.html",
        seen=seen,
        tenant=tenant,
        done_rate=_rate(seen.completed_per_minute, seen.now_ms),
        bad_rate=_rate(seen.failed_per_minute, seen.now_ms),
    )


def _rate(minutes: Sequence[int], now_ms: int) -> float:
    """Jobs per minute over the last minutes. The current minute counts as long as it is old."""
    latest = minutes[-_MINUTES:]
    if not latest:
        return 0.0
    return sum(latest) / (len(latest) - 1 + max(1, now_ms % 60_000) / 60_000)
