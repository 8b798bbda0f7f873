"""Runs a program for each job: any language, JSON in and out.

The program gets the job's arguments as a JSON object on its standard input. Its result is JSON on
its standard output, or on descriptor 3. What it writes to its standard error becomes the job's log.

| exit code | means |
|---|---|
| 0 | completed |
| 65 | rejected: the job fails, however many retries are left |
| 75 | try again: the job is retried as its policy says, whatever errors the policy names |
| others | an ordinary failure |

There is no shell. The program has a process group of its own, which is killed when the program has
ended, and when it goes on after it was asked to stop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from jobq.core.control import Reject, RetryAfter
from jobq.core.policies import Permissions, Retry
from jobq.core.records.failures import bounded
from jobq.core.records.jobs import Lease
from jobq.core.rules import backoff
from jobq.core.rules.decide import Raised, Returned, decide, policy_of
from jobq.errors import ConfigError
from jobq.executors.exits import Died, Ended, Exit, Interrupted
from jobq.executors.handlers import Callee, ProgramCall
from jobq.executors.pool.output import Output, read_until_now
from jobq.executors.running import Running
from jobq.executors.sandbox import Watch, explain_signal
from jobq.executors.sandbox.launch import Order
from jobq.executors.sandbox.launch import command as launched
from jobq.executors.settings import ExecutorSettings

# A program that runs for a job: its process group, its pipes and its end.

RESULT = 3
"""The descriptor on which a program may write its result."""
_CHUNK = 2**16
"""Bytes of one read or write: what a pipe holds."""
_STARTING_MS = 1000
"""Processor time that the launcher of a program with permissions may take."""
_MIN_FD = 10
"""Descriptors of ours are above those that the program gets."""


class Written(NamedTuple):
    """What a program has written, and its exit status (negative: a signal)."""

    status: int
    stdout: bytes
    result: bytes
    last_line: str  # of its standard error


class Program:
    """Starts a program. `ended` is done when it has ended and its log is stored."""

    def __init__(
        self,
        run: Running,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        stdin: bytes,
        *,
        limit: int,
        inherited: Iterable[int] = (),
        watch: Callable[[int], Watch] | None = None,
    ) -> None:
        """`limit` is how many bytes of its output are kept. More cannot be a result.

        `inherited` are descriptors that the program gets. `watch` is called with its process id.
        """
        self.stopped = False  # it was asked to stop
        self.killed = False
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Written] = self._loop.create_future()
        self._log = Output(run)
        self._last = b""
        self._limit = limit
        self._data = {1: bytearray(), RESULT: bytearray()}
        self._stdin = memoryview(stdin)
        self._timer: asyncio.TimerHandle | None = None
        self._pipes: dict[int, int] = {}  # the program's descriptor → our end
        self._start(arguments, variables, inherited)
        self._watch = None if watch is None else watch(self.pid)
        if self._watch is not None:
            self._watch.begin(self.kill, starting_ms=_STARTING_MS)
        self._exit = Exit(self.pid, self._exited)
        for number, fd in self._pipes.items():
            if number:
                self._loop.add_reader(fd, self._read, number, fd)
            else:
                self._loop.add_writer(fd, self._write, fd)

    def _start(
        self, arguments: Sequence[str], variables: Mapping[str, str], inherited: Iterable[int]
    ) -> None:
        theirs: dict[int, int] = {}
        try:
            for number in (0, 1, 2, RESULT):
                ends = [_moved_up(fd) for fd in os.pipe()]
                theirs[number], self._pipes[number] = ends if number == 0 else reversed(ends)
            self.pid = os.posix_spawnp(
                arguments[0],
                list(arguments),
                variables,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, fd, number)
                    for number, fd in (*theirs.items(), *((fd, fd) for fd in inherited))
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them
            )
        except BaseException:
            for fd in self._pipes.values():
                os.close(fd)
            raise
        finally:
            for fd in theirs.values():
                os.close(fd)
        for fd in self._pipes.values():
            os.set_blocking(fd, False)

    # ── stopping ──

    def stop(self, grace_s: float) -> None:
        """Ask the program to stop, and kill it after `grace_s`."""
        if not self.stopped:
            self.stopped = True
            self._signal(signal.SIGTERM)
            self._timer = self._loop.call_later(grace_s, self.kill)

    def kill(self) -> None:
        """Kill the process group."""
        self.killed = self.killed or not self.ended.done()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    # ── its pipes ──

    def _write(self, fd: int) -> None:
        try:
            written = os.write(fd, self._stdin[:_CHUNK])
            self._stdin = self._stdin[written:]
        except BlockingIOError:
            return
        except OSError:  # it does not want to read more
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._close(0)

    def _read(self, number: int, fd: int) -> int:
        """Read once. Returns the number of bytes: 0 if there is nothing to read now, or no more."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._close(number)
            return 0
        if number == 2:
            self._log.add(data)
            self._last = (self._last + data)[-_CHUNK:]
        else:
            kept = self._data[number]
            kept += data[: self._limit - len(kept)]
        return len(data)

    def _close(self, number: int) -> None:
        fd = self._pipes.pop(number, None)
        if fd is not None:
            (self._loop.remove_reader if number else self._loop.remove_writer)(fd)
            os.close(fd)

    # ── its end ──

    def _exited(self) -> None:
        # The whole group, before its leader is waited for: until then its number is not reused.
        self._signal(signal.SIGKILL)
        if self._watch is not None:
            self._watch.end()
        _, status = os.waitpid(self.pid, 0)
        if self._watch is not None:
            self._watch.close()
            if self._watch.exceeded and os.WIFSIGNALED(status):
                status, self.killed = signal.SIGXCPU, False
        if self._timer is not None:
            self._timer.cancel()
        for number in (2, 1, RESULT):
            if (fd := self._pipes.get(number)) is not None:
                read_until_now(fd, partial(self._read, number, fd))
        for number in tuple(self._pipes):
            self._close(number)
        self._exit.close()
        self._finishing = self._loop.create_task(self._finish(os.waitstatus_to_exitcode(status)))

    async def _finish(self, status: int) -> None:
        stdout, result = bytes(self._data[1]), bytes(self._data[RESULT])
        if result and stdout:  # the result is elsewhere, so this is for people
            self._log.add(stdout)
        try:
            await self._log.finish()
        finally:
            if not self.ended.done():
                last = self._last.decode("utf-8", "replace").strip().rpartition("\n")[2]
                self.ended.set_result(Written(status, stdout, result, last))


def _moved_up(fd: int) -> int:
    """The same pipe at a higher number, so that it is not one that the program gets."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    os.close(fd)
    return moved


REJECTED = 65  # EX_DATAERR of sysexits.h
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
KEPT_VARIABLES = ("LANG", "PATH", "TZ")
"""Variables that every program gets, besides those that its task names."""


class CommandFailed(Exception):
    """A program ended with an exit code that is not 0."""


class Command(Callee, Protocol):
    """A task that is a program."""

    @property
    def programs(self) -> Sequence[str]:
        """The programs that it may run."""
        ...

    @property
    def env(self) -> Sequence[str]:
        """The names of variables that the program gets."""
        ...

    @property
    def permissions(self) -> Permissions | None:
        """What the program may do. None: what the worker may."""
        ...

    @property
    def max_payload(self) -> int | None:
        """How many bytes a result may take."""
        ...

    def call(self, lease: Lease) -> ProgramCall:
        """The command line and the input for a job. Raises UnfitArguments if one is wrong."""
        ...


class CommandExecutor:
    """Starts a program for each job. The worker's slots limit their number."""

    apart: Literal[True] = True

    def __init__(self, settings: ExecutorSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._sandboxes = settings.sandboxes
        self._running: dict[Running, Program] = {}

    async def start(self, tasks: Iterable[tuple[str, str, str, Any]]) -> None:
        """Check that the programs of the tasks exist."""
        for _, queue, _, task in tasks:
            for program in task.programs:
                if shutil.which(program) is None:
                    raise ConfigError(
                        f"task {task.name} of queue {queue}: there is no program {program!r} that "
                        "can be run"
                    )

    async def run(self, run: Running, handler: Any, begin: Callable[[], None]) -> Ended:
        """Run the program of a job."""
        task: Command = handler
        arguments, stdin = task.call(run.lease)
        begin()
        permissions = task.permissions
        workspace = None if permissions is None else self._sandboxes.workspace(permissions)
        try:
            variables = _variables(task, run.lease)
            watch = None
            if permissions is not None and workspace is not None:
                watch = partial(self._sandboxes.watch, permissions, workspace)
                arguments = launched(
                    Order(
                        permissions,
                        workspace,
                        variables=_own(run.lease),
                        keep_fds=(3,),
                        env=tuple(task.env),
                    ),
                    arguments,
                )
                variables = dict(os.environ)  # the launcher passes on what is allowed
            program = self._running[run] = Program(
                run,
                arguments,
                variables,
                stdin,
                limit=(task.max_payload or 2**20) + 1,
                inherited=() if workspace is None else workspace.inherited,
                watch=watch,
            )
            written = await program.ended
            return self._outcome(run, task, program, written)
        finally:
            self._running.pop(run, None)
            if workspace is not None:
                workspace.close()

    def stop(self, run: Running, grace_s: float) -> None:
        """Send SIGTERM to the program's process group, and SIGKILL after `grace_s`."""
        if (program := self._running.get(run)) is not None:
            program.stop(grace_s)

    def kill(self, run: Running) -> None:
        """Kill the program's process group."""
        if (program := self._running.get(run)) is not None:
            program.kill()

    async def aclose(self) -> None:
        """Kill the programs that still run."""
        programs = list(self._running.values())
        for program in programs:
            program.kill()
        if programs:
            await asyncio.wait([program.ended for program in programs], timeout=5)

    def _outcome(self, run: Running, task: Command, program: Program, written: Written) -> Ended:
        """How the run ended, by the exit status and what the program wrote."""
        status, lease = written.status, run.lease
        if status < 0 or program.killed:
            if program.stopped and not program.killed:
                return Interrupted()
            return _died(status, program.killed, task)
        if program.stopped and status != 0:
            return Interrupted()
        end: Returned | Raised
        try:
            end = Returned(task.encode(_result(written, status, task, lease), lease))
        except Exception as error:
            end = Raised(error)
        return decide(lease, end, retry=task.retry, now_ms=run.now_ms, random=random.random)


def _result(written: Written, status: int, task: Command, lease: Lease) -> Any:
    """The result of a program that has ended. Raises what its exit code means."""
    if status == 0:
        data = written.result or written.stdout
        if not data.strip():
            return None
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CommandFailed(
                f"what {task.name} wrote as its result is not JSON: {error}"
            ) from None
    last = written.last_line
    words = bounded(f"exit code {status}{f': {last}' if last else ''}")
    if status == REJECTED:
        raise Reject(words)
    failed = CommandFailed(words)
    if status == TRY_AGAIN:
        raise RetryAfter(_delay_ms(task.retry, lease, failed) / 1000) from failed
    raise failed


def _delay_ms(retry: Retry, lease: Lease, error: Exception) -> int:
    """The delay that the policy gives to the next retry."""
    policy = policy_of(lease, retry)
    delay = backoff.delay_ms(policy, lease.failures + 1, error, random.random)
    return 0 if delay is None else delay


def _died(status: int, killed: bool, task: Command) -> Died:
    if task.permissions is not None and status < 0 and not killed:
        denied = explain_signal(-status, task.permissions, task.name)
        if denied is not None:
            return Died(status, why=f"{type(denied).__name__}: {denied}")
    return Died(status, killed=killed)


def _variables(task: Command, lease: Lease) -> dict[str, str]:
    """The environment of a program: what its task names, and a few facts about the job."""
    named = (*KEPT_VARIABLES, *task.env)
    kept = {name: os.environ[name] for name in named if name in os.environ}
    return {**kept, **_own(lease)}


def _own(lease: Lease) -> dict[str, str]:
    """What a program can read about its job."""
    return {
        "JOBQ_JOB": lease.id,
        "JOBQ_TASK": lease.name,
        "JOBQ_QUEUE": lease.queue.queue,
        "JOBQ_ATTEMPT": str(lease.attempt),
    }


def open(settings: ExecutorSettings) -> CommandExecutor:
    """Return an executor for the running event loop."""
    return CommandExecutor(settings)
