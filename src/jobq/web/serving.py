"""Serves the dashboard and probes over HTTP with uvicorn, for `jq-ctl web` and jq-server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from jobq.console.probes import Answer, Route
from jobq.errors import ConfigError
from jobq.web.site import Dashboard

try:
    import uvicorn
except ImportError as e:
    raise ConfigError("the dashboard needs uvicorn: pip install 'jobq[web]'") from e

_GRACE_S = 3
"""Seconds that requests have to end when the server stops. Live streams end at once."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the program it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch none."""
        yield


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. ConfigError if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as e:
        raise ConfigError(f"cannot listen on port {port} of {host}: {e}") from e


@contextlib.asynccontextmanager
async def served(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    """Serve an ASGI application while the context is open. Closes the socket."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


def address_of(listener: socket.socket, host: str) -> str:
    """Where a socket listens, as a URL."""
    port = listener.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


# The HTTP port of a server with a dashboard: /ui, and the probes beside it.

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
