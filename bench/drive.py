"""Start a contender's program with a command, and read its reply."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from bench.places import Place
from bench.roster import ROOT, Contender


class Failed(Exception):
    """The program did not reply in time. The message contains the end of its stderr."""


class Unsupported(Exception):
    """The library has no such feature."""


class Program:
    """A running program of a contender."""

    def __init__(self, process: subprocess.Popen[str], what: str) -> None:
        self.process = process
        self._what = what
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        assert process.stdout
        assert process.stderr
        self._threads = [
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._keep_errors, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def answer(self, timeout: float) -> dict[str, Any]:
        """Wait for the next reply."""
        try:
            value = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise Failed(f"{self._what}: no reply in {timeout:.0f} s\n{self._tail()}") from None
        if value is None:
            self._threads[1].join(1)
            raise Failed(f"{self._what}: ended without a reply\n{self._tail()}")
        if "unsupported" in value:
            raise Unsupported(value["unsupported"])
        return value

    def kill(self) -> None:
        """Kill the program and the processes it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for thread in self._threads:
            thread.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            if line.startswith("BENCH "):
                self._answers.put(json.loads(line.removeprefix("BENCH ")))
        self._answers.put(None)

    def _keep_errors(self, pipe: IO[str]) -> None:
        for line in pipe:
            self._errors.append(line)
            del self._errors[:-15]

    def _tail(self) -> str:
        return "".join(self._errors)


@contextmanager
def started(
    contender: Contender, place: Place, command: dict[str, Any], *, loop: str
) -> Iterator[Program]:
    """Run the contender's program in its own process group until the block ends."""
    argument = json.dumps({**command, **contender.extra, "url": place.url, "loop": loop})
    process = subprocess.Popen(
        [*contender.program(), argument],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": contender.pythonpath(), "PYTHONWARNINGS": "ignore"},
    )
    program = Program(process, f"{contender.name} {command['do']}")
    try:
        yield program
    finally:
        program.kill()


def run(
    contender: Contender, place: Place, command: dict[str, Any], *, loop: str, timeout: float = 120
) -> dict[str, Any]:
    """Run a program to its end and return its reply. It has then closed all its files."""
    with started(contender, place, command, loop=loop) as program:
        answer = program.answer(timeout)
        try:
            program.process.wait(10)
        except subprocess.TimeoutExpired:
            pass  # the library does not exit by itself, but it has replied
        return answer
