"""The processes of a run: workers, producers and the reader of the event log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.ledger.places import Place
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
STOP_S = 30
"""Seconds that a worker may take to stop after SIGTERM. It drains for 5."""
_names = count()


class Fleet:
    """Starts processes, and starts another one for each that a fault ends."""

    def __init__(
        self, place: Place, folder: Path, *, jobs: int, executor: str, variables: dict[str, str]
    ) -> None:
        self._place, self._folder = place, folder
        self._jobs, self._executor = jobs, executor
        self._variables = {
            **os.environ,
            "LEDGER_FOLDER": str(folder),
            "LEDGER_EXECUTOR": executor,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            **variables,
        }
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.producers: dict[str, subprocess.Popen[bytes]] = {}
        self.reader: subprocess.Popen[bytes] | None = None
        self._producers = 0

    def start(self, workers: int, producers: int) -> None:
        """Start all processes. The reader is first, so that the log keeps everything for it."""
        self._producers = producers
        self.start_reader()
        wait_until(
            lambda: (self._folder / "progress.json").exists() or self._ended_early(),
            f"the reader to begin (see {self._folder}/reader.txt)",
            seconds=60,
        )
        for _ in range(workers):
            self.start_worker()
        for n in range(producers):
            self.start_producer(f"p{n}")

    def _ended_early(self) -> bool:
        """Raises if the reader has ended."""
        if self.reader is not None and self.reader.poll() is not None:
            raise RuntimeError((self._folder / "reader.txt").read_text()[-2000:])
        return False

    def start_worker(self) -> None:
        """Start a worker under a new name."""
        name = f"w{next(_names)}"
        self.workers[name] = self._python("worker", "tests.faults.ledger.tasks", name)

    def start_producer(self, name: str) -> None:
        """Start a producer, which continues what others of its name have begun."""
        self.producers[name] = self._python(
            "producer", "tests.faults.ledger.producer", name,
            *(name[1:], str(self._jobs), str(self._producers), self._executor),
        )  # fmt: skip

    def start_reader(self, back_ms: int = 0) -> None:
        """Start the reader. It goes back by so many milliseconds."""
        self.reader = self._python("reader", "tests.faults.ledger.reader", back_ms=back_ms)

    def finish(self, back_ms: int) -> None:
        """Read what is left of the log, and all records."""
        process = self._python("reader", "tests.faults.ledger.reader", "finish", back_ms=back_ms)
        if process.wait(3600) != 0:
            raise RuntimeError((self._folder / "reader.txt").read_text()[-2000:])

    @property
    def producing(self) -> list[str]:
        """The producers that are not done yet."""
        return [name for name, process in self.producers.items() if process.poll() is None]

    def check(self) -> None:
        """Raise if a process ended although no fault has ended it."""
        self._ended_early()
        for kind, processes in (("worker", self.workers), ("producer", self.producers)):
            for name, process in processes.items():
                if process.poll() not in (None, 0) or (kind == "worker" and process.poll() == 0):
                    raise RuntimeError(
                        f"{kind} {name} ended by itself with {process.returncode}: see "
                        f"{self._folder}/{kind}.txt"
                    )

    def kill_all(self) -> list[str]:
        """Freeze every process and then kill it, as a power cut does. Returns the producers."""
        producing = self.producing
        everyone = [*self.workers.values(), *self.producers.values()]
        everyone += [self.reader] if self.reader is not None else []
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for process in everyone:
                if process.poll() is None:
                    process.send_signal(sig)
        for process in everyone:
            process.wait(STOP_S)
        self.reader = None
        return producing

    def stop_reader(self) -> None:
        """Kill the reader."""
        if self.reader is not None:
            self.reader.kill()
            self.reader.wait(STOP_S)
            self.reader = None

    def stop(self) -> None:
        """Stop all processes: workers by SIGTERM, and by SIGKILL if that takes too long."""
        for process in self.workers.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.workers.values():
            end(process)
        for process in self.producers.values():
            process.kill()
            process.wait(STOP_S)
        self.stop_reader()

    def progress(self) -> dict[str, Any]:
        """What the reader has seen last."""
        found: dict[str, Any] = json.loads((self._folder / "progress.json").read_text())
        return found

    def _python(
        self, kind: str, module: str, *arguments: str, back_ms: int = 0
    ) -> subprocess.Popen[bytes]:
        url = self._place.reader_url if kind == "reader" else self._place.url
        variables = {
            **self._variables,
            **self._place.client_variables,
            "LEDGER_URL": url,
            "LEDGER_BACK_MS": str(back_ms),
        }
        with (self._folder / f"{kind}.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT,
            )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process that was asked to stop has ended, or kill it."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
