"""One child process, seen from the worker: its socket, its output, its job and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import msgspec

from jobq.core.policies import Permissions
from jobq.core.records.failures import bounded
from jobq.core.rules.outcomes import check_outcome
from jobq.core.values.printable import one_line
from jobq.errors import JobqError
from jobq.executors.exits import Died, Ended, Exit, Interrupted
from jobq.executors.handlers import Address
from jobq.executors.pool.messages import (
    LEGAL,
    SHORT,
    WINDOW,
    Done,
    Frames,
    FromChild,
    Hello,
    Incoherent,
    NoteRequest,
    Ready,
    Reply,
    Request,
    SharedFile,
    Start,
    State,
    Stopped,
    decode_from_child,
    frame,
    longest,
)
from jobq.executors.pool.output import Output, read_until_now, readable_bytes
from jobq.executors.pool.requests import serve
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
_MOST_LOGGED = 20
"""Reads that the worker logs before the child's next job. The rest is dropped."""
_LONG_S = 0.01
"""A read whose messages take longer than this is followed by a pause, so that the worker's event
loop can do something else however fast a child sends."""
_PAUSES = 4
"""How much longer than such a read the pause is."""
_HANG_UP_S = 1.0
"""How long a process may live after it has closed the line. Usually it is about to end."""


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
        self.state = State.STARTING
        self.problem: str | None = None  # why it could not start
        self.jobs = 0
        self.memory = 0  # bytes in use after its last job
        self.used_up = False  # it says that it cannot run another job
        self.idle_since = 0.0
        self.run: Running | None = None
        self.dead = False
        self.killed = False  # by the worker, because it had to end
        self.timer: asyncio.TimerHandle | None = None
        self._on_free = on_free
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Ended] | None = None
        self._output: Output | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._unanswered = 0  # requests of its job
        self._max_payload: int | None = None  # of its job
        self._why: str | None = None  # what it did that it may not
        self._later: asyncio.TimerHandle | None = None  # ends a pause, or a child that hung up
        self._logged = 0
        self._frames = Frames(SHORT)
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
            self._shared = SharedFile()
            ours.callback(self._shared.close)
            shared = self._shared.descriptor
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
        self._send(frame(hello))

    # ── jobs ──

    def start(
        self, run: Running, task: Address, now_ms: int, max_payload: int | None = None
    ) -> asyncio.Future[Ended]:
        """Send a job to the idle child. Returns a future of how it ends.

        Its handler may encode `max_payload` bytes.
        """
        data = frame(Start(self.jobs + 1, task, run.lease, now_ms))
        ended: asyncio.Future[Ended] = self._loop.create_future()
        if self.state is State.IDLE and not self.dead and readable_bytes(self._socket.fileno()):
            self._break("it sent something while it had no job")
        if self.dead or self.state is not State.IDLE:  # since it was chosen for this job
            ended.set_result(Died(self.process.returncode or -signal.SIGKILL, begun=False))
            return ended
        self.state = State.BUSY
        self.jobs += 1
        self.run, self._ended, self._max_payload = run, ended, max_payload
        self._unanswered = self._logged = 0
        self._frames.limit = longest(max_payload)
        if self._watch is not None:
            self._watch.begin(self.kill)
        self._send(data)
        return ended

    def ask_to_stop(self) -> None:
        """Raise CancelledError in the handler."""
        if not self.dead and self.state is State.BUSY:
            self.state = State.ASKED
            self._shared.ask(self.jobs)
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and the processes that it has started."""
        if not self.dead:
            self.killed = True
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Ask the process to stop, or kill it and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            send = os.killpg if number == signal.SIGKILL else os.kill
            send(self.process.pid, number)

    def end(self, timeout_s: float) -> None:
        """Let the idle child end by itself. It is killed if that takes longer."""
        if self.dead:
            return
        if self.state is State.IDLE:
            self.state = State.ENDING
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.timer = self._loop.call_later(timeout_s, self.kill)

    # ── sending and receiving ──

    def _send(self, data: bytes) -> None:
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
        began = self._loop.time()
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hung_up()
            return
        self._feed(data)
        took_s = self._loop.time() - began
        if took_s > _LONG_S and self.state is not State.BROKEN:
            self._stop_reading()
            self._later = self._loop.call_later(took_s * _PAUSES, self._resume)

    def _resume(self) -> None:
        self._later = None
        self._loop.add_reader(self._socket, self._readable)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._socket)
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _feed(self, data: bytes) -> None:
        """Take what the child has sent. Whatever is wrong with it is the end of this child only."""
        try:
            self._expect_some()
            for body in self._frames.feed(data):
                self._received(decode_from_child(body))
            if self._frames.partial:
                self._expect_some()
        except Incoherent as error:
            self._break(f"it sent {error}")

    def _expect_some(self) -> None:
        if not LEGAL[self.state]:
            raise Incoherent(f"something while it {self.state.value}")

    def _received(self, message: FromChild) -> None:
        if isinstance(message, (Done, Stopped)) and self.run is not None and message.n < self.jobs:
            return  # see LEGAL
        kind = type(message)
        after = LEGAL[self.state].get(kind)
        if after is None:
            raise Incoherent(f"{kind.__name__} while it {self.state.value}")
        if isinstance(message, Request):
            assert self.run is not None
            self._serve(self.run, message)
        elif isinstance(message, (Done, Stopped)):
            ended = self._reported(message)
            self.state = after
            self._end_job(ended)
        elif isinstance(message, Ready):
            self.state = after
            if not self.dead:
                self._on_free(self)
        else:
            self.state = after
            self.problem = bounded(message.message)

    def _reported(self, message: Done | Stopped) -> Ended:
        """How its job has ended. Incoherent if no run of this job can end like that."""
        left = self._watch is not None and self._watch.left_processes()
        self.memory, self.used_up = message.memory, message.last or left  # its end kills them
        if message.n > self.jobs:
            raise Incoherent("the end of another job")
        if isinstance(message, Stopped):
            return Interrupted()
        assert self.run is not None
        outcome = message.outcome
        if (outcome.queue, outcome.id, outcome.token) != self.run.ref:
            raise Incoherent("the end of another job")
        try:
            check_outcome(outcome, max_payload=self._max_payload)
        except JobqError as error:
            raise Incoherent(f"an end of its job that is wrong: {error}") from None
        return outcome

    def _break(self, why: str) -> None:
        """Kill a child that did what it may not do, and listen to it no longer."""
        self._why = bounded(one_line(why), 500)
        self.problem = self.problem or self._why
        self.state = State.BROKEN
        self._stop_reading()
        if not self.dead:
            log.error("%s is killed: %s", self, self._why)
            self._signal(signal.SIGKILL)

    def _hung_up(self) -> None:
        """The child has closed the line. It ends or has ended, or it does not intend to."""
        self._stop_reading()
        if self.state is not State.ENDING:
            self.state = State.ENDING
            self._later = self._loop.call_later(
                _HANG_UP_S, self._break, "it closed the line and did not end"
            )

    def _serve(self, run: Running, request: Request) -> None:
        if self._unanswered >= WINDOW:
            raise Incoherent(f"more than {WINDOW} requests without waiting for replies")
        self._unanswered += 1
        if isinstance(request, NoteRequest) and request.lines:
            # What was printed before comes before.
            self._read_printed()
            if self._output is not None:
                request = msgspec.structs.replace(
                    request, lines=(*self._output.take(), *request.lines)
                )
        task = self._loop.create_task(self._reply(run, serve(run, request, self._max_payload)))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _reply(self, run: Running, served: Awaitable[Reply]) -> None:
        reply = await served
        if self.run is run:
            self._unanswered -= 1
            self._send(frame(reply))

    def _read_printed(self) -> None:
        """Read all that was printed until now."""
        read_until_now(self._printed, self._read_output)

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
            self._log_printed(data)
        else:
            if self._output is None:
                self._output = Output(self.run)
            self._output.add(data)
        return len(data)

    def _log_printed(self, data: bytes) -> None:
        """Log what the child prints while it has no job."""
        self._logged += 1
        if self._logged <= _MOST_LOGGED:
            text = data[:_LOGGED].decode("utf-8", "replace").rstrip()
            log.info("%s: %s", self, one_line(text))
            if self._logged == _MOST_LOGGED:
                log.info("%s: what it prints until its next job is not logged", self)

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
        if self.state is State.IDLE and not self.dead and not self.killed:
            self._on_free(self)

    def _exited(self) -> None:
        if self.dead:
            return
        # The whole group, before its leader is waited for: until then its number is not reused.
        self._signal(signal.SIGKILL)
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
        begun = self._shared.has_begun(self.jobs)
        why = None if self._why is None else f"the process of the job was killed: {self._why}"
        self._end_job(Died(status, killed=self.killed, begun=begun, why=why))
        self._close()
        self._on_end(self)

    def _read_rest(self) -> None:
        """Read the messages that the child sent before it died.

        Not to the end of the line: a process that left the group may still write to it.
        """
        left = readable_bytes(self._socket.fileno())
        with suppress(OSError):
            while left > 0 and self.state is not State.BROKEN:
                data = self._socket.recv(min(left, _CHUNK))
                if not data:
                    break
                left -= len(data)
                self._feed(data)

    def _close(self) -> None:
        self._stop_reading()
        self._loop.remove_reader(self._printed)
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
