"""A small HTTP server for monitoring: /metrics, /healthz and /readyz of a process.

The server runs in threads of its own, so it replies even if the process is busy. Routes are plain
functions, called in those threads.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from jobq.errors import ConfigError

log = logging.getLogger("jobq")

_REQUEST_S = 5.0
"""Seconds that a client has to send its request. Probes are short; a slow client must not keep a
thread."""
BLOCKED_S = 60.0
"""Seconds that an event loop may be blocked before the process counts as dead. A handler that
blocks it for some seconds is a mistake, but no reason to lose all running jobs."""


class Answer(NamedTuple):
    """The reply of a route."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], Answer]


def answer(problem: str | None) -> Answer:
    """200 `ok` if there is no problem, else 503 with the problem in words."""
    return Answer(200, b"ok\n") if problem is None else Answer(503, f"{problem}\n".encode())


class Probes:
    """Serves these routes, path by path, on each of the ports. Use it as a context manager.

    Port 0 is any free port: `addresses` tells which. A port that is taken is a ConfigError, or a
    warning in the log if it is one of `optional`.
    """

    def __init__(
        self,
        ports: Mapping[int, Mapping[str, Route]],
        *,
        host: str = "0.0.0.0",
        optional: Collection[int] = (),
    ) -> None:
        self._servers: list[_Server] = []
        for port, routes in ports.items():
            try:
                self._servers.append(_Server(host, port, routes))
            except (OSError, OverflowError) as error:
                message = f"cannot serve {', '.join(routes)} on port {port} of {host}: {error}"
                if port in optional:
                    log.warning("%s", message)
                    continue
                self.close()
                raise ConfigError(message) from error

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The address of each port, in the order given."""
        return [server.server_address[:2] for server in self._servers]  # type: ignore[misc]

    def __enter__(self) -> Probes:
        for server in self._servers:
            threading.Thread(
                target=server.serve_forever,
                kwargs={"poll_interval": 0.1},  # seconds that `close` may take
                name="jobq probes",
                daemon=True,
            ).start()
            server.serving = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and free the ports."""
        for server in self._servers:
            if server.serving:
                server.shutdown()
            server.server_close()


class Pulse:
    """Tells how long an event loop has been blocked, without a timer.

    Each look sends the loop a callback. The next look sees whether it was called, and if not, since
    when it waits. So it takes two looks to notice.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sent: float | None = None

    def blocked_s(self) -> float:
        """Seconds that the loop has been blocked, as far as is known. Infinite if it is closed."""
        if self._sent is not None:
            return time.monotonic() - self._sent
        self._sent = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._received)
        except RuntimeError:
            return float("inf")
        return 0.0

    def _received(self) -> None:
        self._sent = None


def healthz(pulse: Pulse) -> Route:
    """The route that fails if an event loop is closed, or blocked for more than a minute."""

    def route() -> Answer:
        blocked_s = pulse.blocked_s()
        if blocked_s <= BLOCKED_S:
            return answer(None)
        if blocked_s == float("inf"):
            return answer("the event loop is closed")
        return answer(f"the event loop has been blocked for {blocked_s:.0f} s")

    return route


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    serving = False

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind, without the lookup of the host's name that the base class makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at DEBUG: a client that goes away is no concern of an operator."""
        log.debug("a probe from %s failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version = "jobq"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path)
        if route is None:
            known = ", ".join(self.server.routes)
            self._send(Answer(404, f"not found; this port serves {known}\n".encode()))
            return
        try:
            self._send(route())
        except OSError:
            raise
        except Exception:
            log.exception("%s failed", path)
            self._send(Answer(500, f"{path} failed: see the log\n".encode()))

    do_HEAD = do_GET

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a probe comes every few seconds."""
