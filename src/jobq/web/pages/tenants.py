"""Tenants and what they use."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.data.tenants import tenants
from jobq.web.render import render, view_of


async def page(request: Request) -> Response:
    """GET /tenants"""
    return render(request, "tenants.html", found=await tenants(view_of(request)))
