"""Output that is only printed to a terminal: progress."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.cli.kit import Ctl


def on_a_terminal(url: str, *args: str) -> tuple[str, str]:
    """Run a command with stdout as a pipe and stderr as a terminal. Returns both outputs."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "jobq.cli.ctl", "--url", url, *args]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # on Linux, the last writer has closed the terminal
        pass
    finally:
        os.close(ours)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown.decode()
    return stdout.decode(), shown.decode()


def test_progress_is_shown_on_the_terminal_and_never_in_the_output(
    ctl: Ctl, url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.jsonl").write_text("[1, 2]\n" * 3000)
    answer, shown = on_a_terminal(url, "job", "submit", "add", "--lines", f"{tmp_path}/jobs.jsonl")
    assert answer == "3,000 jobs accepted in default\n"
    assert "submitting" in shown
    answer, shown = on_a_terminal(url, "queue", "clear", "default", "--yes", "-o", "json")
    assert '"cleared": 3000' in answer
    assert "clearing" in shown


def test_without_a_terminal_there_is_no_progress(ctl: Ctl) -> None:
    result = ctl("job", "submit", "add", "--lines", "-", input="[1, 2]\n" * 3000)
    assert result.stderr == ""
