"""The files that the children of a worker may use: found once, when it starts, and held open.

A child gets descriptors, not paths. So a job that replaces a folder by a link changes nothing for
the next one. Before that, the worker refuses arrangements in which jobs could prepare the files of
its next start, or read what belongs to the worker.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.sandbox import defaults, secrets
from jobq.executors.sandbox.landlock import EXECUTE, READ, READ_DIR, READ_FILE, WRITE, Ruleset
from jobq.executors.sandbox.resolved_paths import Mounts, ResolvedPath, is_under, lookup

_MIN_FD = 10
"""Held descriptors are above those that a program gets."""
MAX_ENTRIES = 5_000
"""Entries of code folders that are allowed one by one. A child takes about 40 ms for so many."""
_ACCESS = {"read": READ, "write": WRITE, "run": EXECUTE | READ_FILE}
WORKSPACE_PREFIX = "jobq-"


@dataclass(frozen=True)
class Confined:
    """A task with permissions, for the messages about it."""

    where: str
    permissions: Permissions
    programs: tuple[str, ...] = ()
    """Programs that it runs as its command."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """What Landlock is to allow for an open file or folder."""

    fd: int
    access: int
    entries: tuple[str, ...] | None = None
    """Only these paths below the folder. None: the file, or everything below the folder."""


@dataclass
class Held:
    """The open files of one worker. `close` when its children have ended."""

    tasks: list[Confined]
    stores: tuple[str, ...] = ()
    """URLs of the worker's stores: their files are not for children."""
    _mounts: Mounts = field(default_factory=Mounts)
    _installed: list[str] = field(default_factory=defaults.installed)
    _application: list[str] = field(default_factory=defaults.application)
    _opened: dict[tuple[str, ...], int] = field(default_factory=dict)
    _private: dict[str, str] = field(default_factory=dict)
    _code: list[Grant] = field(default_factory=list)
    _tables: dict[Permissions, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._check(self.tasks)
            self._code = list(self._code_grants())
            for task in self.tasks:
                self.descriptors(task.permissions)
        except BaseException:
            self.close()
            raise

    def descriptors(self, permissions: Permissions) -> tuple[int, ...]:
        """The descriptors that a child with these permissions inherits.

        The first one is a file with the grants that the others are for (see `read_grants`).
        ConfigError if permissions that were unknown at the start do not go with the others.
        """
        if permissions not in self._tables:
            if all(task.permissions != permissions for task in self.tasks):
                added = Confined("a task that was added later", permissions)
                self._check([*self.tasks, added])
                self.tasks.append(added)
            grants = self.grants(permissions)
            table = self._keep((str(len(self._tables)),), os.memfd_create("jobq-grants"))
            os.pwrite(table, msgspec.msgpack.encode(grants), 0)
            self._tables[permissions] = (table, *dict.fromkeys(grant.fd for grant in grants))
        return self._tables[permissions]

    def grants(self, permissions: Permissions) -> list[Grant]:
        """What these permissions name, and the code."""
        grants = [*self._code]
        for option, path in _named(permissions):
            resolved = lookup(path)
            if (fd := self._open(resolved)) is not None:
                grants.append(Grant(fd, _ACCESS[option]))
        return grants

    def close(self) -> None:
        """Close the files."""
        for fd in self._opened.values():
            os.close(fd)
        self._opened.clear()
        self._tables.clear()

    # ── checks ──

    def _check(self, tasks: Sequence[Confined]) -> None:
        """ConfigError if a job could replace what another one uses, or read the worker's files."""
        writable = [
            (task, resolved)
            for task in tasks
            for resolved in map(lookup, task.permissions.write)
            if resolved.real is not None
        ]
        self._private = self._private_files()
        for task in tasks:
            named = [*_named(task.permissions), *(("run", path) for path in task.programs)]
            for option, path in named:
                resolved, subject = lookup(path), f"{task.where}: {option}= names {path}"
                if resolved.of_a_process:
                    raise ConfigError(
                        f"{subject}, which leads to the folder of one process, and each child is "
                        "another one: name /proc"
                    )
                self._check_not_replaceable(resolved, subject, writable, itself=option == "run")
                self._check_not_private(resolved, subject)
        for path, what in self._implied(tasks):
            resolved = lookup(path)
            folder = os.path.isdir(path)
            self._check_not_replaceable(resolved, f"{what} {path}", writable, itself=folder)

    def _check_not_replaceable(
        self,
        resolved: ResolvedPath,
        subject: str,
        writable: Sequence[tuple[Confined, ResolvedPath]],
        *,
        itself: bool = False,
    ) -> None:
        """Refuse a path that a job could lead elsewhere. With `itself`, it must not be writable."""
        for task, other in writable:
            assert other.real is not None
            same = itself and resolved.real == other.real
            at = next((at for at in resolved.used if self._mounts.is_below(at, other.real)), None)
            if at is None and not same:
                continue
            way = "" if at in (None, resolved.real, resolved.path) else f"leads through {at}, and "
            raise ConfigError(
                f"{subject}, which {way}is {'' if at is None else 'below '}{other.path}, and "
                f"write= of {task.where} allows to change everything there: a job could replace it "
                "by a link to any file. Keep it outside of folders that are writable"
            )

    def _check_not_private(self, resolved: ResolvedPath, subject: str) -> None:
        if resolved.real is None:
            return
        for path, what in self._private.items():
            if self._mounts.is_below(path, resolved.real):
                raise ConfigError(
                    f"{subject}, which contains {path} ({what}): the kernel knows no exceptions "
                    "below a folder. Name the folders and files in it that the task needs"
                )

    def _implied(self, tasks: Iterable[Confined]) -> Iterator[tuple[str, str]]:
        """Paths that every child uses, and what they are for. No job may change them."""
        network = any(task.permissions.network for task in tasks)
        for path in defaults.system(network=network):
            yield path, "every child may read"
        for path in [*self._installed, *self._application]:
            yield path, "the worker imports code from"
        yield _temporary(), "jobs have their temporary folders in"

    def _private_files(self) -> dict[str, str]:
        """Files of the worker, by path without links: what each of them is."""
        found = secrets.known(self.stores, variables=os.environ, arguments=sys.argv[1:])
        for folder in self._application:
            found |= dict.fromkeys(
                secrets.search(folder, self._writable_below(folder)),
                "a key, a database or settings beside the code, by its name",
            )
        found[f"{_temporary()}/{WORKSPACE_PREFIX}…"] = "temporary files of other jobs"
        return found

    # ── opening ──

    def _code_grants(self) -> Iterator[Grant]:
        """The code: installed packages whole, and folders of the application entry by entry.

        Left out are private files, files that jobs can write, and links.
        """
        budget = MAX_ENTRIES
        for folder in [*self._installed, *self._application]:
            resolved = lookup(folder)
            fd = self._open(resolved)
            if fd is None or resolved.real is None:
                continue
            private = {*self._private, _temporary()}
            left_out = {path for path in private if is_under(path, resolved.real)}
            left_out |= self._writable_below(resolved.real)
            if not os.path.isdir(resolved.real) or (folder in self._installed and not left_out):
                yield Grant(fd, READ)
                continue
            names = tuple(_entries(resolved.real, left_out))
            budget -= len(names)
            if budget < 0:
                raise ConfigError(
                    f"{folder} is on sys.path and has too many entries to allow them to a task one "
                    f"by one (more than {MAX_ENTRIES:,}): start the worker in a folder of its own"
                )
            yield Grant(fd, READ_DIR)  # Python lists the folders that it imports from
            yield Grant(fd, READ, names)

    def _writable_below(self, folder: str) -> set[str]:
        """What the tasks may write below a folder. Code is not there."""
        resolved_paths = (
            lookup(path).real for task in self.tasks for path in task.permissions.write
        )
        return {real for real in resolved_paths if real is not None and is_under(real, folder)}

    def _open(self, resolved: ResolvedPath) -> int | None:
        """A descriptor of a file that is open from now on. None if this user cannot reach it."""
        if resolved.real is None:
            return None
        key = ("path", resolved.real)
        if key not in self._opened:
            try:
                self._keep(key, os.open(resolved.real, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
            except OSError:
                return None
        return self._opened[key]

    def _keep(self, key: tuple[str, ...], fd: int) -> int:
        import fcntl  # not on Windows, where this module is imported too

        self._opened[key] = moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
        os.close(fd)
        return moved


def read_grants(table: int) -> list[Grant]:
    """The grants of a child: `table` is the first of its inherited descriptors."""
    size = os.fstat(table).st_size
    return msgspec.msgpack.decode(os.pread(table, size, 0), type=list[Grant])


def allow(rules: Ruleset, grants: Iterable[Grant]) -> None:
    """Add the grants to a ruleset. What has been removed since the worker started is left out."""
    for grant in grants:
        if grant.entries is None:
            rules.allow_open(grant.fd, grant.access)
        for name in grant.entries or ():
            rules.allow_existing([name], grant.access, below=grant.fd)


def _named(permissions: Permissions) -> list[tuple[str, str]]:
    return [(option, path) for option in _ACCESS for path in getattr(permissions, option)]


def _temporary() -> str:
    """The folder in which children get their temporary folders."""
    return os.path.realpath(tempfile.gettempdir())


def _entries(folder: str, left_out: set[str]) -> Iterator[str]:
    """The entries of a folder as relative paths, without some files below it, and without links.

    A folder that contains one of these files is replaced by its own entries. Hidden entries are
    left out: code is not there.
    """
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:  # this user cannot read it
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink() or entry.path in left_out:
                continue
            if any(is_under(path, entry.path) for path in left_out):
                waiting.append(entry.path)
            else:
                yield os.path.relpath(entry.path, folder)
