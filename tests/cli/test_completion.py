"""Shell completion: click's scripts for bash, zsh and fish, and what they complete."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = {"jq-ctl": "jobq.cli.ctl", "jq-worker": "jobq.cli.worker"}
BASH = shutil.which("bash")


def code(program: str) -> str:
    """What the installed program does."""
    return f"import sys, {PROGRAMS[program]} as m; sys.argv[0] = '{program}'; m.main()"


def run(program: str, **variables: str) -> str:
    """Run a program as its completion script does."""
    done = subprocess.run(
        [sys.executable, "-c", code(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def variable(program: str) -> str:
    return f"_{program.upper().replace('-', '_')}_COMPLETE"


def completed(program: str, line: str) -> list[str]:
    """The words that complete a line, as bash asks for them."""
    words = line.split(" ")
    asked = {variable(program): "bash_complete", "COMP_WORDS": line}
    reply = run(program, **asked, COMP_CWORD=str(len(words) - 1))
    return [found.partition(",")[2] for found in reply.splitlines()]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(program: str, shell: str) -> None:
    if shell == "bash" and BASH is None:
        pytest.skip("bash is not installed, and click asks it for its version")
    script = run(program, **{variable(program): f"{shell}_source"})
    assert variable(program) in script
    assert program in script


def test_commands_options_and_choices_are_completed() -> None:
    assert {"job", "queue", "top", "worker"} <= set(completed("jq-ctl", "jq-ctl "))
    assert completed("jq-ctl", "jq-ctl queue cr") == ["create"]
    assert "--server-addr" in completed("jq-ctl", "jq-ctl job list --s")
    assert completed("jq-ctl", "jq-ctl job list --status d") == ["done"]
    assert completed("jq-worker", "jq-worker --log-format j") == ["json"]


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_a_command_after_its_script_was_read(tmp_path: Path) -> None:
    program = tmp_path / "jq-ctl"
    line = f'exec {shlex.quote(sys.executable)} -c "{code("jq-ctl")}" "$@"'
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    (tmp_path / "script").write_text(run("jq-ctl", **{variable("jq-ctl"): "bash_source"}))
    ask = (
        f"source {shlex.quote(str(tmp_path))}/script; COMP_WORDS=(jq-ctl queue cre); COMP_CWORD=2; "
        '_jq_ctl_completion jq-ctl; echo "${COMPREPLY[@]}"'
    )
    assert BASH is not None
    done = subprocess.run(
        [BASH, "-c", ask],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["create"], done.stderr
