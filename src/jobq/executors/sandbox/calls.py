"""Which system calls a child with permissions may make: what Landlock cannot restrict."""

from __future__ import annotations

import os
import socket
from errno import EACCES, ENOSYS, EPERM

from jobq.core.policies import Permissions
from jobq.executors.sandbox import landlock
from jobq.executors.sandbox.bpf import Check, Filter
from jobq.executors.sandbox.syscalls import PR_SET_PDEATHSIG

# These report "no such call", so that libraries use their other way.
_ABSENT = (
    "clone3",  # its flags are behind a pointer; the C library falls back to clone
    "io_uring_setup",  # makes calls that no filter sees, e.g. connect
    "memfd_create",  # a file without a path: Landlock allows to execute it
    "memfd_secret",
)

# Landlock does not restrict metadata, and a filter does not see paths. So these are refused for
# all files.
_METADATA = (
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "file_setattr",
)

# Other programs of the same user, and the machine. Most of these need a capability as well, which
# the child does not have.
_OUTSIDE = (
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "inotify_init",  # tells of files in folders that the child may not list
    "inotify_init1",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "mount",
    "mount_setattr",
    "move_mount",
    "mq_open",
    "mq_unlink",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "open_by_handle_at",
    "open_tree",
    "open_tree_attr",
    "perf_event_open",
    "pivot_root",
    "ptrace",
    "reboot",
    "request_key",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "setns",
    "setpgid",  # the worker ends a job's processes by their process group
    "setsid",
    "shmat",
    "shmctl",
    "shmget",
    "swapoff",
    "swapon",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
)

_CLONE_PARENT = 0x00008000
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_TYPE_MASK = 0xF  # the rest of a socket's type are flags
_MSG_FASTOPEN = 0x20000000
_F_SETOWN = 8
_F_SETOWN_EX = 15
_FIOSETOWN = 0x8901
_SIOCSPGRP = 0x8902
_TIOCSTI = 0x5412  # types into the terminal
_TIOCLINUX = 0x541C
_FS_IOC_SETFLAGS = 0x40086602
_FS_IOC_FSSETXATTR = 0x401C5820
_PRIO_PROCESS = 0
_IOPRIO_PROCESS = 1


def make_filter(permissions: Permissions, *, landlock_version: int) -> Filter:
    """The filter for this process."""
    rules = Filter()
    rules.refuse_unknown(ENOSYS)
    for name in _ABSENT:
        rules.refuse(name, ENOSYS)
    for name in (*_METADATA, *_OUTSIDE):
        rules.refuse(name, EPERM)
    _processes(rules, permissions.processes)
    _sockets(rules, permissions.network)
    _other_processes(rules)
    if landlock_version < landlock.TRUNCATE_VERSION:
        _truncation(rules)
    owners: tuple[int, ...] = ()
    if landlock_version < landlock.SCOPES_VERSION:
        _signals(rules)
        owners = (_FIOSETOWN, _SIOCSPGRP)
    refused = (_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, *owners)
    rules.restrict("ioctl", EPERM, Check(1, refused, wanted=False))
    return rules


def _processes(rules: Filter, processes: int) -> None:
    """Threads are always allowed. Namespaces are not, nor processes that have another parent.

    The worker would be the parent, would not know them, and would not wait for them. No process may
    refuse to die with its worker.
    """
    inside = Check(0, (0,), mask=_CLONE_NAMESPACES | _CLONE_PARENT)
    rules.restrict("prctl", EPERM, Check(0, (PR_SET_PDEATHSIG,), wanted=False))
    if processes:
        rules.restrict("clone", EPERM, inside)
    else:
        rules.restrict("clone", EPERM, inside, Check(0, (_CLONE_THREAD,), mask=_CLONE_THREAD))
        rules.refuse("fork", EPERM)
        rules.refuse("vfork", EPERM)


def _sockets(rules: Filter, network: bool | tuple[int, ...]) -> None:
    """Only IPv4 and IPv6, only TCP and UDP, and only TCP if there is a list of ports.

    Unix sockets are always refused: Landlock does not restrict them by path, and one such as
    Docker's gives access to the whole machine. A pair of them is allowed, except of datagram
    sockets, which can send to any address.
    """
    family = Check(0, (socket.AF_INET, socket.AF_INET6))
    stream, datagram = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
    if network is True:
        rules.restrict("socket", EACCES, family, Check(1, (stream, datagram), mask=_TYPE_MASK))
    elif network is False:
        rules.refuse("socket", EACCES)
    else:
        # Landlock knows TCP only, not e.g. MPTCP, which is a stream as well.
        tcp = Check(2, (0, socket.IPPROTO_TCP))
        rules.restrict("socket", EACCES, family, Check(1, (stream,), mask=_TYPE_MASK), tcp)
        rules.refuse("listen", EACCES)  # without a bind, which Landlock refuses, a port is chosen
        # Sending with this flag connects without the call that Landlock checks.
        for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
            rules.restrict(name, EACCES, Check(flags, (0,), mask=_MSG_FASTOPEN))
    pairs = (stream, int(socket.SOCK_SEQPACKET))
    rules.restrict(
        "socketpair", EACCES, Check(0, (socket.AF_UNIX,)), Check(1, pairs, mask=_TYPE_MASK)
    )


def _other_processes(rules: Filter) -> None:
    """Limits and priorities only of the process itself, not of the worker."""
    own = Check(0, (0, os.getpid()))
    rules.restrict("prlimit64", EPERM, own)
    for name in ("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"):
        rules.restrict(name, EPERM, own)
    # The first argument says what the second names: a process, a group or a user.
    rules.restrict("ioprio_set", EPERM, Check(0, (_IOPRIO_PROCESS,)), Check(1, (0,)))
    rules.restrict("setpriority", EPERM, Check(0, (_PRIO_PROCESS,)), Check(1, (0,)))


def _truncation(rules: Filter) -> None:
    """No emptying of files by their path, and none by opening them in a mode other than writing.

    Opening a file to write is Landlock's to allow, and such a descriptor may be truncated.
    """
    rules.refuse("truncate", EACCES)
    rules.refuse("openat2", ENOSYS)  # its flags are behind a pointer
    modes = (os.O_TRUNC | os.O_RDONLY, os.O_TRUNC | os.O_ACCMODE)
    for name, flags in (("open", 1), ("openat", 2)):
        not_to_write = Check(flags, modes, mask=os.O_TRUNC | os.O_ACCMODE, wanted=False)
        rules.restrict(name, EACCES, not_to_write)


def _signals(rules: Filter) -> None:
    """Signals only to the process itself, where Landlock does not restrict them."""
    own = Check(0, (os.getpid(),))
    for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        rules.restrict(name, EPERM, own)
    for name in ("tkill", "pidfd_send_signal"):
        rules.refuse(name, EPERM)
    rules.restrict("fcntl", EPERM, Check(1, (_F_SETOWN, _F_SETOWN_EX), wanted=False))
