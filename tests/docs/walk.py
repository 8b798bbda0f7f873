"""Runs the command lines of a page in a folder, as a reader would type them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli.ctl import main as jq_ctl
from tests.cli.fleet import Output
from tests.docs.blocks import Block, Shown


class Walk:
    """A reader in a folder: what is exported, and the workers that were started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.workers: list[tuple[subprocess.Popen[str], Output]] = []
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
            output.wait_for(" works on ")

    def stop(self) -> None:
        """Stop the workers. Each must end in order."""
        for process, _ in self.workers:
            process.send_signal(signal.SIGTERM)
        for _, output in self.workers:
            code, text = output.end()
            assert code == 0, text
            assert "Traceback" not in text, text
        self.workers.clear()

    def kill(self) -> None:
        """Leave nothing behind, also after a failed test."""
        for process, _ in self.workers:
            process.kill()
            process.communicate()

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
        return result.output

    def _start(self, arguments: list[str]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobq.cli.worker", *arguments],
            cwd=self.folder,
            env={**os.environ, "PWD": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.workers.append((process, Output(process)))


def _compare(shown: Shown, said: str) -> None:
    """Every line that the page shows was printed. Numbers and times may differ."""
    printed = {_plain(line) for line in said.splitlines()}
    missing = [line for line in shown.output.splitlines() if _plain(line) not in printed]
    assert missing == [], f"{shown.line}\nprinted\n{said}"


def _plain(line: str) -> str:
    return re.sub(r"\d[\d.]*\w*", "0", " ".join(line.split()))
