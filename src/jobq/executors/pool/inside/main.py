"""The program of a child process: imports the tasks, and runs one job after the other."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any
from weakref import WeakSet

from jobq.core.control import Reject
from jobq.core.policies import UNDECLARED
from jobq.core.records.failures import bounded
from jobq.core.records.jobs import AnyOutcome
from jobq.core.rules.decide import Raised, Returned, decide
from jobq.core.rules.outcomes import check_outcome
from jobq.errors import ConfigError, JobqError
from jobq.executors import handlers, sandbox
from jobq.executors.lifespan import Lifespan, find_lifespan
from jobq.executors.pool.inside.run import RunInChild
from jobq.executors.pool.inside.worker_connection import WorkerConnection, WorkerGone
from jobq.executors.pool.messages import Done, Hello, Ready, Shared, Start, Stopped, Unready
from jobq.executors.running import running
from jobq.stores.base.urls import refuse

_PR_SET_PDEATHSIG = 1
_DEFAULT_RETRY = UNDECLARED
_MEMORY_STORE = (
    "memory:// is the memory of the worker, which a child process cannot reach: enqueue with "
    "`current_job().add(…)`, or use sqlite:// or a server"
)


def main(descriptor: int, memory: int) -> None:
    """Serve the worker at the other end of this socket until it closes the socket or dies.

    `memory` is a descriptor of the memory that this process shares with the worker.
    """
    shared = Shared(memory)
    os.close(memory)
    connection = WorkerConnection(socket.socket(fileno=descriptor), shared)
    try:
        hello = connection.receive()
        assert isinstance(hello, Hello)
        _die_with(hello.worker)
        child = Child(connection, hello)
        try:
            child.restrict(descriptor)
            child.prepare()
        except ConfigError as error:
            connection.send(Unready(bounded(str(error))))
            return
        connection.send(Ready())
        try:
            while True:
                start = connection.receive()
                assert isinstance(start, Start)
                child.run(start)
        finally:
            child.close()
    except WorkerGone:
        pass


class Child:
    """Runs the jobs that the worker sends."""

    def __init__(self, connection: WorkerConnection, hello: Hello) -> None:
        self._connection = connection
        self._hello = hello
        self._known: dict[handlers.Address, handlers.Callee] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sandbox: sandbox.Sandbox | None = None
        self._flush_c: Callable[[None], Any] = ctypes.CDLL(None).fflush
        self._memory = _Memory() if hello.measure else None
        self._lifespan: Lifespan | None = None
        self._created: WeakSet[asyncio.Task[Any]] = WeakSet()  # by the job, if there is a lifespan
        self._state: Any = None  # the value of the lifespan

    def restrict(self, descriptor: int) -> None:
        """Give up all rights but the permissions, before anything of the application is imported.

        ConfigError if the kernel cannot enforce them.
        """
        permissions = self._hello.permissions
        if permissions is None:
            return
        kept = [descriptor, *([] if self._memory is None else self._memory.descriptors)]
        self._sandbox = sandbox.apply(permissions, keep_fds=kept, workspace=self._hello.workspace)
        if os.getppid() != self._hello.worker:  # it died while the rights were changed
            raise WorkerGone

    def prepare(self) -> None:
        """Import all tasks. ConfigError if one cannot be found."""
        refuse("memory", _MEMORY_STORE)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a real file here
        _buffer_lines_in_c()
        handlers.use_stores(self._hello.stores)
        for address in self._hello.tasks:
            self._find(address)
        if self._sandbox is not None:
            self._loop = self._new_loop()  # its descriptors outlive each job
            self._sandbox.ready()

        if self._hello.lifespan is not None:
            self._open_lifespan(self._hello.lifespan)

    def _open_lifespan(self, address: tuple[str, str]) -> None:
        """Enter the worker's lifespan in this process. ConfigError if that fails."""
        self._loop = self._new_loop()
        self._loop.set_task_factory(self._jobs_tasks)
        try:
            self._lifespan = Lifespan(find_lifespan(address), None, lambda: None)
            self._state = self._loop.run_until_complete(self._lifespan.start())
        except Exception as error:
            raise ConfigError(
                f"the lifespan {'.'.join(address)} failed in a child process: "
                f"{type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        """Leave the lifespan. The worker kills the process if that takes too long."""
        if self._lifespan is not None and self._loop is not None:
            self._loop.run_until_complete(self._lifespan.stop())

    def run(self, start: Start) -> None:
        """Run one job and report how it ended."""
        self._connection.begin_job(start.n)
        outcome = copy_context().run(self._outcome, start)
        self._connection.end_job()
        self._flush()
        last = self._sandbox is not None and not self._sandbox.end_job()
        memory = 0 if self._memory is None else self._memory.used()
        if outcome is None:
            self._connection.send(Stopped(start.n, memory, last))
            return
        try:
            check_outcome(outcome)
            self._connection.send(Done(start.n, outcome, memory, last))
        except JobqError as error:  # the worker would not take it: it waits for too many jobs
            end, at_ms = Raised(Reject(str(error))), start.now_ms
            outcome = decide(
                start.lease, end, retry=_DEFAULT_RETRY, now_ms=at_ms, random=random.random
            )
            self._connection.send(Done(start.n, outcome, memory, last))

    def _outcome(self, start: Start) -> AnyOutcome | None:
        """Call the handler. None if it stopped because it was asked to."""
        lease = start.lease
        handler: handlers.Callee | None = None
        run: RunInChild | None = None
        end: Returned | Raised
        try:
            handler = self._find(start.task)
            self._connection.limit(getattr(handler, "max_payload", None))
            run = RunInChild(start.n, lease, handler, self._connection, start.now_ms)
            run.state = self._state
            running.set(run)
            args, kwargs = handler.bind(lease)
            value = self._connection.call(handler.fn, args, kwargs)
            if asyncio.iscoroutine(value):
                value = self._await(value)
            end = Returned(handler.encode(value, lease))
        except asyncio.CancelledError as error:
            if self._connection.stop_asked:
                return None
            end = Raised(error)
        except WorkerGone:
            raise
        except BaseException as error:
            end = Raised(self._explained(error, lease.name))
        return decide(
            lease,
            end,
            retry=_DEFAULT_RETRY if handler is None else handler.retry,
            now_ms=start.now_ms if run is None else run.now_ms,
            random=random.random,
            encode=None if run is None else run.save,
            checkpoint=None if run is None else run.checkpoint,
        )

    def _find(self, address: handlers.Address) -> handlers.Callee:
        try:
            return self._known[address]
        except KeyError:
            handler = self._known[address] = handlers.find(address)
            return handler

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async handler. Tasks that it leaves behind are cancelled: their job has ended."""
        if self._loop is None:
            self._loop = self._new_loop()
        loop, connection = self._loop, self._connection
        task = connection.task = loop.create_task(coroutine)
        connection.loop = loop
        if connection.stop_asked:  # before there was a task to cancel
            task.cancel()
        try:
            return loop.run_until_complete(task)
        finally:
            connection.task = connection.loop = None
            left = asyncio.all_tasks(loop)
            if self._lifespan is not None:
                left &= set(self._created)
                self._created.clear()
            for other in left:
                other.cancel("its job has ended")
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _jobs_tasks(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """A task factory that remembers the tasks of jobs. Those of the lifespan stay."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        if running.get(None) is not None:
            self._created.add(task)
        return task

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop

    def _explained(self, error: BaseException, task: str) -> BaseException:
        """The error, in the words of the permissions if the kernel refused something."""
        permissions = self._hello.permissions
        denied = None if permissions is None else sandbox.explain(error, permissions, task)
        if denied is None:
            return error
        # Not as its cause: the traceback of both is the same.
        return denied.with_traceback(error.__traceback__)

    def _flush(self) -> None:
        """Write what the handler printed, also by C code, before the end of the job is reported."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the handler may have closed or replaced it
                stream.flush()
        self._flush_c(None)


def _buffer_lines_in_c() -> None:
    """Let C code write its output line by line, as Python does."""
    library = ctypes.CDLL(None)
    with suppress(ValueError):  # the C library has another name for it
        library.setvbuf(ctypes.c_void_p.in_dll(library, "stdout"), None, 1, 0)


class _Memory:
    """The memory that this process uses, in bytes. Where the kernel does not say: the peak."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        with suppress(FileNotFoundError):
            self.descriptors.append(os.open("/proc/self/statm", os.O_RDONLY))

    def used(self) -> int:
        """The memory in use now."""
        for statm in self.descriptors:
            return int(os.pread(statm, 100, 0).split()[1]) * os.sysconf("SC_PAGESIZE")
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _die_with(worker: int) -> None:
    """Let the kernel kill this process when the worker dies, where the kernel can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # the worker died before that
        raise WorkerGone
