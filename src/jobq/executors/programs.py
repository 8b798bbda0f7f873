"""A program that runs for a job: its process group, its pipes and its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from jobq.executors.exits import Exit
from jobq.executors.pool.output import Output, read_until_now
from jobq.executors.running import Running
from jobq.executors.sandbox import Watch

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
        try:
            status = self._reaped()
        except BaseException as error:  # nobody else would end the run and give its slot back
            if not self.ended.done():
                self.ended.set_exception(error)
            return
        self._finishing = self._loop.create_task(self._finish(status))

    def _reaped(self) -> int:
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
        return os.waitstatus_to_exitcode(status)

    async def _finish(self, status: int) -> None:
        try:
            if self._data[RESULT] and self._data[1]:  # the result is elsewhere: this is for people
                self._log.add(bytes(self._data[1]))
            await self._log.finish()
        finally:
            self._end(status)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            last = self._last.decode("utf-8", "replace").strip().rpartition("\n")[2]
            stdout, result = bytes(self._data[1]), bytes(self._data[RESULT])
            self.ended.set_result(Written(status, stdout, result, last))


def _moved_up(fd: int) -> int:
    """The same pipe at a higher number, so that it is not one that the program gets."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    os.close(fd)
    return moved
