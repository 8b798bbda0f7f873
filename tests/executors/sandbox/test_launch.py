"""Commands with permissions: the launcher restricts itself and becomes the command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobq import Permissions
from jobq.executors.sandbox import Workspace, environment
from jobq.executors.sandbox.launch import NOT_FOUND, NOT_STARTED, Order, command

pytestmark = pytest.mark.usefixtures("enforced")


@contextmanager
def workspace(permissions: Permissions) -> Iterator[Workspace]:
    made = Workspace.open(permissions)
    try:
        yield made
    finally:
        made.close()


def run(
    permissions: Permissions,
    *arguments: str,
    variables: dict[str, str] | None = None,
    keep: tuple[int, ...] = (),
    **present: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command as an executor does."""
    with workspace(permissions) as made:
        return subprocess.run(
            command(Order(permissions, made, variables or {}, keep), arguments),
            env=environment(permissions, {**os.environ, **present}),
            pass_fds=keep,
            capture_output=True,
            text=True,
            timeout=60,
        )


def test_a_command_runs_and_may_read_what_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("content")
    done = run(Permissions(read=[str(tmp_path)]), "/bin/cat", str(tmp_path / "in"))
    assert (done.returncode, done.stdout) == (0, "content")


def test_a_command_cannot_read_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("content")
    monkeypatch.chdir(tmp_path)
    done = run(Permissions(), "/bin/cat", "in")
    assert (done.returncode, done.stdout) == (1, "")


def test_the_launcher_prints_nothing() -> None:
    assert run(Permissions(), "/bin/true").stderr == ""


def test_a_command_cannot_read_what_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("content")
    done = run(Permissions(), "/bin/cat", str(tmp_path / "in"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Permission denied" in done.stderr


def test_a_command_cannot_start_other_programs() -> None:
    done = run(Permissions(processes=2), "/bin/sh", "-c", "/bin/cat /dev/null && echo ran")
    assert "ran" not in done.stdout
    assert "Permission denied" in done.stderr


def test_a_command_starts_the_programs_that_are_named() -> None:
    permissions = Permissions(run=["/bin/cat"], processes=2)
    done = run(permissions, "/bin/sh", "-c", "/bin/cat /dev/null && echo ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")


def test_a_script_may_use_the_interpreter_that_its_first_line_names(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho ran $1\n")
    script.chmod(0o755)
    done = run(Permissions(), str(script), "once")
    assert (done.returncode, done.stdout) == (0, "ran once\n")


def test_a_command_has_no_variables_but_those_that_are_allowed() -> None:
    """Not in its memory either: /proc/self/environ shows what a process was started with."""
    permissions = Permissions(env=["NAMED"], read=["/proc"])
    done = run(
        permissions,
        "/bin/cat",
        "/proc/self/environ",
        variables={"JOB": "7"},
        NAMED="yes",
        SECRET="no",
        PYTHONUNBUFFERED="1",
    )
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert found.pop("HOME") == found.pop("TMPDIR")
    assert {name: found[name] for name in ("NAMED", "JOB")} == {"NAMED": "yes", "JOB": "7"}
    left = {name for name in found if not name.startswith("LC_")} - {"LANG", "LANGUAGE", "TZ"}
    assert left == {"NAMED", "JOB", "PATH"}


def test_a_command_keeps_the_descriptors_it_is_given() -> None:
    ours, theirs = os.pipe()
    done = run(Permissions(), "/bin/bash", "-c", f"echo result >&{theirs}", keep=(theirs,))
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert os.read(ours, 100) == b"result\n"
    os.close(ours)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["/nowhere/thumb"], NOT_FOUND, "there is no program /nowhere/thumb"),
        (["/etc"], NOT_FOUND, "there is no program /etc"),
    ],
)
def test_a_program_that_does_not_exist_is_named(
    arguments: list[str], code: int, words: str
) -> None:
    done = run(Permissions(), *arguments)
    assert done.returncode == code
    assert words in done.stderr


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    done = run(Permissions(), str(program))
    assert done.returncode == NOT_STARTED
    assert f"{program} cannot be started" in done.stderr


def test_a_workspace_leaves_nothing_behind() -> None:
    permissions = Permissions(processes=1)
    with workspace(permissions) as made:
        Path(made.folder, "left").write_text("x")
        os.mkdir(f"{made.folder}/folder")
    assert not os.path.exists(made.folder)
    assert not any(map(os.path.exists, made.cgroups))
