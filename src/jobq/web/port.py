"""The HTTP port of a server with a dashboard: /ui, and the probes beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from jobq.console.probes import Answer, Route
from jobq.web.serving import listening, served
from jobq.web.site import Dashboard

PREFIX = "/ui"


@contextlib.asynccontextmanager
async def web_port(
    dashboard: Dashboard, routes: Mapping[str, Route], address: tuple[str, int]
) -> AsyncIterator[int]:
    """Serve the dashboard and these routes while the context is open. Yields the port."""
    listener = listening(*address)
    async with served(_Port(dashboard, routes), listener):
        yield listener.getsockname()[1]


class _Port:
    """An ASGI application: the dashboard under /ui, and routes that are plain functions."""

    def __init__(self, dashboard: Dashboard, routes: Mapping[str, Route]) -> None:
        self._dashboard = dashboard
        self._routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request."""
        path = scope.get("path", "")
        if scope["type"] == "http" and path.startswith(f"{PREFIX}/"):
            await self._dashboard({**scope, "root_path": PREFIX}, receive, send)
        elif scope["type"] == "http":
            await _send(send, await self._answer(path))

    async def _answer(self, path: str) -> Answer:
        if path in ("/", PREFIX):
            return Answer(307, b"")
        route = self._routes.get(path)
        if route is None:
            known = ", ".join((f"{PREFIX}/", *self._routes))
            return Answer(404, f"not found; this port serves {known}\n".encode())
        # In a thread: the routes wait for this event loop.
        return await asyncio.to_thread(route)


async def _send(send: Any, answer: Answer) -> None:
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if answer.status == 307:
        headers.append((b"location", f"{PREFIX}/".encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
