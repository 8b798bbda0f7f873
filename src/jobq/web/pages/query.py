"""Which tenant and queue the address of a page names."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request


def given(request: Request, name: str) -> str | None:
    """A value of the query. None if it is missing or empty."""
    return request.query_params.get(name) or None


def tenant_and_queue(request: Request) -> dict[str, Any]:
    """The tenant and the queue, as arguments of functions of `jobq.web.data`."""
    return {"tenant": given(request, "tenant"), "queue": given(request, "queue")}
