"""One child process, seen from the worker: its socket, its output, its job and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import msgspec

from jobq.core.policies import Permissions
from jobq.core.printable import one_line
from jobq.executors.ends import Died, Ended, Interrupted
from jobq.executors.exits import Exit
from jobq.executors.handlers import Address
from jobq.executors.pool.messages import (
    Done,
    Frames,
    FromChild,
    Hello,
    Incoherent,
    NoteRequest,
    Ready,
    Request,
    Start,
    Stopped,
    ToChild,
    Unready,
    decode_from_child,
    frame,
)
from jobq.executors.pool.output import Output, readable_bytes
from jobq.executors.pool.requests import serve
from jobq.executors.pool.shared import Shared, make_shared
from jobq.executors.running import Running
from jobq.executors.sandbox import Sandboxes, Watch, environment, visible_urls

log = logging.getLogger("jobq")

_BOOT = (
    "import sys; fds = [int(n) for n in sys.argv[1:3]]; sys.path[:] = sys.argv[3:]; "
    "sys.argv[:] = ['jobq']; from jobq.executors.pool.inside.main import main; main(*fds)"
)
_CHUNK = 2**15
"""Bytes that one read takes at most. For more, the C library would map memory for every read."""
_LOGGED = 1000
"""Bytes of one read that the worker logs, if a child prints while it runs no job."""


class Group(NamedTuple):
    """The jobs that a child may run. A child never serves two tenants or two sets of rights."""

    tenant: str
    permissions: Permissions | None


class Child:
    """Starts the process. `on_free` is called when it can take a job, `on_end` when it is dead."""

    def __init__(
        self,
        group: Group,
        *,
        tasks: tuple[Address, ...],
        stores: Mapping[str, str],
        measure: bool,
        lifespan: tuple[str, str] | None = None,
        sandboxes: Sandboxes,
        on_free: Callable[[Child], None],
        on_end: Callable[[Child], None],
    ) -> None:
        self.group = group
        self.ready = False
        self.problem: str | None = None  # why it could not start
        self.jobs = 0
        self.memory = 0  # bytes in use after its last job
        self.used_up = False  # it says that it cannot run another job
        self.idle_since = 0.0
        self.run: Running | None = None
        self.ending = False  # it takes no more jobs
        self.dead = False
        self.killed = False
        self.timer: asyncio.TimerHandle | None = None
        self._on_free = on_free
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Ended] | None = None
        self._output: Output | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._frames = Frames()
        self._unsent = bytearray()
        permissions = group.permissions
        self._sandboxes = sandboxes
        self._workspace = None if permissions is None else sandboxes.workspace(permissions)
        self._watch: Watch | None = None  # with permissions
        urls = dict(stores) if permissions is None else visible_urls(permissions, stores)
        # A process with permissions runs code that the application need not trust, so it gets
        # none of the application's resources.
        own = lifespan if permissions is None else None
        hello = Hello(os.getpid(), tasks, urls, measure, permissions, self._workspace, own)
        try:
            self._start(hello)
        except BaseException:
            self._remove_workspace()
            raise

    def __str__(self) -> str:
        return f"child process {self.process.pid}"

    # ── starting ──

    def _start(self, hello: Hello) -> None:
        with ExitStack() as theirs, ExitStack() as ours:
            here, there = socket.socketpair()
            ours.callback(here.close)
            theirs.callback(there.close)
            self._printed, printed = os.pipe()
            ours.callback(os.close, self._printed)
            theirs.callback(os.close, printed)
            shared = make_shared()
            theirs.callback(os.close, shared)
            self._shared = Shared(shared)
            ours.callback(self._shared.close)
            inherited = () if hello.workspace is None else hello.workspace.inherited
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    _BOOT,
                    str(there.fileno()),
                    str(shared),
                    *sys.path,
                ],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[there.fileno(), shared, *inherited],
                env=None
                if hello.permissions is None
                else environment(hello.permissions, os.environ),
                start_new_session=True,  # Ctrl-C reaches the worker only; grandchildren are killed
            )
            ours.pop_all()  # they stay open while the process lives
        self._socket = here
        here.setblocking(False)
        os.set_blocking(self._printed, False)
        self._loop.add_reader(here, self._readable)
        self._loop.add_reader(self._printed, self._read_output)
        self._exit = Exit(self.process.pid, self._exited)
        if hello.permissions is not None and hello.workspace is not None:
            self._watch = self._sandboxes.watch(
                hello.permissions, hello.workspace, self.process.pid
            )
        self._send(hello)

    # ── jobs ──

    def start(self, run: Running, task: Address, now_ms: int) -> asyncio.Future[Ended]:
        """Send a job to the idle child. Returns a future of how it ends."""
        self._ended = self._loop.create_future()
        if self.dead:  # it died after it was chosen for this job
            self._ended.set_result(Died(self.process.returncode, begun=False))
            return self._ended
        self.run = run
        self.jobs += 1
        if self._watch is not None:
            self._watch.begin(self.kill)
        self._send(Start(self.jobs, task, run.lease, now_ms))
        return self._ended

    def ask_to_stop(self) -> None:
        """Raise CancelledError in the handler."""
        if not self.dead:
            self._shared.asked = self.jobs
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and the processes that it has started."""
        if not self.dead:
            self.killed = True
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, timeout_s: float) -> None:
        """Let the idle child end by itself. It is killed if that takes longer."""
        self.ending = True
        if not self.dead:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self.timer = self._loop.call_later(timeout_s, self.kill)

    # ── sending and receiving ──

    def _send(self, message: ToChild) -> None:
        data = frame(message)
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # it is dead: `_exited` follows
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._send_rest)
        self._unsent += data

    def _send_rest(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it ends or has ended: `_exited` follows
            self._loop.remove_reader(self._socket)
            return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._received(decode_from_child(body))
        except (Incoherent, msgspec.DecodeError) as error:
            log.error("%s is killed: it sent %s", self, one_line(str(error)))
            self.kill()

    def _received(self, message: FromChild) -> None:
        if isinstance(message, (Done, Stopped)):
            self.memory = message.memory
            left = self._watch is not None and self._watch.left_processes()
            self.used_up = message.last or left  # its end kills them
            self._end_job(message.outcome if isinstance(message, Done) else Interrupted())
        elif isinstance(message, Request):
            if self.run is not None:
                self._serve(self.run, message)
        elif isinstance(message, Ready):
            self.ready = True
            self._on_free(self)
        elif isinstance(message, Unready):
            self.problem = message.message

    def _serve(self, run: Running, request: Request) -> None:
        if isinstance(request, NoteRequest) and request.lines:
            # What was printed before comes before.
            self._read_printed()
            if self._output is not None:
                request = msgspec.structs.replace(
                    request, lines=(*self._output.take(), *request.lines)
                )
        task = self._loop.create_task(self._reply(run, request))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _reply(self, run: Running, request: Request) -> None:
        reply = await serve(run, request)
        if self.run is run:
            self._send(reply)

    def _read_printed(self) -> None:
        """Read all that was printed until now."""
        left = readable_bytes(self._printed)
        while left > 0 and (read := self._read_output()):
            left -= read

    def _read_output(self) -> int:
        """Read some output. Returns the number of bytes."""
        try:
            data = os.read(self._printed, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._printed)
        elif self.run is None:
            text = data[:_LOGGED].decode("utf-8", "replace").rstrip()
            log.info("%s: %s", self, one_line(text))
        else:
            if self._output is None:
                self._output = Output(self.run)
            self._output.add(data)
        return len(data)

    # ── the end of a job, and of the process ──

    def _end_job(self, ended: Ended) -> None:
        if self.run is None or self._ended is None:
            return
        self._read_printed()  # it was written before the end was reported
        future, self._ended = self._ended, None
        output, self._output, self.run = self._output, None, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._watch is not None:
            self._watch.end()
        if output is None:
            _resolve(future, ended)
        else:
            task = self._loop.create_task(_stored(output, future, ended))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
        if not self.dead and not self.killed:
            self._on_free(self)

    def _exited(self) -> None:
        if self.dead:
            return
        # The whole group, before its leader is waited for: until then its number is not reused.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self._watch is not None:
            self._watch.end()
        status = self.process.wait()  # at once: it has ended
        if self._watch is not None:
            self._watch.close()
            if self._watch.exceeded and status == -signal.SIGKILL and self.run is not None:
                status, self.killed = -signal.SIGXCPU, False  # whoever killed it, that is why
        self.dead = True
        self._read_rest()
        if self.timer is not None:
            self.timer.cancel()
        begun = self._shared.begun == self.jobs
        self._end_job(Died(status, killed=self.killed, begun=begun))
        self._close()
        self._on_end(self)

    def _read_rest(self) -> None:
        """Read the messages that the child sent before it died."""
        with suppress(OSError):
            while data := self._socket.recv(_CHUNK):
                self._feed(data)

    def _close(self) -> None:
        for reader in (self._socket, self._printed):
            self._loop.remove_reader(reader)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._shared.close()
        os.close(self._printed)
        self._exit.close()
        self._remove_workspace()

    def _remove_workspace(self) -> None:
        if self._workspace is not None:
            with suppress(OSError):  # a process that the handler started may still write there
                self._workspace.close()


async def _stored(output: Output, future: asyncio.Future[Ended], ended: Ended) -> None:
    try:
        await output.finish()
    except Exception as error:
        log.warning("the output of a job was not stored: %s", error)
    finally:
        _resolve(future, ended)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
