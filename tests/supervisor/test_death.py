"""A worker process ends with its supervisor, by the kernel's signal and by the socket alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import waiting

_linux = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")

_CHILD = {
    "the kernel's signal": """
import os, sys, time
from jobq.supervisor.child import die_with_parent
die_with_parent(int(sys.argv[1]))
""",
    "the socket": """
import os, sys, threading, time
from jobq.supervisor.child import Supervised
threading.Thread(target=Supervised(int(sys.argv[2]), "w").listen, daemon=True).start()
""",
    "nothing": "import sys, time",
}
_CHILD_END = """
print("ready", flush=True)
time.sleep(600)
"""

# Starts one child, in a thread that ends if asked to, and prints its pid.
_PARENT = """
import os, socket, subprocess, sys, threading
code, in_thread = sys.argv[1:]
ours, theirs = socket.socketpair()
def start():
    global child
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(os.getpid()), str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True)
    theirs.close()
    assert child.stdout.readline() == "ready\\n"
if in_thread == "yes":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
print(child.pid, flush=True)
sys.stdin.read()
"""


class Family:
    """A parent and its child. The child's end is seen by a pidfd, without polling."""

    def __init__(self, code: str, *, in_thread: bool = False) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, code + _CHILD_END, "yes" if in_thread else "no"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.parent.stdout is not None
        self.child = int(self.parent.stdout.readline())

    def child_lives(self) -> bool:
        try:
            stat = Path(f"/proc/{self.child}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def end(self) -> None:
        if self.child_lives():
            os.kill(self.child, signal.SIGKILL)
        self.parent.kill()
        self.parent.communicate()


@pytest.fixture
def families() -> Iterator[list[Family]]:
    started: list[Family] = []
    yield started
    for family in started:
        family.end()


@_linux
@pytest.mark.parametrize("line", ["the kernel's signal", "the socket"])
def test_each_of_the_two_alone_ends_a_child_whose_parent_is_killed(
    families: list[Family], line: str
) -> None:
    family = Family(_CHILD[line])
    families.append(family)
    assert family.child_lives()
    family.parent.kill()
    waiting.wait_until(lambda: not family.child_lives(), "the child to end")


@_linux
def test_a_child_without_them_would_stay(families: list[Family]) -> None:
    """So the test above tests something."""
    family = Family(_CHILD["nothing"])
    families.append(family)
    family.parent.kill()
    family.parent.wait()
    assert family.child_lives()


@_linux
def test_the_kernel_takes_the_end_of_the_starting_thread_for_the_parents(
    families: list[Family],
) -> None:
    """This is why a WorkerProcess starts in the main thread only."""
    family = Family(_CHILD["the kernel's signal"], in_thread=True)
    families.append(family)
    waiting.wait_until(lambda: not family.child_lives(), "the child to end")
    assert family.parent.poll() is None


@_linux
def test_a_parent_that_ends_before_the_kernel_is_asked_is_noticed() -> None:
    """The child is told of a parent that is not its own: its real one has ended."""
    code = "from jobq.supervisor.child import die_with_parent; die_with_parent(2**22)"
    ended = subprocess.run([sys.executable, "-c", code], timeout=waiting.PATIENCE_S, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_a_worker_process_is_started_in_the_main_thread_only() -> None:
    code = """
import threading
from pathlib import Path
from jobq.supervisor.process import WorkerProcess
threading.Thread(target=WorkerProcess, args=("w", ["true"], Path("."), None)).start()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        timeout=waiting.PATIENCE_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "start it in the main thread" in ended.stderr


def test_the_variable_is_gone_and_the_socket_is_not_inherited() -> None:
    """A process that a handler starts is not taken for a supervised one."""
    ours, theirs = socket.socketpair()
    code = """
import os, subprocess, sys
from jobq.supervisor.child import Supervised
from jobq.supervisor.process import VARIABLE
supervised = Supervised.from_environment()
assert supervised.name == "web:1"
assert VARIABLE not in os.environ
assert not os.get_inheritable(int(sys.argv[1]))
assert Supervised.from_environment() is None
"""
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", code, str(theirs.fileno())],
            env={**os.environ, "JOBQ_SUPERVISED": f"{theirs.fileno()}:{os.getpid()}:web:1"},
            pass_fds=[theirs.fileno()],
            timeout=waiting.PATIENCE_S,
            check=True,
        )
