"""Landlock: which paths, TCP ports, signals and abstract sockets a process may use.

A ruleset names the kinds of access that it handles. The kernel refuses all of them except where a
rule allows one. A process cannot undo its ruleset, and its children inherit it. Landlock also
refuses to trace or inspect any process outside the ruleset, e.g. by /proc/PID/mem.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from errno import EACCES, ENOENT, ENOSYS, ENOTDIR, EOPNOTSUPP

from jobq.executors.sandbox.syscalls import call, supported

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_FIFO = 1 << 10
_MAKE_SYM = 1 << 12
_REFER = 1 << 13  # since version 2: rename or link into another folder
_TRUNCATE = 1 << 14  # since version 3
_IOCTL_DEV = 1 << 15  # since version 5

READ = READ_FILE | READ_DIR
WRITE = (
    WRITE_FILE
    | _REMOVE_DIR
    | _REMOVE_FILE
    | _MAKE_DIR
    | _MAKE_REG
    | _MAKE_FIFO
    | _MAKE_SYM
    | _REFER
    | _TRUNCATE
    | _IOCTL_DEV
)
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV

_BIND_TCP = 1 << 0
_CONNECT_TCP = 1 << 1
_SCOPE_ABSTRACT_SOCKETS = 1 << 0
_SCOPE_SIGNALS = 1 << 1

# Versions of Landlock, and the first Linux that has them. The first of all came with 5.13.
TRUNCATE_VERSION = 3  # 6.2: emptying files; before that, a filter has to refuse it
PORTS_VERSION = 4  # 6.7: TCP ports
SCOPES_VERSION = 6  # 6.12: signals and abstract sockets

_VERSION_FLAG = 1
_RULE_PATH = 1
_RULE_PORT = 2


def version() -> int:
    """The version of Landlock in this kernel. 0 if there is none or it is turned off."""
    if not supported():
        return 0
    try:
        return call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError as error:
        if error.errno in (ENOSYS, EOPNOTSUPP):
            return 0
        raise


class Ruleset:
    """A ruleset in the making. Everything that it handles is refused unless it is allowed here."""

    def __init__(self, version: int, *, ports: bool) -> None:
        """`ports` says whether it restricts TCP. Otherwise it leaves TCP alone."""
        paths = (1 << 13) - 1
        paths |= _REFER if version >= 2 else 0
        paths |= _TRUNCATE if version >= 3 else 0
        paths |= _IOCTL_DEV if version >= 5 else 0
        tcp = _BIND_TCP | _CONNECT_TCP if ports and version >= PORTS_VERSION else 0
        scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= SCOPES_VERSION else 0
        self._handled = paths
        attributes = struct.pack("=QQQ", paths, tcp, scopes)
        # An older kernel knows fewer fields, and refuses a longer record.
        size = 24 if version >= SCOPES_VERSION else 16 if version >= PORTS_VERSION else 8
        self.fd = call(
            "landlock_create_ruleset", ctypes.create_string_buffer(attributes, 24), size, 0
        )

    def allow(self, path: str, access: int, *, below: int | None = None) -> None:
        """Allow access to a file, or to a folder and everything below it.

        Links are followed now: the rule is about the file that the path leads to. The path is
        relative to the folder `below`, if that is given, and then its last part is no link.
        Raises OSError if there is no such file.
        """
        flags = os.O_PATH | os.O_CLOEXEC | (0 if below is None else os.O_NOFOLLOW)
        opened = os.open(path, flags, dir_fd=below)
        try:
            self.allow_open(opened, access)
        finally:
            os.close(opened)

    def allow_open(self, opened: int, access: int) -> None:
        """Allow access to an open file, or to a folder and everything below it."""
        access &= self._handled
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, opened)
        call("landlock_add_rule", self.fd, _RULE_PATH, ctypes.create_string_buffer(rule, 12), 0)

    def allow_existing(
        self, paths: Iterable[str], access: int, *, below: int | None = None
    ) -> None:
        """Allow access to those paths that exist and that this user can reach."""
        for path in paths:
            try:
                self.allow(path, access, below=below)
            except OSError as error:
                if error.errno not in (ENOENT, ENOTDIR, EACCES):
                    raise

    def allow_connect(self, port: int) -> None:
        """Allow connections to a TCP port."""
        rule = struct.pack("=QQ", _CONNECT_TCP, port)
        call("landlock_add_rule", self.fd, _RULE_PORT, ctypes.create_string_buffer(rule, 16), 0)

    def enforce(self) -> None:
        """Restrict the calling thread, and every thread and process that it starts from now on."""
        try:
            call("landlock_restrict_self", self.fd, 0)
        finally:
            with suppress(OSError):
                os.close(self.fd)
