"""Raises an error at a chosen call that the engine makes, and the jobs to do that with.

A raise point is a call from one function of the engine to another function, Python's or C's: the
n-th time that it is made. `sys.setprofile` sees these calls, and what its function raises, the call
raises.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from uuid import uuid4

import jobq
from jobq import CallNext, CurrentJob, Queue, Reject, Retry, Snooze, Worker, current_job
from jobq.client.ids import new_id
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Claim, JobKey, JobSpec
from jobq.core.records.states import State
from jobq.core.values.codec import JSON
from jobq.stores.base import Store
from jobq.stores.sqlite import SqliteStore
from tests.waiting import forever, until

_HOME = Path(jobq.__file__).parent
WATCHED = frozenset(
    str((_HOME / f"{name}.py").resolve(strict=True))
    for name in (
        *(
            f"engine/{name}"
            for name in (
                "batches",
                "exchange",
                "fetcher",
                "handler",
                "interrupts",
                "journal",
                "last_chance",
                "notes",
                "processes",
                "run",
                "runner",
            )
        ),
        *(f"executors/{name}" for name in ("command", "inline", "process", "programs", "thread")),
        *(f"core/{name}" for name in ("rules/backoff", "rules/decide", "records/failures")),
        "api/middleware",
        "api/task_handler",
    )
)
"""Calls from these files are raise points."""
TRUSTED = frozenset({"Runner.guard", "Runner.rescue", "Slots.give", "Bell.ring", "Program._end"})
"""Calls that are none: they are what gives a slot back."""
PASSING_ON = frozenset({"ThreadExecutor._collect", "Program._end"})
"""Functions whose calls are none. They only pass on what another thread or a program has done, and
what they call is C that raises nothing."""


class Boom(Exception):
    """What a raise point raises."""


class Point(NamedTuple):
    """The n-th call of one function by another, from 1 on."""

    caller: str
    callee: str
    n: int

    def __str__(self) -> str:
        return f"{self.caller} → {self.callee} #{self.n}"


class Injector:
    """Counts the calls, and raises at one of them. Calls of other threads are not seen."""

    def __init__(self, point: Point | None = None) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.raised = False
        self._point = point
        self._in_c: list[FrameType] = []  # the callers of C functions that have not returned

    def __enter__(self) -> Injector:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            # Not where a coroutine goes on: its own `finally` would be skipped.
            caller = frame.f_back
            if caller is None or frame.f_lineno != frame.f_code.co_firstlineno:
                return
            if self._in_c and self._in_c[-1] is caller:
                return  # a call of C code: asyncio's, or the garbage collector's
            callee = frame.f_code.co_qualname
        elif event == "c_call":
            caller, callee = frame, arg.__qualname__
            self._in_c.append(frame)
        else:
            if event != "return" and self._in_c:
                self._in_c.pop()
            return
        if caller.f_code.co_filename not in WATCHED or callee in TRUSTED:
            return
        call = (caller.f_code.co_qualname, callee)
        if call[0] in PASSING_ON:
            return
        self.seen[call] += 1
        if self._point is not None and not self.raised and self._point == (*call, self.seen[call]):
            self.raised = True
            sys.setprofile(None)
            raise Boom(str(self._point))

    @property
    def points(self) -> list[Point]:
        """A point for each call that was seen, and for its first repetitions."""
        return sorted(
            Point(*call, n)
            for call, times in self.seen.items()
            for n in range(1, min(times, REPETITIONS) + 1)
        )


REPETITIONS = 2
"""The second call often happens in another state: another run of a batch, another exchange."""

# ── the jobs ──────────────────────────────────────────────────────────────────────────────────────

LATER = Retry(3, base=3600)
"""A failed run waits until the test is over."""
queue = Queue("forced", "memory://forced")
lone = Queue("lone", "memory://forced")  # for jobs on their last chance


async def _watch(job: CurrentJob, call_next: CallNext) -> object:
    return await call_next(job)


class Gone:
    """Handlers in threads wait here, until a test lets them go."""

    event = threading.Event()


def _meet(fate: str) -> object:
    if fate == "fail":
        raise ValueError("forced")
    if fate == "reject":
        raise Reject("forced")
    if fate == "snooze":
        raise Snooze(3600, saved={"a": 1})
    return object() if fate == "strange" else fate


async def _inline(fate: str = "ok") -> Any:
    if fate == "hang":
        await forever()
    if fate == "notes":
        job = current_job()
        await job.log("a line")
        await job.save({"page": 1})
        await job.progress(0.5)
    return _meet(fate)


def _thread(fate: str = "ok") -> Any:
    if fate == "hang":
        Gone.event.wait(60)
    return _meet(fate)


def _apart(fate: str = "ok") -> Any:
    if fate == "hang":
        threading.Event().wait(60)
    if fate == "print":
        print("a line")  # noqa: T201  becomes a log line of the job
    if fate == "die":
        sys.exit(3)
    return _meet(fate)


inline = queue.task(name="inline", retry=LATER)(_inline)
brief = queue.task(name="brief", retry=LATER, timeout=0.05, grace=0.05)(_inline)
alone = lone.task(name="alone", retry=LATER)(_inline)
thread = queue.task(name="thread", retry=LATER)(_thread)
thread_brief = queue.task(name="thread_brief", retry=LATER, timeout=0.05, grace=0.05)(_thread)
process = queue.task(name="process", retry=LATER, executor="process")(_apart)
process_brief = queue.task(
    name="process_brief", retry=LATER, executor="process", timeout=0.5, grace=0.05
)(_apart)
_SCRIPT = ["sh", "-c", "{script}"]
command = queue.command("command", _SCRIPT, retry=LATER)
command_brief = queue.command("command_brief", _SCRIPT, retry=LATER, timeout=0.1, grace=0.05)


@queue.batch_task(size=3, retry=LATER)
async def batch(items: list[str]) -> list[Any]:
    if "hang" in items:
        await forever()
    if "fail" in items:
        raise ValueError("forced")
    return [ValueError("forced") if item == "own" else _meet(item) for item in items]


@queue.batch_task(size=3, window=0.02, retry=LATER, timeout=0.1, grace=0.05)
def slow_batch(items: list[str]) -> list[Any]:
    if "hang" in items:
        Gone.event.wait(60)
    return list(items)


@lone.batch_task(size=3, retry=LATER)
async def alone_batch(items: list[str]) -> list[Any]:
    return list(items)


# ── what happens in a round ───────────────────────────────────────────────────────────────────────

_BUSY = frozenset({State.WAITING, State.ACTIVE})
"""What a job of a round must not stay: it has ended, or waits for its next run in an hour."""
PATIENCE_S = 20.0
LEASE_S = 1.0
"""Jobs whose claim is lost on its way to the runner wait for the end of their lease."""
CONCURRENCY = 4


class Scene:
    """A worker on a store of its own."""

    def __init__(self, worker: Worker, store: Store) -> None:
        self.worker = worker
        self.store = store
        self.ids: list[JobKey] = []

    async def add(self, name: str, *fates: str, **options: Any) -> None:
        """Enqueue a job for each fate, together."""
        of = lone if name.startswith("alone") else queue
        word = "script" if name.startswith("command") else "fate"
        specs = [
            JobSpec(
                queue=of.qname,
                id=new_id(),
                name=name,
                payload=JSON.encode_call((), {word: fate})
                if "batch" not in name
                else JSON.encode_call((fate,), {}),
                **options,
            )
            for fate in fates
        ]
        await self.store.put(specs)
        self.ids += [JobKey(of.qname, spec.id) for spec in specs]

    async def cancel(self, name: str, *fates: str) -> None:
        """Cancel jobs while they run."""
        await self.add(name, *fates)

        async def active() -> bool:
            return State.WAITING not in await self.states()

        await until(active, "the jobs to start")
        await self.store.alter([Cancel(job=job) for job in self.ids])

    async def damage(self, name: str, fate: str) -> None:
        """Add a job whose options cannot be read."""
        assert isinstance(self.store, SqliteStore)
        self.worker.pause()
        await self.add(name, fate, timeout_ms=1000)
        await self.store._write(lambda tx: tx.execute("UPDATE jobs SET options = x'ff'").fetchall())
        self.worker.resume()

    async def frail(self, name: str, fate: str) -> None:
        """Add a job on its last chance."""
        self.worker.pause()
        await self.add(name, fate, max_stalls=1)
        claim = Claim(queues=(lone.qname,), limit=1, lease_ms=1)
        await self.store.settle([], worker="dies", call=uuid4().hex, then=claim)

        async def stalled() -> bool:
            await self.store.tick()
            (record,) = await self.store.get(self.ids)
            return record is not None and record.stalls == 1

        await until(stalled, "the stall")
        self.worker.resume()

    async def states(self) -> list[State]:
        """Of the jobs of the round."""
        return [record.state for record in await self.store.get(self.ids) if record is not None]

    @property
    def what_is_held(self) -> str | None:
        """What the worker still holds. None: all slots are free and no lease is renewed."""
        (station,) = self.worker._stations
        runner, slots = station.runner, station.fetcher._slots
        facts = {
            "slots": slots.free != slots.total and f"{slots.free} of {slots.total} free",
            "held": [str(run) for run in runner.held],
            "open": runner.open,
            "ended": [str(run) for run in runner.ended],
            "closed": station.fetcher._chance.closed,
        }
        return ", ".join(f"{name}: {fact}" for name, fact in facts.items() if fact) or None

    async def calm(self) -> None:
        """Wait until the jobs of the round have ended or wait, and the worker holds nothing."""

        async def is_calm() -> bool:
            return _BUSY.isdisjoint(await self.states()) and self.what_is_held is None

        try:
            await until(is_calm, "the round to end", seconds=PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{await self.states()}, {self.what_is_held}") from None
        self.ids.clear()


@dataclass(frozen=True)
class Kind:
    """A kind of run: what happens in a round, and a task whose jobs must still run after it."""

    name: str
    act: Callable[[Scene], Awaitable[None]]
    probe: tuple[str, str] = ("inline", "ok")
    middleware: bool = False

    def __str__(self) -> str:
        return self.name


def _adds(name: str, *fates: str, **options: Any) -> Callable[[Scene], Awaitable[None]]:
    return lambda scene: scene.add(name, *fates, **options)


def _cancels(name: str, *fates: str) -> Callable[[Scene], Awaitable[None]]:
    return lambda scene: scene.cancel(name, *fates)


def _frail(name: str, fate: str) -> Callable[[Scene], Awaitable[None]]:
    return lambda scene: scene.frail(name, fate)


_SINGLE = ("ok", "fail", "reject", "snooze", "strange")
_PROCESS, _COMMAND = ("process", "ok"), ("command", "true")
KINDS = [
    *(Kind(f"inline {fate}", _adds("inline", fate)) for fate in (*_SINGLE, "notes")),
    Kind("inline several", _adds("inline", "ok", "fail", "ok", "ok", "fail", "ok")),
    Kind("inline timeout", _adds("brief", "hang")),
    Kind("inline cancelled", _cancels("inline", "hang")),
    Kind("inline around ok", _adds("inline", "ok"), middleware=True),
    Kind("inline around fail", _adds("inline", "fail"), middleware=True),
    Kind("inline around timeout", _adds("brief", "hang"), middleware=True),
    Kind("unknown", _adds("nobody", "ok")),
    Kind("unreadable", lambda scene: scene.damage("inline", "ok")),
    Kind("bad arguments", _adds("inline", "ok", codec="nonsense")),
    *(Kind(f"thread {fate}", _adds("thread", fate)) for fate in ("ok", "fail")),
    Kind("thread timeout", _adds("thread_brief", "hang")),
    Kind("thread cancelled", _cancels("thread", "hang")),
    Kind("batch ok", _adds("batch", "ok", "ok", "ok")),
    Kind("batch part", _adds("batch", "ok", "own")),
    Kind("batch fail", _adds("batch", "ok", "fail")),
    Kind("batch cancelled", _cancels("batch", "hang", "ok")),
    Kind("batch around", _adds("batch", "ok", "own", "strange"), middleware=True),
    Kind("batch in a thread", _adds("slow_batch", "ok", "ok")),
    Kind("batch timeout", _adds("slow_batch", "hang", "ok")),
    Kind("last chance ok", _frail("alone", "ok")),
    Kind("last chance fail", _frail("alone", "fail")),
    Kind("last chance batch", _frail("alone_batch", "ok")),
    *(
        Kind(f"process {fate}", _adds("process", fate), _PROCESS)
        for fate in ("ok", "fail", "print", "die")
    ),
    Kind("process timeout", _adds("process_brief", "hang"), _PROCESS),
    Kind("process cancelled", _cancels("process", "hang"), _PROCESS),
    Kind("process around ok", _adds("process", "ok"), _PROCESS, middleware=True),
    Kind("process around fail", _adds("process", "fail"), _PROCESS, middleware=True),
    Kind("command ok", _adds("command", "echo 1"), _COMMAND),
    Kind("command fail", _adds("command", "echo a line >&2; exit 1"), _COMMAND),
    Kind("command timeout", _adds("command_brief", "sleep 60"), _COMMAND),
    Kind("command cancelled", _cancels("command", "sleep 60"), _COMMAND),
    Kind("command around", _adds("command", "echo 1"), _COMMAND, middleware=True),
]


@asynccontextmanager
async def scene_of(kind: Kind) -> AsyncIterator[Scene]:
    """A worker for rounds of this kind."""
    url = f"memory://{uuid4().hex}"
    for each in (queue, lone):
        each._context.connection.move(url)
    try:
        async with queue, lone:
            worker = Worker(
                queue,
                lone,
                concurrency=CONCURRENCY,
                lease=LEASE_S,
                grace=0.05,
                pool=1,
                drain=0,
                middleware=[_watch] if kind.middleware else None,
            )
            worker.settings = replace(worker.settings, poll_ms=500, tick_ms=200)
            async with worker:
                yield Scene(worker, await queue._context.store())
    finally:
        Gone.event.set()
        for each in (queue, lone):
            await each._context.connection.move_back()


async def play(scene: Scene, kind: Kind, injector: Injector) -> None:
    """A round, with an error at the injector's point, and a job after it."""
    Gone.event.clear()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with injector:
        await kind.act(scene)
        if kind.name.startswith(("thread cancelled", "thread timeout", "batch timeout")):
            await until(lambda: _asked_to_stop(scene), "the handlers to be asked to stop")
            Gone.event.set()
        await scene.calm()
    await scene.add(*kind.probe)
    (probe,) = scene.ids
    await scene.calm()
    (record,) = await scene.store.get([probe])
    assert record is not None
    assert record.state is State.COMPLETED, f"a job after it is {record.state}: {record.failure}"


def _asked_to_stop(scene: Scene) -> bool:
    """Whether the runs have been asked to stop, or have ended."""
    (station,) = scene.worker._stations
    return all(run.cancelled for run in station.runner.held)
