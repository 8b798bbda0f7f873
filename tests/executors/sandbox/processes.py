"""Tasks that start processes which try to live on, or which use processor time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from jobq import Permissions, Queue, current_job
from jobq.executors.sandbox.syscalls import call, prctl

queue = Queue("processes", "memory://processes")
_SEVERAL = Permissions(processes=30)
_LIMITED = Permissions(processes=30, cpu=1)
_CLONE_PARENT = 0x00008000
_PR_SET_PDEATHSIG = 1


def _plain() -> None: ...


def _orphan() -> None:
    if os.fork():
        os._exit(0)


def _session() -> None:
    os.setsid()


def _group() -> None:
    os.setpgid(0, 0)


def _group_of_an_orphan() -> None:
    _orphan()
    os.setpgid(0, 0)


def _deaf() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)


def _undying() -> None:
    prctl(_PR_SET_PDEATHSIG, 0)


def _sibling() -> None:
    if call("clone", _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0):
        os._exit(0)


WAYS = (_plain, _orphan, _session, _group, _group_of_an_orphan, _deaf, _undying, _sibling)


def _start(way: Callable[[], None], *, stopped: bool = False) -> int:
    """Start a process that prepares to live on in some way, and waits. Returns its id."""
    ours, theirs = os.pipe()
    first = os.fork()
    if first == 0:
        with suppress(OSError):
            way()
        os.write(theirs, str(os.getpid()).encode())
        os.close(theirs)
        while True:
            os.kill(os.getpid(), signal.SIGSTOP) if stopped else signal.pause()
    os.close(theirs)
    with open(ours) as pipe:
        return int(pipe.read())


def _start_all() -> list[int]:
    return [*map(_start, WAYS), *(_start(way, stopped=True) for way in WAYS)]


@queue.task(executor="process", retry=0, permissions=_SEVERAL)
def start_and_stay(stopped: bool) -> None:
    """Start processes, and go on deaf to all signals, or stop itself."""
    current_job().sync.progress([os.getpid(), *_start_all()])
    with suppress(OSError):
        _undying()
    _deaf()
    while True:
        os.kill(os.getpid(), signal.SIGSTOP) if stopped else signal.pause()


@queue.task(executor="process", retry=0, permissions=_SEVERAL)
def start_and_end() -> tuple[int, list[int]]:
    return os.getpid(), _start_all()


@queue.task(executor="process", retry=0, permissions=_SEVERAL)
def pid() -> int:
    return os.getpid()


def _burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


def _burn_in_child(seconds: float) -> None:
    child = os.fork()
    if child == 0:
        _burn(seconds)
        os._exit(0)
    os.waitpid(child, 0)


def _burn_in_grandchild(seconds: float) -> None:
    child = os.fork()
    if child == 0:
        _burn_in_child(seconds)
        os._exit(0)
    os.waitpid(child, 0)


def _burn_in_orphan(seconds: float) -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _burn(seconds)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    os.read(ours, 1)  # until the orphan has ended


def _burn_in_several(seconds: float) -> None:
    """No process of these uses more than it may."""
    for _ in range(5):
        _burn_in_child(seconds / 5)


def _burn_here_and_there(seconds: float) -> None:
    _burn_in_child(seconds / 2)
    _burn(time.process_time() + seconds / 2)


BURNERS = {
    "child": _burn_in_child,
    "grandchild": _burn_in_grandchild,
    "orphan": _burn_in_orphan,
    "several": _burn_in_several,
    "here and there": _burn_here_and_there,
}


@queue.task(executor="process", retry=0, permissions=_LIMITED)
def burn(where: str, seconds: float) -> str:
    BURNERS[where](seconds)
    return "within its limit"


@queue.task(executor="process", retry=0, permissions=Permissions(cpu=1))
def burn_deaf() -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    _burn(60)


shell = queue.command(
    "shell",
    ["/bin/sh", "-c", "while :; do :; done & while :; do :; done"],
    retry=0,
    permissions=_LIMITED,
)
