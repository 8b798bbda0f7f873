"""Errors in the words of permissions."""

from __future__ import annotations

import dis
import errno
import os
import signal
import socket
from types import CodeType

from jobq.core.policies import Permissions
from jobq.errors import PermissionDenied
from jobq.executors.sandbox.defaults import DNS

_REFUSALS = (errno.EACCES, errno.EPERM)
_STARTING = frozenset({"fork", "forkpty", "posix_spawn", "posix_spawnp", "fork_exec", "_fork_exec"})
_LINKING = frozenset({"link", "symlink", "link_to", "hardlink_to", "symlink_to"})
_CONNECTING = frozenset(
    {"socket", "socketpair", "connect", "connect_ex", "bind", "listen", "sendto", "sendmsg"}
)

# Names of functions, and what they do. Their errors carry no path, or not the reason.
_CALLS = (
    (frozenset({"chmod", "fchmod", "lchmod"}), "changing the mode of a file"),
    (frozenset({"chown", "fchown", "lchown"}), "changing the owner of a file"),
    (frozenset({"utime"}), "changing the times of a file"),
    (frozenset({"setxattr", "removexattr"}), "changing the attributes of a file"),
    (_STARTING, "starting a process"),
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
    if error.errno == errno.EAGAIN and permissions.processes and _starts_a_process(error):
        return f"more than {permissions.processes} processes are not allowed"
    if error.errno not in (*_REFUSALS, errno.EXDEV):
        return None
    return _refused(error, permissions)


def _refused(error: OSError, permissions: Permissions) -> str | None:
    """Say what was refused. The error has a path or nothing, so the failed call is a hint."""
    called, _, module = _failed_call(error)
    if error.filename2 is not None:
        paths = [_shown(error.filename), _shown(error.filename2)]
        if all(_within(path, permissions.write) for path in paths):
            return None  # the file's mode forbids it, or they are on two devices
        what = "linking" if called in _LINKING else "moving"
        return f"{what} {paths[0]} to {paths[1]} is not allowed"
    has_path = isinstance(error.filename, (str, bytes)) and bool(error.filename)
    # The process was allowed, and its program was not, if the error names the program.
    runs = has_path and error.errno == errno.EACCES and _starts_a_process(error)
    for names, what in _CALLS:
        if called in names and not runs:
            return f"{what} is not allowed"
    if has_path and error.errno == errno.EACCES:  # EPERM: the call is refused for all paths
        return _path(os.fsdecode(error.filename), permissions, run=runs)
    if error.errno == errno.EXDEV:  # two devices, and no path of ours
        return None
    # The filter's error for sockets is EACCES, and so is Landlock's for ports.
    if error.errno == errno.EACCES and (called in _CONNECTING or module == "socket"):
        return _network(permissions)
    return f"a system call ({error.strerror}{f' in {called}' if called else ''}) is not allowed"


def _starts_a_process(error: OSError) -> bool:
    called, function, _ = _failed_call(error)
    return called in _STARTING or function == "_execute_child"


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


def _failed_call(error: OSError) -> tuple[str, str, str]:
    """The name of the function that failed, and the function and module that have called it.

    Functions in C have no frame, so the name is what the last frame calls at that moment. It is
    empty if that frame has raised the error itself.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return "", "", ""
    code = last.tb_frame.f_code
    module = str(last.tb_frame.f_globals.get("__name__", ""))
    return _called_at(code, last.tb_lasti), code.co_name, module


def _called_at(code: CodeType, offset: int) -> str:
    """The name that a call in this code uses for what it calls: `kill` for `os.kill(1, 9)`.

    The instructions of a call know its place in the source. What is called is the part with the
    same beginning, and the longest one inside of it.
    """
    instructions = list(dis.get_instructions(code))
    call = next((each for each in instructions if each.offset == offset), None)
    if call is None or not call.opname.startswith("CALL") or call.positions is None:
        return ""
    begin, end = _span(call)
    inside = [
        each
        for each in instructions
        if isinstance(each.argval, str)
        and each.opname.startswith("LOAD_")
        and _span(each)[0] == begin
        and _span(each)[1] < end
    ]
    return str(max(inside, key=_span).argval) if inside else ""


def _span(instruction: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the source of an instruction begins and ends: lines and columns."""
    at = instruction.positions
    if at is None:
        return (0, 0), (0, 0)
    return (at.lineno or 0, at.col_offset or 0), (at.end_lineno or 0, at.end_col_offset or 0)


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
