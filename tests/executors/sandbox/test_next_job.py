"""What a job leaves behind is out of reach for the next one in the same child."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE + textwrap.dedent(code)],
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


def test_a_process_with_threads_is_not_restricted_in_part() -> None:
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "permissions are applied before a process starts other threads",
        "True",
    ]


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
