"""What the tests of jq-worker --processes share: an app in a folder, output, and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests import waiting
from tests.cli.kit import Ctl

APP = """
import os
from pathlib import Path
from jobq import Queue, current_job

shop = Queue("shop")
kept = []

@shop.task
async def version() -> int:
    return 1

@shop.task
def leak(mib: int) -> int:
    kept.append(b"x" * (mib * 2**20))
    return os.getpid()

@shop.task
def who() -> int:
    return os.getpid()

@shop.task(max_stalls=0)
def crash() -> None:
    os._exit(7)
"""


class Output:
    """The lines that a process prints. They are read as they come: a full pipe would block it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(iter(self._process.stdout.readline, ""))

    def has(self, text: str, times: int = 1) -> bool:
        return sum(text in line for line in list(self.lines)) >= times

    def wait_for(self, text: str, times: int = 1) -> None:
        waiting.wait_until(lambda: self.has(text, times), f"{text!r} in {''.join(self.lines)}")

    def end(self) -> tuple[int, str]:
        """The exit code and everything that was printed, once all writers have ended."""
        code = self._process.wait(waiting.PATIENCE_S)
        self._thread.join(waiting.PATIENCE_S)
        assert not self._thread.is_alive(), "a process still holds the output open"
        return code, "".join(self.lines)


def workers(ctl: Ctl) -> dict[str, dict[str, Any]]:
    """The live workers of the store by name."""
    return {worker["name"]: worker for worker in ctl.json("worker", "list")}


def wait_for_workers(ctl: Ctl, *names: str) -> dict[str, int]:
    """Wait until exactly these workers are listed. Returns their pids."""
    path = Path(ctl.url.removeprefix("sqlite:///"))
    found: dict[str, dict[str, Any]] = {}

    def there() -> bool:
        nonlocal found
        found = workers(ctl) if path.exists() else {}
        return set(found) == set(names)

    waiting.wait_until(there, f"the workers {names}")
    return {name: worker["pid"] for name, worker in found.items()}


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which waits for its parent to read its code, does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def stop(process: subprocess.Popen[str], output: Output) -> str:
    """Stop a supervisor in an orderly way. Returns what it has printed."""
    process.send_signal(signal.SIGTERM)
    code, text = output.end()
    assert code == 0, text
    assert "Traceback" not in text
    return text
