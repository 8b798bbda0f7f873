"""A server in a process of its own, which tests kill and start again on the same port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.ports import free_port

PROGRAM = Path(__file__).with_name("serve.py")


class ServerProcess:
    """A server in a process of its own, which always listens on the same port."""

    def __init__(self, store: str, *, beat_ms: int = 5_000, deaf_ms: int = 15_000) -> None:
        self.port = free_port()
        self.url = f"grpc://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, str(PROGRAM), store),
            *(str(self.port), str(beat_ms), str(deaf_ms)),
        ]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the server did not start"

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def restart(self) -> None:
        """kill -9, and start it again."""
        self.kill()
        self.start()


@contextmanager
def server_process(
    store: str, *, beat_ms: int = 5_000, deaf_ms: int = 15_000
) -> Iterator[ServerProcess]:
    """A running server, killed at the end."""
    server = ServerProcess(store, beat_ms=beat_ms, deaf_ms=deaf_ms)
    server.start()
    try:
        yield server
    finally:
        server.kill()
