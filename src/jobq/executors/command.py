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
import os
import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

import msgspec

from jobq.core.control import Reject, RetryAfter
from jobq.core.policies import Permissions, Retry
from jobq.core.records.failures import bounded
from jobq.core.records.jobs import Lease
from jobq.core.rules import backoff
from jobq.core.rules.decide import Raised, Returned, decide, policy_of
from jobq.errors import ConfigError
from jobq.executors.exits import Died, Ended, Interrupted
from jobq.executors.handlers import Callee, ProgramCall
from jobq.executors.programs import Program, Written
from jobq.executors.running import Running
from jobq.executors.sandbox import explain_signal
from jobq.executors.sandbox.launch import Order
from jobq.executors.sandbox.launch import command as launched
from jobq.executors.settings import ExecutorSettings

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
