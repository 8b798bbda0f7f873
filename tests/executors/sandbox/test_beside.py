"""A task may read the code, and not what lies beside it: stores, tokens, keys, configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, Permissions
from jobq.executors.sandbox import granted_files, secrets
from jobq.executors.sandbox.granted_files import Confined, Held
from tests.executors.sandbox.beside import KINDS, PUBLIC, Outcome, cases
from tests.executors.sandbox.channel import ROOT

pytestmark = pytest.mark.usefixtures("enforced")


@pytest.fixture(scope="module")
def outcomes(enforced: None) -> dict[tuple[str, str], Outcome]:
    """What a job could read, by kind of private file and place."""
    command = [sys.executable, "-m", "tests.executors.sandbox.beside"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    found = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    return {(each.kind, each.place): each for each in found}


@pytest.mark.parametrize(("kind", "place"), list(cases()))
def test_a_private_file_is_read_only_by_a_task_that_names_it(
    outcomes: dict[tuple[str, str], Outcome], kind: str, place: str
) -> None:
    found = outcomes[kind, place]
    named = os.path.join(place, "jobs" if kind.startswith("store") else KINDS[kind][0])
    assert found.readable == sorted(PUBLIC), "exactly the public files"
    assert (found.listed, found.later, found.by_name) == (True, False, True)
    assert all("task t: read= names " in said and named in said for said in found.refused), found


def test_a_folder_with_too_many_entries_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        (tmp_path / f"{n}.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(p for p in sys.path if "python3" in p)])
    monkeypatch.setattr(granted_files, "MAX_ENTRIES", 3)
    with pytest.raises(ConfigError, match=rf"{tmp_path} is on sys.path and has too many entries"):
        Held([Confined("task t", Permissions())])


@pytest.mark.parametrize("name", ["", "package"])
def test_a_task_must_not_write_where_code_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "package").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / name), *sys.path])
    with pytest.raises(ConfigError, match="the worker imports code from"):
        Held([Confined("task t", Permissions(write=[str(tmp_path)]))])


@pytest.mark.parametrize("option", ["read", "write"])
def test_the_temporary_folders_of_other_jobs_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    named: dict[str, Any] = {option: [str(tmp_path)]}
    with pytest.raises(ConfigError, match="temporary f"):
        Held([Confined("task t", Permissions(**named))])


def test_a_program_must_not_be_writable(tmp_path: Path) -> None:
    """A task with more permissions could run what a job has written."""
    (tmp_path / "tool").touch()
    tool = str(tmp_path / "tool")
    with pytest.raises(ConfigError, match=r"task b: run= names .* write= of task a"):
        Held(
            [
                Confined("task a", Permissions(write=[tool])),
                Confined("task b", Permissions(run=[tool])),
            ]
        )
    with pytest.raises(ConfigError, match=r"task b: run= names .* write= of task a"):
        Held(
            [
                Confined("task a", Permissions(write=[tool])),
                Confined("task b", Permissions(), (tool,)),
            ]
        )


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("JQ_TOKEN_FILE", True),
        ("KUBECONFIG", True),
        ("PGPASSFILE", True),
        ("AWS_SHARED_CREDENTIALS_FILE", True),
        ("JQ_TLS_KEY", True),
        ("TOKENIZER_FILE", False),
        ("SSL_CERT_FILE", False),
        ("JQ_TLS_CA", False),
    ],
)
def test_variables_name_private_files_by_whole_words(
    tmp_path: Path, name: str, private: bool
) -> None:
    (tmp_path / "file").touch()
    variables = {name: str(tmp_path / "file"), "OTHER_KEY": "not a path", "A_TOKEN": "\0"}
    found = secrets.known((), variables=variables, arguments=())
    assert (str(tmp_path / "file") in found) == private


@pytest.mark.parametrize("path", ["/etc", "/usr", "/"])
def test_system_files_that_all_children_read_cannot_be_made_writable(path: str) -> None:
    with pytest.raises(ConfigError, match="task t"):
        Held([Confined("task t", Permissions(write=[path]))])


def test_permissions_that_come_later_are_checked_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = Held([Confined("task t", Permissions(read=[f"{tmp_path}/in"]))])
    wide = Permissions(write=[str(tmp_path)])
    for _ in range(2):
        with pytest.raises(ConfigError, match="added later"):
            files.descriptors(wide)
    files.close()
