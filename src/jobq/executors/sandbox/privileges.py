"""Gives up what a process could use to get around its permissions."""

from __future__ import annotations

import ctypes
import signal
import struct
from contextlib import suppress
from itertools import count

from jobq.executors.sandbox.syscalls import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    call,
    prctl,
)

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
