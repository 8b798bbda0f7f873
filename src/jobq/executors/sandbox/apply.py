"""Puts permissions in force for this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence

from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.sandbox import calls, defaults, granted_files, limits, privileges
from jobq.executors.sandbox.descriptors import Descriptors
from jobq.executors.sandbox.kernel import (
    Kernel,
    missing,
    missing_features,
    this_kernel_to_a_child,
)
from jobq.executors.sandbox.landlock import EXECUTE, READ, READ_FILE, WRITE, WRITE_FILE, Ruleset
from jobq.executors.sandbox.workspace import Workspace

# The parts of a sandbox, by which `without` leaves one out.
PARTS = (
    "variables",
    "processes",
    "namespaces",
    "descriptors",
    "limits",
    "capabilities",
    "privileges",
    "death",
    "landlock",
    "seccomp",
)


_MAX_LEFT = 16
"""Descriptors. Those that jobs leave open stay taken, and a child has few (`files=`)."""


class Sandbox:
    """The permissions in force for this process."""

    def __init__(self, permissions: Permissions, workspace: Workspace, files: Descriptors) -> None:
        self.permissions = permissions
        self.workspace = workspace
        self._files = files

    def ready(self) -> None:
        """Start-up is over: what is open now stays open from job to job."""
        self._files.keep_opened()

    def end_job(self) -> bool:
        """Take away what a job has left: its temporary files and its open descriptors.

        Returns whether this process may serve another job: not if jobs have left many descriptors.
        Memory and threads stay. A child that serves one job only isolates fully.
        """
        with self._files.room():
            left = self._files.neutralise_others()
            self.workspace.clear()
        return left <= _MAX_LEFT


def apply(
    permissions: Permissions,
    *,
    keep_fds: Iterable[int] = (),
    workspace: Workspace | None = None,
    run: Sequence[str] = (),
) -> Sandbox:
    """Restrict this process to the permissions, and every process that it starts. For good.

    Call it when jobq is imported and before the application is, in a process without other threads.
    Descriptors are closed, except for the standard streams and `keep_fds`. `run` are programs that
    may be run besides those of the permissions. Raises ConfigError if the kernel cannot enforce the
    permissions, unless they say `enforce="best-effort"`.
    """
    kernel = this_kernel_to_a_child()
    worker_has_checked = workspace is not None and workspace.inherited
    lacking = (missing_features if worker_has_checked else missing)(permissions, kernel)
    if lacking and permissions.enforce == "all":
        raise ConfigError(f"permissions cannot be enforced: {'; '.join(lacking)}")
    own = workspace or Workspace.open(permissions)
    try:
        return restrict(permissions, kernel=kernel, keep_fds=keep_fds, workspace=own, run=run)
    except BaseException:
        if workspace is None:
            own.close()
        raise


def restrict(
    permissions: Permissions,
    *,
    kernel: Kernel,
    keep_fds: Iterable[int],
    workspace: Workspace,
    run: Sequence[str] = (),
    without: frozenset[str] = frozenset(),
) -> Sandbox:
    """Put in force what the kernel offers. `without` names parts to leave out.

    The order matters: each step needs what a later one takes away.
    """
    if len(os.listdir("/proc/self/task")) > 1:  # also threads that Python does not know
        raise RuntimeError("permissions are applied before a process starts other threads")
    files = Descriptors(keep_fds)
    ruleset: list[Ruleset] = []

    def make_ruleset() -> None:
        if kernel.landlock:
            ruleset.append(_ruleset(permissions, kernel, workspace, run))

    def enforce_ruleset() -> None:
        for made in ruleset:
            made.enforce()

    def filter_calls() -> None:
        if kernel.seccomp:
            calls.make_filter(permissions, landlock_version=kernel.landlock).install()

    steps: list[tuple[str, Callable[[], None]]] = [
        ("variables", lambda: _keep_variables(permissions)),
        ("processes", lambda: _count_processes(permissions, kernel, workspace)),
        ("namespaces", lambda: _leave_network(permissions)),
        ("descriptors", lambda: files.close_others(workspace.inherited)),
        ("landlock", make_ruleset),
        ("descriptors", lambda: _close(workspace.inherited)),
        ("limits", lambda: limits.limit_resources(permissions)),
        ("capabilities", privileges.drop_capabilities),
        ("privileges", privileges.forbid_new_privileges),
        ("death", privileges.die_with_parent),  # after all changes of rights
        ("landlock", enforce_ruleset),
        ("seccomp", filter_calls),
    ]
    for part, step in steps:
        if part not in without:
            step()
    _use_folder(workspace.folder)
    return Sandbox(permissions, workspace, files)


def _close(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _keep_variables(permissions: Permissions) -> None:
    kept = defaults.environment(permissions, os.environ)
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ.update(kept)


def _use_folder(folder: str) -> None:
    """Make the workspace the place for temporary files, and the home folder."""
    os.environ["TMPDIR"] = os.environ["HOME"] = folder
    tempfile.tempdir = folder


def _count_processes(permissions: Permissions, kernel: Kernel, workspace: Workspace) -> None:
    """Limit the number of processes and threads.

    Without `processes` the filter refuses processes, and threads are limited where that is
    possible.
    """
    for group in workspace.cgroups:
        limits.join_cgroup(group)
    if workspace.counts:
        return
    if not kernel.root and privileges.works_in_a_fork(privileges.own_user):
        privileges.own_user()
        limits.limit_processes(permissions.processes)
    elif permissions.processes and permissions.enforce == "all":
        raise ConfigError("the number of processes cannot be limited here")


def _leave_network(permissions: Permissions) -> None:
    """A second line behind the filter, where this user may make namespaces."""
    if permissions.network is not False:
        return
    for step in (privileges.leave_network, privileges.leave_network_as_own_user):
        if privileges.works_in_a_fork(step):
            step()
            return


def _ruleset(
    permissions: Permissions, kernel: Kernel, workspace: Workspace, run: Sequence[str]
) -> Ruleset:
    ports = () if isinstance(permissions.network, bool) else permissions.network
    rules = Ruleset(kernel.landlock, ports=permissions.network is not True)
    rules.allow_existing(defaults.system(network=bool(permissions.network)), READ)
    rules.allow_existing([defaults.NULL], READ_FILE | WRITE_FILE)
    rules.allow(workspace.folder, READ | WRITE)
    if workspace.inherited:
        granted_files.allow(rules, granted_files.read_grants(workspace.inherited[0]))
    else:  # no worker has opened the files: this process does
        opened = granted_files.Held([granted_files.Confined("this process", permissions)])
        granted_files.allow(rules, opened.grants(permissions))
        opened.close()
    programs = [*run, *(defaults.loaders() if run or permissions.run else ())]
    rules.allow_existing(programs, EXECUTE | READ_FILE)
    for port in ports:
        rules.allow_connect(port)
    return rules
