"""Runs the command lines of a page in a folder, as a reader would type them."""

from __future__ import annotations

import os
import re
import socket
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli.ctl import main as jq_ctl
from tests import waiting
from tests.docs.blocks import Block, Shown
from tests.docs.forked_worker import start

HOST = "app-1"
"""The name of the machine on the pages."""


class Walk:
    """A reader in a folder: what is exported, and the workers that were started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.workers: list[tuple[ForkServerProcess, Path]] = []
        monkeypatch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("JQ_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("JQ_URL", "sqlite:///jobs.db")
        monkeypatch.setenv("JOB_ID", "a-1")

    def run(self, block: Block) -> None:
        """Run the lines of a block. Its workers run side by side, and stop with the walk."""
        lines = list(block.shown())
        for shown in lines:
            said = "".join(self._run(words, shown) for words in shown.commands())
            _compare(shown, said)
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until all workers claim jobs."""
        for _, output in self.workers:
            waiting.wait_until(partial(_claims_jobs, output), "a worker that claims jobs")

    def stop(self) -> None:
        """Stop the workers. Each must end in order."""
        for process, _ in self.workers:
            process.terminate()
        for process, output in self.workers:
            process.join(waiting.PATIENCE_S)
            text = output.read_text()
            assert process.exitcode == 0, text
            assert "Traceback" not in text, text

    def kill(self) -> None:
        """Leave nothing behind, also after a failed test."""
        for process, _ in self.workers:
            process.kill()
            process.join(waiting.PATIENCE_S)
            process.close()

    def _run(self, words: list[str], shown: Shown) -> str:
        program, *arguments = (os.path.expandvars(word) for word in words)
        if program == "export":
            name, _, value = arguments[0].partition("=")
            self.monkeypatch.setenv(name, value)
            return ""
        if program == "cat":  # a file that the page shows
            (self.folder / arguments[0]).write_text(shown.output)
            return shown.output
        if program == "jq-worker":
            self._start(arguments)
            return ""
        assert program == "jq-ctl", f"a walk cannot run {program}: state a reason above the block"
        self.wait_for_workers()
        result = CliRunner().invoke(jq_ctl, arguments)
        assert result.exit_code == 0, f"{shown.line}\n{result.output}"
        return result.output.replace(socket.gethostname(), HOST)

    def _start(self, arguments: list[str]) -> None:
        output = self.folder / f"worker-{len(self.workers)}.log"
        output.touch()
        self.workers.append((start(arguments, self.folder, output), output))


def _claims_jobs(output: Path) -> bool:
    return " works on " in output.read_text()


def _compare(shown: Shown, said: str) -> None:
    """Every line that the page shows was printed. Numbers and times may differ."""
    printed = {_plain(line) for line in said.splitlines()}
    missing = [line for line in shown.output.splitlines() if _plain(line) not in printed]
    assert missing == [], f"{shown.line}\nprinted\n{said}"


def _plain(line: str) -> str:
    return re.sub(r"\d[\d.]*\w*", "0", " ".join(line.split()))
