"""Puts a world in place of time, chance and threads, for as long as a simulation runs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import jobq.stores
from jobq.api.task_handler import TaskHandler
from jobq.client import ids
from jobq.engine import processes, runner
from jobq.engine.batches import Batches
from jobq.engine.identity import _process
from jobq.engine.interrupts import Interrupts
from jobq.engine.journal import Journal
from jobq.engine.keeper import Keeper
from jobq.engine.last_chance import LastChance
from jobq.engine.run import Run
from jobq.engine.runner import Runner
from jobq.executors import thread
from jobq.executors.inline import InlineExecutor
from jobq.executors.thread import ThreadExecutor
from jobq.stores.sqlite import database, transactions
from jobq.stores.sqlite.transactions import GROUP, TransactionThread
from tests.simulation.world import SimLoop, World, running_process

SCHEME = "sim"
"""Stores with this scheme are reached through the simulated network."""


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Everything inside sees the world's time and chance, and starts no thread."""
    chance = random.Random(f"{world.seed}/chance")
    state = random.getstate()
    was_collecting = gc.isenabled()
    gc.disable()  # collecting a coroutine runs its `finally`, at a time that nobody controls
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=lambda _: None, finalizer=lambda _: None)  # the same
    with ExitStack() as stack:
        for target, name, put in _replacements(world, chance):
            stack.enter_context(patch.object(target, name, put))
        stack.enter_context(_log_told(world))
        stack.enter_context(
            patch.dict(jobq.stores._SCHEMES, {SCHEME: ("tests.simulation.network", None)})
        )
        _process.cache_clear()
        ids._reset()
        random.seed(f"{world.seed}/random")
        try:
            yield
        finally:
            random.setstate(state)
            sys.set_asyncgen_hooks(*hooks)
            if was_collecting:
                gc.enable()
    _process.cache_clear()
    ids._reset()


def _replacements(world: World, chance: random.Random) -> list[tuple[Any, str, Any]]:
    def monotonic() -> float:
        return world.now

    def urandom(n: int) -> bytes:
        return chance.randbytes(n)

    def token_hex(n: int | None = None) -> str:
        return chance.randbytes(n or 32).hex()

    return [
        *((owner, name, _may_raise(getattr(owner, name))) for owner, name in RUN_CALLS),
        (Runner, "rescue", _rescues(Runner.rescue)),
        (time, "monotonic", monotonic),
        (time, "perf_counter", monotonic),
        (time, "time", lambda: world.wall_ms / 1000),
        (time, "time_ns", lambda: world.wall_ms * 1_000_000),
        (runner, "monotonic", monotonic),
        (processes, "monotonic", monotonic),
        (os, "urandom", urandom),
        (secrets, "token_hex", token_hex),
        (Keeper, "_start_thread", _keep_in_loop),
        (Run, "__hash__", _stable_hash),
        (ThreadExecutor, "_add_thread", _count_thread),
        (thread, "SimpleQueue", _Threads),
        (TransactionThread, "start", _start),
        (TransactionThread, "stop", _stop),
        (TransactionThread, "submit", _submit),
        (database, "Checkpointer", _NoCheckpoints),
    ]


RUN_CALLS: tuple[tuple[Any, str], ...] = (
    (runner, "decide"),
    *((Runner, name) for name in ("_launch", "around", "close", "conclude", "decide", "raised")),
    *((Batches, name) for name in ("add", "stop_run", "_bound", "_outcome")),
    *((Interrupts, name) for name in ("arm", "interrupt", "_time_out", "_cancel_run")),
    *((Interrupts, name) for name in ("_lease_lost", "_request_stop", "_settle_unfinished")),
    *((Journal, name) for name in ("started", "ended", "failed")),
    *((LastChance, name) for name in ("concerns", "close", "turn")),
    *((TaskHandler, name) for name in ("bind", "encode")),
    (InlineExecutor, "call"),
    (ThreadExecutor, "call"),
)
"""What a runner calls about one run: `Raise` counts these calls."""


class SimulatedError(Exception):
    """What such a call raises."""


def _rescues(function: Any) -> Any:
    """`rescue` is what errors end in. What it calls to close a run may not raise as well."""

    @wraps(function)
    def call(*args: Any) -> None:
        loop = asyncio._get_running_loop()
        if isinstance(loop, SimLoop):
            loop.process.rescuing = True
        try:
            function(*args)
        finally:
            if isinstance(loop, SimLoop):
                loop.process.rescuing = False

    return call


def _may_raise(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, SimLoop):  # a coroutine is closed at the end of the world
            return function(*args, **kwargs)
        process = loop.process
        if process.rescuing and function.__name__ in ("close", "conclude"):
            return function(*args, **kwargs)
        process.run_calls += 1
        if process.raise_at and process.run_calls in process.raise_at:
            process.raise_at.discard(process.run_calls)
            process.world.tell(process.name, f"{function.__qualname__} raises")
            raise SimulatedError
        return function(*args, **kwargs)

    return call


def _keep_in_loop(keeper: Keeper) -> None:
    """Run a keeper in another loop of its process."""

    async def live() -> None:
        try:
            await keeper._main()
        finally:
            keeper._at_home(keeper._ended)

    running_process().add_loop("keeper").create_task(live())


def _stable_hash(run: Run) -> int:
    """Sets of runs are iterated in the same order each time: the default hash is an address."""
    return zlib.crc32(run.lease.token.encode())


# ── threads of handlers ───────────────────────────────────────────────────────────────────────────


class _Threads:
    """The threads of an executor. They take virtual time (`Process.thread_s`) and never wait."""

    def __init__(self) -> None:
        self._process = running_process()

    def put(self, work: Any) -> None:
        """Call a function in a thread."""
        if work is not None:
            self._process.main.call_later(self._process.rng.choice((0.0, 0.001)), self._run, work)

    def _run(self, work: Any) -> None:
        process = self._process
        process.thread_s = 0.0
        work.run()
        process.main.call_later(process.thread_s, self._finish, work)

    def _finish(self, work: Any) -> None:
        executor = work.of.runner.executors["thread"]
        executor._finished.append(work)
        executor._collect()


def _count_thread(executor: ThreadExecutor) -> None:
    """A thread of `_Threads` needs no start."""
    executor._threads += 1


# ── the store's threads ───────────────────────────────────────────────────────────────────────────


def _start(self: TransactionThread, connection: Any) -> None:
    self._connection = connection
    self._thread = self  # type: ignore[assignment]  # not None: it is open


def _stop(self: TransactionThread) -> None:
    if self._thread is not None:
        self._thread = None
        assert self._connection is not None
        self._connection.close()


def _submit(
    self: TransactionThread, small: bool, clock: Any, work: Callable[..., Any], args: Any
) -> asyncio.Future[Any]:
    """Run a request at once, or a little later together with others: both happen with threads."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    future: asyncio.Future[Any] = loop.create_future()
    request = transactions._Request(work, args, clock, loop, future)
    waiting: list[Any] = self.__dict__.setdefault("_waiting", [])
    if small and self._at_once and not waiting and loop.process.rng.random() < 0.8:
        answers = self._run([request], wait=True)
        assert answers is not None
        transactions._resolve(answers)
    else:
        waiting.append(request)
        if len(waiting) == 1:
            loop.call_later(loop.process.rng.choice((0.0, 0.0002, 0.001)), _serve, self)
    return future


def _serve(self: TransactionThread) -> None:
    waiting: list[Any] = self.__dict__["_waiting"]
    group, waiting[:] = waiting[:GROUP], waiting[GROUP:]
    if self._thread is None:
        return
    answers = self._run(group, wait=True)
    assert answers is not None
    transactions._resolve(answers)
    if waiting:
        asyncio.get_running_loop().call_soon(_serve, self)


class _NoCheckpoints:
    """The log of a simulated store stays short."""

    def __init__(self, connection: Any, *_: Any) -> None:
        self._connection = connection

    def written(self, rows: int) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        self._connection.close()


# ── the log ───────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _log_told(world: World) -> Iterator[None]:
    """What the engine logs is part of the trace. An error that nothing explains is a problem."""
    log = logging.getLogger("jobq")
    handler = _Teller(world)
    before = (log.handlers, log.propagate, log.level)
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = before[0], before[1]
        log.setLevel(before[2])


EXPECTED = ("does not respond:", "failed for good")
"""Errors that the engine logs as a consequence of faults, or of what handlers raise."""


class _Teller(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add the line to the trace."""
        loop = asyncio._get_running_loop()
        who = loop.process.name if isinstance(loop, SimLoop) else "?"
        message = record.getMessage()
        self._world.tell(who, f"{record.levelname.lower()}: {message}")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, SimulatedError):
            return
        if record.levelno >= logging.ERROR and not any(part in message for part in EXPECTED):
            self._world.problem(f"{who} logged an error: {message} ({error!r})")
