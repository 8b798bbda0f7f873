"""Serves the dashboard over HTTP with uvicorn, for `jq-ctl web` and jq-server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

from jobq.errors import ConfigError

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
