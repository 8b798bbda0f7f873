"""The processes of a job: the worker counts their time, and makes sure that they end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from jobq.core.policies import Permissions
from jobq.executors.cpus import usable_cpus
from jobq.executors.sandbox.granted_files import Confined, Held
from jobq.executors.sandbox.limits import cgroup_ms, members
from jobq.executors.sandbox.syscalls import supported
from jobq.executors.sandbox.workspace import Workspace

_SHORTEST_S = 0.1
"""Seconds between two looks at the processor time of a job, at least: a look costs up to 5 ms."""
_LONGEST_S = 5.0
_SAMPLE_S = 0.25
"""Seconds between two looks without a control group: what a process uses after the last look at it
is not counted, unless another process of the job waits for it."""
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10.0
_LENIENCY_MS = 50
"""The kernel's limit of one process and the time that it reports differ by a few ticks."""


# The guard reads a line per process group that begins (+) or has ended (-). It goes on until the
# worker closes the pipe or dies.
_GUARD = """
import os, select, signal, sys
groups, rest, watched = set(), b"", [0]
try:
    worker = os.pidfd_open(int(sys.argv[1]))
    watched.append(worker)
    if os.getppid() != int(sys.argv[1]): watched = []
except OSError: pass
while watched:
    ready = select.select(watched, [], [])[0]
    data = os.read(0, 65536) if 0 in ready else b""
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    if not data: break
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except OSError: pass
"""


class Guard:
    """A process that kills the processes of jobs when the worker dies.

    The kernel kills a child with its worker, but not the processes that the child has started.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it runs. Raises OSError if the system refuses."""
        if self._process is None or self._process.poll() is not None:
            self._start()

    def add(self, group: int) -> None:
        """Guard the processes of this process group."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """The processes of this group are dead."""
        if group in self._groups:
            self._groups.discard(group)
            self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard. It kills the groups that are left."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()

    def _tell(self, line: str) -> None:
        pipe = None if self._process is None else self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(pipe.fileno(), line.encode())

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},
            cwd="/",
            start_new_session=True,  # signals to the worker's group are not meant for it
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._tell("".join(f"+{group}\n" for group in self._groups))


class Watch:
    """The processes of one child with permissions: a process group that they cannot leave."""

    def __init__(
        self, permissions: Permissions, workspace: Workspace, pid: int, guard: Guard
    ) -> None:
        self._limit_ms = permissions.cpu_ms
        self._several = permissions.processes > 0
        self._workspace = workspace
        self._pid = pid
        self._base_ms = 0
        self._seen: dict[int, int] = {}  # without a control group: the last look at each process
        self._total_ms = 0  # the sum of what was added since
        self._timer: asyncio.TimerHandle | None = None
        self.exceeded = False  # the job has used more processor time than it may
        self._guard = guard
        if self._several:
            guard.add(pid)

    def begin(self, kill: Callable[[], None], *, starting_ms: int = 0) -> None:
        """A job begins. `kill` is called when its processes have used too much processor time.

        One process needs no looking at: the kernel limits it. `starting_ms` is what the process
        will use before it is restricted: a control group does not count that.
        """
        if self._limit_ms is not None:
            counted = any(cgroup_ms(group) is not None for group in self._workspace.cgroups)
            self._base_ms = self.used_ms() + (0 if counted else starting_ms)
            if self._several:
                self._check(kill)

    def end(self) -> None:
        """The job has ended. Call it before its process is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._limit_ms is not None:
            left = self._limit_ms - (self.used_ms() - self._base_ms)
            self.exceeded = self.exceeded or left <= _LENIENCY_MS

    def close(self) -> None:
        """All processes are dead."""
        self._guard.remove(self._pid)

    def left_processes(self) -> bool:
        """Whether a job that has ended has left processes behind."""
        if not self._several:
            return False
        for group in self._workspace.cgroups:
            return any(pid != self._pid for pid in members(group))
        return any(pid != self._pid for pid, _, _ in self._processes())

    def _processes(self) -> list[tuple[int, int, int]]:
        """The processes that have not been waited for: pid and milliseconds.

        The time is that of the process itself, and that of processes which it has waited for.
        """
        pids = filter(str.isdecimal, os.listdir("/proc")) if self._several else [str(self._pid)]
        found = []
        for pid in pids:
            with suppress(OSError):
                # The name is in brackets, and may contain anything.
                fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._pid:
                    ms = [int(int(ticks) * _TICK_MS) for ticks in fields[11:15]]
                    found.append((int(pid), ms[0] + ms[1], ms[2] + ms[3]))
        return found

    def used_ms(self) -> int:
        """The processor time of the child and its processes."""
        for group in self._workspace.cgroups:
            if (used := cgroup_ms(group)) is not None:
                return used
        whole = 0
        for pid, own, waited_for in self._processes():
            whole += own + waited_for
            self._total_ms += max(0, own - self._seen.get(pid, 0))
            self._seen[pid] = own
        # Neither sum counts anything twice, and each one misses something: the first one what
        # nobody waits for, the second one what happens between two looks.
        return max(whole, self._total_ms)

    def _check(self, kill: Callable[[], None]) -> None:
        assert self._limit_ms is not None
        left = self._limit_ms - (self.used_ms() - self._base_ms)
        if left <= 0:
            self.exceeded = True
            kill()
            return
        longest = _LONGEST_S if self._workspace.cgroups else _SAMPLE_S
        soonest = max(_SHORTEST_S, left / 1000 / usable_cpus())
        self._timer = asyncio.get_running_loop().call_later(
            min(longest, soonest), self._check, kill
        )


# What a worker keeps for all its children with permissions.


class Sandboxes:
    """The files that children may use, and a guard that ends their processes with the worker."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._guard = Guard()

    def prepare(self, tasks: Iterable[Confined], stores: Iterable[str]) -> None:
        """Open the files of these tasks. `stores` are the URLs of the worker's stores.

        Nothing happens if that was done. ConfigError if the permissions of one task would give away
        files of the worker or of another task.
        """
        tasks = list(tasks)
        if tasks and self._held is None and supported():
            self._held = Held(tasks, tuple(stores))

    def workspace(self, permissions: Permissions) -> Workspace:
        """Prepare what a child with these permissions needs."""
        if self._held is None and supported():
            self._held = Held([])
        if permissions.processes:
            self._guard.start()
        return Workspace.open(permissions, self._held)

    def watch(self, permissions: Permissions, workspace: Workspace, pid: int) -> Watch:
        """Watch a child that has been started, and the processes that it starts."""
        return Watch(permissions, workspace, pid, self._guard)

    def close(self) -> None:
        """The children have ended."""
        self._guard.close()
        if self._held is not None:
            self._held.close()
            self._held = None
