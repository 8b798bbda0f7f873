"""Gives up what a process could use to get around its permissions: capabilities, network, user."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path

from jobq.executors.sandbox.syscalls import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    call,
    prctl,
)

# Namespaces: a network without interfaces, and a user whose processes are counted apart.

_NEW_USER = 0x10000000
_NEW_NET = 0x40000000
_PROBE_TIMEOUT = 30
"""Seconds. Starting an interpreter takes a fraction of one, unless the machine is overloaded."""


def leave_network() -> None:
    """Move into a network namespace in which nothing can be reached. Needs CAP_SYS_ADMIN."""
    call("unshare", _NEW_NET)


def own_user() -> None:
    """Move into a user namespace with the same user, so that the kernel counts its processes apart.

    The process has all capabilities in that namespace until it drops them.
    """
    user, group = os.geteuid(), os.getegid()
    call("unshare", _NEW_USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def leave_network_as_own_user() -> None:
    """Do both: a user without that capability has it in a user namespace."""
    own_user()
    leave_network()


def works_in_a_fork(step: Callable[[], None]) -> bool:
    """Whether a step works here. A fork of this process, which has no other threads, tries it.

    Some systems allow to make a user namespace and then refuse to map its user. A process that has
    got this far can no longer create files, so it has to be known before.
    """
    tried = os.fork()
    if tried == 0:
        try:
            step()
        except BaseException:  # the fork must not return from here
            os._exit(1)
        os._exit(0)
    return os.waitpid(tried, 0)[1] == 0


@cache
def own_user_works() -> bool:
    """Whether this process may make user namespaces. A process of its own tries it."""
    code = "from jobq.executors.sandbox.privileges import own_user; own_user()"
    tried = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_PROBE_TIMEOUT,
        check=False,
    )
    return tried.returncode == 0


_CAPABILITY_VERSION_3 = 0x20080522


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies. A change of rights undoes this."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_new_privileges() -> None:
    """Setuid programs and file capabilities have no effect from now on."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up all capabilities, for good. The child of a root worker is then an ordinary process.

    It still owns root's files, but it can no longer read those of other users.
    """
    with suppress(OSError):  # a kernel without ambient capabilities
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    with suppress(OSError):  # an ordinary user may not, and has none; or: after the last one
        for capability in count():
            prctl(PR_CAPBSET_DROP, capability)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    nothing = bytes(24)
    call(
        "capset",
        ctypes.create_string_buffer(header, len(header)),
        ctypes.create_string_buffer(nothing, len(nothing)),
    )
