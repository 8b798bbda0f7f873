"""A process that stands for a worker: it forks a child per request, which tries to escape.

It reads requests from its standard input, a line of JSON each, and prints a line with the outcome.
It has no threads, so it may fork. A fork costs 10 ms, and a new interpreter with jobq many times
that.
"""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 - a user without privileges cannot import it later
import errno
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from jobq.core.policies import Permissions
from jobq.executors.sandbox import Workspace, explain
from jobq.executors.sandbox.apply import restrict
from jobq.executors.sandbox.kernel import this_kernel_to_a_child
from jobq.executors.sandbox.syscalls import call, prctl
from tests.executors.sandbox.attempts import ATTEMPTS, SECRET, VARIABLE, Target

NOBODY = 65534
_TIMEOUT = 200.0  # seconds: an attempt uses up to 5 s of processor time on a busy machine
_PR_SET_DUMPABLE = 4
_IPC_RMID = 0
_DISTRACTIONS = ("chmod", "chown", "utime", "fork", "execv", "kill", "setsid", "connect", "link")


@dataclass(frozen=True)
class Request:
    """One attempt. `without` names parts of the sandbox to leave out."""

    attempt: str
    permissions: Permissions
    without: tuple[str, ...] = ()
    landlock: int | None = None
    """Pretend that the kernel has this version of Landlock."""
    distracted: bool = False
    """Let the attempt's code mention other calls, which it does not make."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt has ended."""

    kind: Literal["escaped", "refused", "killed", "broken"]
    detail: str
    explanation: str = ""


class Worker:
    """The worker, with what its children must not reach."""

    def __init__(self, setuid: str) -> None:
        self.signals = 0
        signal.signal(signal.SIGUSR1, self._count)
        self._open: list[socket.socket] = []
        folder = tempfile.mkdtemp(prefix="jobq-worker-")
        self._memory = ctypes.create_string_buffer(SECRET.encode())
        Path(folder, "secret").write_text(SECRET)
        self.target = Target(
            folder=folder,
            own="",
            descriptor=os.open(f"{folder}/secret", os.O_RDONLY),
            tcp=self._listen(socket.AF_INET, ("127.0.0.1", 0))[1],
            tcp6=self._listen(socket.AF_INET6, ("::1", 0))[1],
            udp=self._datagrams(socket.AF_INET, ("127.0.0.1", 0))[1],
            abstract=self._listen(socket.AF_UNIX, f"\0jobq-{os.getpid()}"),
            shared=_shared_memory(),
            address=ctypes.addressof(self._memory),
            setuid=setuid,
        )
        self._listen(socket.AF_UNIX, f"{folder}/socket")
        self._datagrams(socket.AF_UNIX, f"{folder}/datagrams")

    def close(self) -> None:
        """Remove what was made for the attempts."""
        for opened in self._open:
            opened.close()
        os.close(self.target.descriptor)
        shutil.rmtree(self.target.folder)

    def serve(self, request: Request) -> Outcome:
        """Let a child try, and say what came of it."""
        self._reset()
        workspace = Workspace.open(request.permissions)
        before = self.signals
        try:
            outcome = self._try(request, workspace)
        finally:
            workspace.close()
        if outcome.detail == "may have signalled" and self.signals == before:
            return Outcome("refused", "no signal")
        return outcome

    def _try(self, request: Request, workspace: Workspace) -> Outcome:
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            _attempt(request, workspace, replace(self.target, own=workspace.folder), theirs)
        os.close(theirs)
        said = b""
        while select.select([ours], [], [], _TIMEOUT)[0]:
            if not (part := os.read(ours, 65536)):
                break
            said += part
        else:
            os.kill(child, signal.SIGKILL)
        os.close(ours)
        status = os.waitpid(child, 0)[1]
        if said:
            return msgspec.json.decode(said, type=Outcome)
        if os.WIFSIGNALED(status):
            return Outcome("killed", signal.Signals(os.WTERMSIG(status)).name)
        return Outcome("escaped", f"ran another program, which exited with {status >> 8}")

    def _reset(self) -> None:
        """Undo what an attempt that succeeded has done."""
        folder = Path(self.target.folder)
        (folder / "target").write_text("x")
        (folder / "created").unlink(missing_ok=True)
        (folder / "moved").unlink(missing_ok=True)
        if (folder / "made").exists():
            (folder / "made").rmdir()

    def _count(self, *_: object) -> None:
        self.signals += 1

    def _listen(self, family: int, address: Any) -> Any:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.bind(address)
        listening.listen(1000)
        self._open.append(listening)
        return listening.getsockname() if family != socket.AF_UNIX else address

    def _datagrams(self, family: int, address: Any) -> Any:
        receiving = socket.socket(family, socket.SOCK_DGRAM)
        receiving.bind(address)
        self._open.append(receiving)
        return receiving.getsockname()


def _attempt(request: Request, workspace: Workspace, target: Target, result: int) -> None:
    """The child: restrict itself, try, and send the outcome. Does not return."""
    outcome = Outcome("broken", "nothing happened")
    try:
        kernel = this_kernel_to_a_child()
        if request.landlock is not None:
            kernel = replace(kernel, landlock=min(kernel.landlock, request.landlock))
        restrict(
            request.permissions,
            kernel=kernel,
            keep_fds=[result],
            workspace=workspace,
            without=frozenset(request.without),
        )
        try:
            attempt = ATTEMPTS[request.attempt]
            if request.distracted:
                names = (*attempt.__code__.co_names, *_DISTRACTIONS)
                attempt.__code__ = attempt.__code__.replace(co_names=names)
            outcome = Outcome("escaped", attempt(target))
        except (OSError, MemoryError) as error:
            number = error.errno if isinstance(error, OSError) else errno.ENOMEM
            explained = explain(error, request.permissions, "render")
            outcome = Outcome("refused", errno.errorcode[number or 0], str(explained or ""))
    except BaseException:
        outcome = Outcome("broken", traceback.format_exc())
    os.write(result, json.dumps(asdict(outcome)).encode())
    os._exit(0)


def _shared_memory() -> int:
    """A segment that goes when this process ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = call("shmget", 0, 4096, 0o600)
    libc.shmat(segment, None, 0)
    libc.shmctl(segment, _IPC_RMID, None)
    return segment


def _setuid_program() -> str:
    """A copy of `id` that runs as root."""
    folder = tempfile.mkdtemp(prefix="jobq-setuid-")
    os.chmod(folder, 0o755)
    shutil.copy("/usr/bin/id", f"{folder}/id")
    os.chmod(f"{folder}/id", 0o4755)
    return f"{folder}/id"


def _say(answer: Target | Outcome) -> None:
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")
    sys.stdout.flush()


def main(user: str) -> None:
    """Serve requests as root, or as a user without privileges."""
    setuid = _setuid_program() if os.geteuid() == 0 else ""
    forked = os.fork()  # the first process stays root, and removes what belongs to root
    if forked:
        os.waitpid(forked, 0)
        if setuid:
            shutil.rmtree(os.path.dirname(setuid))
        return
    if user == "ordinary" and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        prctl(_PR_SET_DUMPABLE, 1)  # like a worker that was started as that user
    os.environ[VARIABLE] = SECRET
    worker = Worker(setuid)
    _say(worker.target)
    for line in sys.stdin:
        _say(worker.serve(msgspec.json.decode(line, type=Request)))
    worker.close()


if __name__ == "__main__":
    main(sys.argv[1])
