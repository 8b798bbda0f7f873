"""Sends attempts to the process of `worker.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from jobq.core.policies import Permissions
from tests.executors.sandbox.attempts import Target
from tests.executors.sandbox.worker import Outcome, Request

ROOT = Path(__file__).parents[3]


@dataclass
class Channel:
    """The worker's process of one user."""

    process: subprocess.Popen[str]
    user: str
    target: Target = field(init=False)

    def __post_init__(self) -> None:
        self.target = Target(**json.loads(self._line()))

    def ask(self, request: Request) -> Outcome:
        """Let a child of the worker try."""
        assert self.process.stdin is not None
        print(msgspec.json.encode(request).decode(), file=self.process.stdin, flush=True)
        return msgspec.json.decode(self._line(), type=Outcome)

    def explanation(self, attempt: str, permissions: Permissions | None = None) -> str:
        """What the job's error says about an attempt that is refused."""
        outcome = self.ask(Request(attempt, permissions or Permissions()))
        assert outcome.kind == "refused", outcome
        return outcome.explanation

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker's process has ended"
        return line


@contextmanager
def open_channel(user: str) -> Iterator[Channel]:
    """Start the worker's process as this user."""
    command = [sys.executable, "-m", "tests.executors.sandbox.worker", user]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Channel(process, user)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
