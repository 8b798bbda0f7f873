"""Virtual time, processes, and a scheduler that draws which event loop makes the next step."""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any

START_MS = 1_700_000_040_000
"""The machine's clock when a world begins: a whole minute in November 2023."""
MAX_STEPS = 2_000_000
"""Steps after which a world is stopped: a loop that spins without letting time pass."""


class WorldStuck(Exception):
    """The world made too many steps, or nothing can ever happen in it again."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated thread. The world calls its callbacks, in their order."""

    def __init__(self, process: Process, name: str) -> None:
        super().__init__()
        self.process = process
        self.name = name
        self.frozen_until = 0.0
        self.spawned: list[asyncio.Task[Any]] = []  # so that no task of a dead process is collected
        self._thread_id: int | None = threading.get_ident()  # it is always running
        self._ready: Any
        self._scheduled: Any
        self._timer_cancelled_count: int
        self.set_exception_handler(self._report)
        self.set_task_factory(self._make)

    def time(self) -> float:
        return self.process.world.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """The same as asyncio's, without its checks: it is called for every step."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Call the function at once: there are no threads."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def add_signal_handler(self, sig: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Nobody sends signals to a simulated process."""

    def remove_signal_handler(self, *_: Any) -> bool:
        return True

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Notices between handles of one process do not use their sockets."""

    def remove_reader(self, *_: Any) -> bool:
        return True

    def _make(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self.spawned.append(task)
        if len(self.spawned) > 500:
            self.spawned = [each for each in self.spawned if not each.done()]
        return task

    def _report(self, loop: Any, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        error = context.get("exception")
        if message.startswith("Task was destroyed"):
            return
        self.process.world.problem(f"{self.process.name}: {message}: {error!r}")

    # ── called by the world ──

    def fire_timers(self, now: float) -> None:
        """Make the callbacks ready whose time has come."""
        while self._scheduled and self._scheduled[0]._when <= now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(handle)

    def next_timer(self) -> float:
        """When the next callback is due. Infinite: there is none."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        return scheduled[0]._when if scheduled else math.inf

    def step(self) -> None:
        """Call one callback."""
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)

    def shut(self) -> None:
        """Close the loop, and the coroutines that still wait in it."""
        self._thread_id = None
        for task in self.spawned:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        self.close()


class Process:
    """A simulated process: event loops that live, freeze and die together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.steps = 0
        self.calls = 0  # calls of the store that it has sent
        self.rng = Random(f"{world.seed}/{name}")
        self.blocked = False  # a handler has blocked its main thread
        self.thread_s = 0.0  # virtual seconds that the last function called in a thread takes
        self.kill_at_step: int | None = None
        self.run_calls = 0  # calls that its runner has made about runs
        self.raise_at: set[int] = set()  # those that raise
        self.rescuing = False  # it handles such an error
        self.loops: list[SimLoop] = []
        self.add_loop("main")

    @property
    def main(self) -> SimLoop:
        return self.loops[0]

    def add_loop(self, name: str) -> SimLoop:
        """Another thread of the process."""
        loop = SimLoop(self, name)
        self.loops.append(loop)
        self.world.loops.append(loop)
        return loop

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run this in the main thread."""
        return self.main.create_task(work)

    def kill(self) -> None:
        """Kill it, as SIGKILL does: no callback of it runs any more, and no `finally`."""
        if self.alive:
            self.alive = False
            self.world.tell(self.name, "killed")
            self.world.loops = [loop for loop in self.world.loops if loop.process is not self]
            for hook in self.world.on_death:
                hook(self)

    def freeze(self, seconds: float, *, main_only: bool = False) -> None:
        """Stop it for a while, as SIGSTOP does, or only its main thread."""
        for loop in self.loops[:1] if main_only else self.loops:
            loop.frozen_until = max(loop.frozen_until, self.world.now + seconds)
        self.blocked |= main_only
        self.world.tell(
            self.name, f"{'main thread ' if main_only else ''}frozen for {seconds:.1f} s"
        )


class World:
    """All that happens in a simulation. The same seed and the same program give the same trace."""

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        self.seed = seed
        self.now = 1000.0  # what time.monotonic returns
        self.wall_offset_ms = START_MS - 1_000_000
        self.rng = Random(f"{seed}/scheduler")
        self.loops: list[SimLoop] = []
        self.all: list[Process] = []
        self.on_death: list[Callable[[Process], None]] = []
        self.network: Any = None
        self.problems: list[str] = []
        self.story: list[tuple[float, str, str]] | None = [] if keep_story else None
        self.over = False
        self.steps = 0
        self._digest = blake2b(digest_size=16)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def process(self, name: str) -> Process:
        """Start a process."""
        made = Process(self, name)
        self.all.append(made)
        return made

    @property
    def wall_ms(self) -> int:
        """The machine's clock."""
        return int(self.now * 1000) + self.wall_offset_ms

    @property
    def digest(self) -> str:
        """Identifies the trace so far."""
        return self._digest.hexdigest()

    def tell(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        if self.over:
            return
        self._digest.update(f"{self.now:.6f} {who} {what}\n".encode())
        if self.story is not None:
            self.story.append((self.now - 1000.0, who, what))

    def problem(self, what: str) -> None:
        """Note that an invariant is broken."""
        self.problems.append(what)
        self.tell("!", what)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something outside of all processes: deliver a message, or cause a fault."""
        heapq.heappush(self._due, (self.now + seconds, next(self._order), act))

    def run(self, until: Callable[[], bool]) -> None:
        """Make steps until the condition is met."""
        while not until():
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise WorldStuck(f"no end after {self.steps:,} steps, at {self.now - 1000:.1f} s")
            if not self._step():
                self._advance()

    def _step(self) -> bool:
        now = self.now
        ready = [loop for loop in self.loops if loop._ready and loop.frozen_until <= now]
        if not ready:
            return False
        chance = self.rng.random  # `choice` takes three times as long
        loop = ready[0] if len(ready) == 1 else ready[int(chance() * len(ready))]
        process, scheduled = loop.process, loop._scheduled
        for _ in range(_BURSTS[int(chance() * len(_BURSTS))]):
            loop.step()
            process.steps += 1
            if process.steps == process.kill_at_step:
                process.kill()
            if scheduled and scheduled[0]._when <= now:
                loop.fire_timers(now)
            if not process.alive or loop.frozen_until > now or not loop._ready:
                break
        return True

    def _advance(self) -> None:
        """Let time pass until something happens."""
        now, soonest = self.now, self._due[0][0] if self._due else math.inf
        for loop in self.loops:
            due = loop.next_timer()
            if loop.frozen_until > now:
                due = loop.frozen_until if loop._ready else max(loop.frozen_until, due)
            if due < soonest:
                soonest = due
        if soonest == math.inf:
            raise WorldStuck(f"nothing can happen any more, at {now - 1000:.1f} s")
        self.now = now = max(now, soonest)
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        for loop in self.loops:
            scheduled = loop._scheduled
            if scheduled and scheduled[0]._when <= now and loop.frozen_until <= now:
                loop.fire_timers(now)

    def close(self) -> None:
        """End all processes."""
        self.over = True
        for process in self.all:
            for loop in process.loops:
                loop.shut()


def _close(coroutine: Any) -> None:
    """Close a coroutine now. If it were collected later, its `finally` would run at any time."""
    for _ in range(20):
        try:
            coroutine.close()
            return
        except BaseException:  # it waits in a `finally`: close that wait too
            continue


_BURSTS = (1, 1, 1, 2, 4, 16)
"""Callbacks that a loop calls before another loop gets a turn: threads run for a while."""


def running_process() -> Process:
    """The process whose code runs now."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop.process
