"""A jq-server in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.waiting import PATIENCE_S, wait_until


class ServerProcess:
    """Starts jq-server on free ports. `url` is its address, and `log` what it has logged."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.log: list[str] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jobq.cli.server"),
                *("--grpc-port", "0", "--metrics-port", "0", "--health-port", "0"),
                *arguments,
            ],
            cwd=folder,
            env={**clean, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    @property
    def text(self) -> str:
        """Everything logged so far."""
        return "\n".join(self.log)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first log line that matches."""

        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text
            return re.search(pattern, self.text)

        found: re.Match[str] = wait_until(look, f"{pattern!r} in the log")
        return found

    def port(self, what: str = "listening on") -> int:
        """The port of gRPC, or of another path such as `/metrics`."""
        pattern = rf"{what}[^\n]* \S+:(\d+)$" if what.startswith("/") else rf"{what} \S+:(\d+)"
        return int(self.wait_for(f"(?m){pattern}")[1])

    @property
    def url(self) -> str:
        """The store that the server is."""
        return f"grpc://127.0.0.1:{self.port()}"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()
