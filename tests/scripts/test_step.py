"""A step of a set-up: its progress, and what is left of it when it fails."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from scripts.step import main, run


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_that_succeeds_leaves_one_line_and_no_log(tmp_path: Path) -> None:
    out, log = io.StringIO(), tmp_path / "logs" / "core.log"
    assert run("Installing", log, python("print('much to say')"), out, every_s=5) == 0
    assert out.getvalue() == "Installing …\nInstalling: done in 0 s\n"
    assert not log.exists()


def test_a_step_that_fails_shows_its_last_lines_and_names_its_log(tmp_path: Path) -> None:
    out, log = io.StringIO(), tmp_path / "core.log"
    code = "import sys\nfor n in range(50): print('line', n)\nsys.exit('no network')"
    assert run("Installing", log, python(code), out, every_s=5) == 1
    said = out.getvalue()
    assert "line 49\n" in said
    assert "no network" in said
    assert "line 5\n" not in said
    assert f"The whole log is in {log}" in said
    assert "line 5\n" in log.read_text()


def test_a_step_in_a_terminal_shows_what_the_command_said_last(tmp_path: Path) -> None:
    out = Terminal()
    code = "import sys, time; print('Collecting apsw', flush=True); time.sleep(1)"
    assert run("Installing", tmp_path / "log", python(code), out, every_s=0.05) == 0
    said = out.getvalue()
    assert "Installing: 0 s · Collecting apsw" in said
    assert said.endswith("\r\033[KInstalling: done in 1 s\n")


def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    out = io.StringIO()
    assert run("Installing", tmp_path / "log", ["no-such-command"], out, every_s=5) == 127
    assert "no-such-command cannot be run" in out.getvalue()


def test_a_step_needs_a_title_a_log_and_a_command() -> None:
    assert main(["Installing"]) == 2
