"""No arrangement of named paths lets a job read or write anything else, in any of its lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.executors.sandbox.channel import ROOT
from tests.executors.sandbox.lives import ARRANGEMENTS, Arrangement, cases

pytestmark = pytest.mark.usefixtures("enforced")

_OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private"]


@pytest.fixture(scope="session")
def may_mount() -> bool:
    """Whether this user may mount folders, in a namespace of its own."""
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([*_OWN_MOUNTS, "true"], timeout=60).returncode == 0
    except OSError:  # there is no such program
        return False


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda each: each.name)
def test_nothing_is_ever_read_or_written_that_is_not_named(
    arrangement: Arrangement, may_mount: bool
) -> None:
    if arrangement.mounts and not may_mount:
        pytest.skip("this user may not mount folders")
    done = subprocess.run(
        [
            *(_OWN_MOUNTS if may_mount else ()),
            *(sys.executable, "-m", "tests.executors.sandbox.lives", arrangement.name),
        ],
        cwd=ROOT,
        capture_output=True,
        timeout=230,
    )
    assert done.returncode == 0, done.stderr.decode()
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(outcomes) == len(list(cases(arrangement)))
    assert [each for each in outcomes if each["read"] or each["changed"]] == []
    for each in outcomes:
        writable = "write" in each["case"]["options"]
        expected = arrangement.refused or (arrangement.refused_if_writable and writable)
        assert bool(each["refused"]) == expected, each
        words = "the folder of one process" if "process" in arrangement.name else "could replace it"
        assert not expected or words in each["refused"]


def test_a_path_is_looked_up_once_when_the_worker_starts() -> None:
    command = [sys.executable, "-m", "tests.executors.sandbox.lives", "replaced by others"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=200, check=True)
    assert json.loads(done.stdout) == {
        "while held": ["in in/file. "],
        "after a restart": ["in outside/file. "],
    }


def test_the_family_is_large() -> None:
    assert sum(len(list(cases(arrangement))) for arrangement in ARRANGEMENTS) > 400
