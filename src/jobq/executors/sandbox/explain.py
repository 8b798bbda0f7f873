"""Errors in the words of permissions."""

from __future__ import annotations

import errno
import os
import signal
import socket

from jobq.core.policies import Permissions
from jobq.errors import PermissionDenied
from jobq.executors.sandbox.defaults import DNS

_REFUSALS = (errno.EACCES, errno.EPERM)

# Names of functions of `os`, and what they do. Their errors carry no path, or not the reason.
_CALLS = (
    (frozenset({"chmod", "fchmod", "lchmod"}), "changing the mode of a file"),
    (frozenset({"chown", "fchown", "lchown"}), "changing the owner of a file"),
    (frozenset({"utime"}), "changing the times of a file"),
    (frozenset({"setxattr", "removexattr"}), "changing the attributes of a file"),
    (frozenset({"fork", "forkpty", "posix_spawn"}), "starting a process"),
    (frozenset({"execv", "execve"}), "running this program"),
    (frozenset({"kill", "killpg", "pidfd_send_signal"}), "signalling another process"),
    (frozenset({"setsid", "setpgid"}), "leaving the process group"),
)


def explain(error: BaseException, permissions: Permissions, task: str) -> PermissionDenied | None:
    """The error that a refusal by the kernel becomes. None if it has another cause.

    Called in the child, where the handler's error was raised.
    """
    text = _reason(error, permissions)
    return None if text is None else PermissionDenied(f"{text} for task {task}")


def explain_signal(number: int, permissions: Permissions, task: str) -> PermissionDenied | None:
    """The error for a child that a signal has ended. None if permissions are not the cause."""
    if number == signal.SIGXCPU and permissions.cpu_ms is not None:
        return PermissionDenied(
            f"more than {permissions.cpu_ms // 1000} s of processor time are not allowed "
            f"for task {task}"
        )
    if number == signal.SIGSYS:
        return PermissionDenied(
            f"system calls of another processor are not allowed for task {task}"
        )
    return None


def _reason(error: BaseException, permissions: Permissions) -> str | None:
    if isinstance(error, MemoryError) and permissions.memory is not None:
        return f"more than {permissions.memory // 2**20} MiB of memory are not allowed"
    if isinstance(error, socket.gaierror):
        return _resolving(permissions)
    if not isinstance(error, OSError):
        return None
    if error.errno == errno.EMFILE and permissions.files is not None:
        return f"more than {permissions.files} open files are not allowed"
    if error.errno == errno.ENOMEM and permissions.memory is not None:
        return f"more than {permissions.memory // 2**20} MiB of memory are not allowed"
    if error.errno == errno.EAGAIN and permissions.processes and error.filename is None:
        return f"more than {permissions.processes} processes are not allowed"
    if error.errno not in (*_REFUSALS, errno.EXDEV):
        return None
    return _refused(error, permissions)


def _refused(error: OSError, permissions: Permissions) -> str | None:
    """Say what was refused. The error has a path or nothing, so the calling code is a hint."""
    if error.filename2 is not None:
        return f"moving {_shown(error.filename)} to {_shown(error.filename2)} is not allowed"
    called = _names_in_last_call(error)
    for names, what in _CALLS:
        if called & names:
            return f"{what} is not allowed"
    if isinstance(error.filename, (str, bytes)) and error.filename:
        return _path(os.fsdecode(error.filename), permissions, run="_execute_child" in called)
    if error.errno == errno.EACCES:  # the filter's error for sockets, and Landlock's for ports
        return _network(permissions)
    return f"a system call ({error.strerror}) is not allowed"


def _network(permissions: Permissions) -> str:
    if permissions.network is False:
        return "the network is not allowed"
    if permissions.network is True:
        return "a socket other than TCP or UDP is not allowed"
    return f"network access other than TCP to {_list(permissions.network)} is not allowed"


def _resolving(permissions: Permissions) -> str | None:
    """Why a name could not be resolved. None if that is allowed, so that it has another cause."""
    network = permissions.network
    if network is False:
        return _network(permissions)
    if network is True or DNS in network:
        return None
    return f"resolving names without port {DNS} is not allowed"


def _path(path: str, permissions: Permissions, *, run: bool) -> str | None:
    """Find out by trying what is refused: the error does not say what the handler wanted."""
    if run:
        return None if _within(path, permissions.run) else f"running {path} is not allowed"
    if not _is_absent(path) and not _opens(path):
        return None if _within(path, permissions.read) else f"{path} is not readable"
    return None if _within(path, permissions.write) else f"{path} is not writable"


def _is_absent(path: str) -> bool:
    """Whether there is no such file, as far as this process may know."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _names_in_last_call(error: OSError) -> frozenset[str]:
    """The names that the function uses which raised the error, and its own."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return frozenset()
    code = last.tb_frame.f_code
    return frozenset({code.co_name, *code.co_names})


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _within(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether the path is one of the allowed ones or below one, after links are followed."""
    try:
        real = os.path.realpath(path)
    except OSError:  # a link below /proc that this process may not follow
        return False
    folders = (os.path.realpath(folder).rstrip("/") + "/" for folder in allowed)
    return any(f"{real}/".startswith(folder) for folder in folders)


def _shown(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, (str, bytes)) else repr(path)


def _list(ports: tuple[int, ...]) -> str:
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports))}"
