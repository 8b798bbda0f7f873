"""What a job leaves behind is out of reach for the next one in the same child."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from jobq import Permissions
from jobq.executors.sandbox import Workspace
from jobq.executors.sandbox.trees import remove_contents
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("enforced")

_PREPARE = """
import os, socket
from jobq import Permissions
from jobq.executors import sandbox
box = sandbox.apply(Permissions())
mine = os.environ["TMPDIR"]
own = os.open("/dev/zero", os.O_RDONLY)   # opened by the application before the first job
box.ready()
"""


def in_a_child(code: str) -> str:
    """Run the code in a process with permissions, and return what it prints."""
    with tempfile.TemporaryDirectory() as folder:  # of the workspaces, which nobody else removes
        done = subprocess.run(
            [sys.executable, "-c", _PREPARE + textwrap.dedent(code)],
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_temporary_files_are_gone() -> None:
    said = in_a_child(
        """
        os.makedirs(f"{mine}/folder/deep")
        open(f"{mine}/folder/deep/file", "w").write("first")
        os.symlink("/etc", f"{mine}/link")
        box.end_job()
        print(os.listdir(mine), os.path.exists("/etc/hosts"))
        """
    )
    assert said == "[] True"


def test_descriptors_lead_nowhere() -> None:
    said = in_a_child(
        """
        left = open(f"{mine}/file", "w+")
        left.write("first"); left.flush()
        folder = os.open(mine, os.O_RDONLY)
        box.end_job()
        print(os.pread(left.fileno(), 10, 0), os.path.samestat(os.fstat(folder), os.stat(mine)))
        """
    )
    assert said == "b'' False"


def test_a_number_that_was_left_open_is_not_given_to_the_next_job() -> None:
    """Whoever still holds the number would write into a file of the next job, or close it."""
    said = in_a_child(
        """
        left = os.open(f"{mine}/first", os.O_CREAT | os.O_RDWR)
        box.end_job()
        other = os.open(f"{mine}/second", os.O_CREAT | os.O_RDWR)
        os.write(left, b"late")
        print(other != left, os.pread(other, 10, 0))
        """
    )
    assert said == "True b''"


def test_descriptors_of_the_application_stay_open() -> None:
    assert in_a_child("box.end_job(); box.end_job(); print(os.read(own, 2))") == r"b'\x00\x00'"


def test_a_job_that_leaves_many_descriptors_is_the_last_of_its_process() -> None:
    said = in_a_child(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        print(box.end_job())
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError as error:
            print(error.strerror)
        os.mkdir(f"{mine}/folder")
        print(box.end_job(), os.path.exists(f"{mine}/folder"))
        """
    )
    assert said.splitlines() == ["True", "Too many open files", "False False"]


def test_folders_nested_deeper_than_a_path_are_removed(tmp_path: Path) -> None:
    """A worker that removes them recursively would fail, and lose track of its child."""
    top = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
    finally:
        os.chdir(top)
    (tmp_path / "closed").mkdir(mode=0)
    os.symlink("/etc", tmp_path / "link")
    assert remove_contents(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert os.path.exists("/etc/hosts")


def test_many_files_are_removed_without_making_the_worker_wait(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for n in range(30):
            (tmp_path / folder / str(n)).touch()
    assert not remove_contents(str(tmp_path), limit=40)
    assert 20 <= sum(len(files) for _, _, files in os.walk(tmp_path)) < 60
    assert remove_contents(str(tmp_path), limit=40)
    assert os.listdir(tmp_path) == []


def test_a_workspace_with_many_files_is_removed_by_a_thread() -> None:
    workspace = Workspace.open(Permissions())
    for n in range(1_500):
        Path(workspace.folder, str(n)).touch()
    workspace.close()
    wait_until(lambda: not os.path.exists(workspace.folder), "the thread to remove the folder")


def test_a_process_with_threads_is_not_restricted_in_part(tmp_path: Path) -> None:
    code = """
import threading
from jobq import Permissions
from jobq.executors import sandbox
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    sandbox.apply(Permissions())
except RuntimeError as error:
    print(error)
print(open("/etc/hostname").readable())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "permissions are applied before a process starts other threads",
        "True",
    ]
    assert os.listdir(tmp_path) == []


def test_threads_of_c_code_are_seen_as_well() -> None:
    """A thread that Python does not know would stay unrestricted."""
    code = """
import ctypes, os, threading
from jobq import Permissions
from jobq.executors import sandbox
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
assert threading.active_count() == 1
try:
    sandbox.apply(Permissions())
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "permissions are applied before" in done.stdout, done.stderr
