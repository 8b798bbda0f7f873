"""The program of all simulated processes: queues, tasks, and a ledger of what handlers saw."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jobq import (
    CurrentJob,
    Queue,
    Rate,
    RateLimited,
    Reject,
    Retry,
    Snooze,
    Unique,
    WaitTimeout,
    Worker,
    current_job,
)
from tests.simulation.world import Process, World

URL = "sim://store"
RETRY = Retry(3, base=0.2, factor=2, jitter=0.5)
TIMEOUT_S = 4.0
"""The timeout of tasks that may hang: shorter than a lease, so that both ends are seen."""


WITH_TIMEOUT = frozenset({"work", "crunch", "deliver", "squeeze"})
"""The tasks with that timeout."""


@dataclass
class Execution:
    """One call of a handler."""

    queue: str
    job: str
    life: int
    attempt: int
    worker: str
    start: float
    end: float | None = None
    how: str = "killed"  # until it ends


@dataclass(frozen=True)
class StepCall:
    """One call of the function of a step."""

    job: str
    life: int
    attempt: int
    step: str
    at: float


@dataclass
class Ledger:
    """What handlers and producers of all processes saw. It is outside of the world: kills do not
    erase it."""

    runs: list[Execution] = field(default_factory=list)
    steps: list[StepCall] = field(default_factory=list)
    confirmed: dict[tuple[str, int, str], tuple[int, float]] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)  # what a job of a flow was called with
    saved: dict[tuple[str, int], int] = field(default_factory=dict)  # by job and life: confirmed
    batches: list[tuple[float, list[str]]] = field(default_factory=list)
    accepted: dict[str, str] = field(default_factory=dict)  # by id: the queue
    refused: set[str] = field(default_factory=set)
    flows: dict[str, list[str]] = field(default_factory=dict)  # by id: members, once acknowledged
    schedules: dict[str, int] = field(default_factory=dict)  # by id: how often it fires
    signalled: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Shape:
    """How the queues of a seed are declared."""

    key_limit: int = 1
    limit: int = 2
    rate: tuple[int, float] | None = None
    max_waiting: int | None = None
    dead_letters: bool = False


class App:
    """The queues and tasks of one process."""

    def __init__(self, process: Process, ledger: Ledger, shape: Shape) -> None:
        self.process = process
        self.world: World = process.world
        self.ledger = ledger
        rate = None if shape.rate is None else Rate(shape.rate[0], per=shape.rate[1])
        self.plain = Queue("plain", URL, dead_letters="dead" if shape.dead_letters else None)
        self.keyed = Queue("keyed", URL, mode="keyed", key_limit=shape.key_limit)
        self.narrow = Queue(
            "narrow", URL, limit=shape.limit, rate=rate, max_waiting=shape.max_waiting
        )
        self.queues = (self.plain, self.keyed, self.narrow)
        self._define()

    def worker(self, concurrency: int) -> Worker:
        """A worker for all queues."""
        return Worker(
            *self.queues,
            name=self.process.name,
            concurrency=concurrency,
            lease=LEASE_S,
            drain=3,
            grace=2,
            last_chance=20,
        )

    @contextmanager
    def _run(self) -> Iterator[CurrentJob]:
        """Record one call of a handler."""
        job = current_job()
        lease = job._run.lease
        run = Execution(
            lease.queue.queue, job.id, lease.life, job.attempt, self.process.name, self.world.now
        )
        self.ledger.runs.append(run)
        self.world.tell(self.process.name, f"runs {job.id}/{job.attempt}")
        run.how = "killed"
        try:
            yield job
        except asyncio.CancelledError:
            run.how = "interrupted"
            raise
        except BaseException as error:
            run.how = type(error).__name__
            raise
        else:
            run.how = "returned"
        finally:
            run.end = self.world.now
            self.world.tell(self.process.name, f"ends {job.id}/{job.attempt}: {run.how}")

    def _meet_in_thread(self, fate: list[str], seconds: float) -> None:
        """The same in a thread, which nobody can stop: it outlives the timeout of its run."""
        attempt = current_job().attempt
        what = fate[attempt - 1] if attempt <= len(fate) else "ok"
        self.process.thread_s = THREAD_HANGS_S if what in ("hang", "stubborn") else seconds
        if what == "die":
            self.process.kill()
        _raise(what)

    async def _meet(self, fate: list[str], seconds: float) -> None:
        """Do what the fate of this run says."""
        attempt = current_job().attempt
        what = fate[attempt - 1] if attempt <= len(fate) else "ok"
        if seconds:
            await asyncio.sleep(seconds)
        _raise(what)
        if what == "hang":
            await asyncio.sleep(HANGS_S)
        if what == "stubborn":
            try:
                await asyncio.sleep(HANGS_S)
            except asyncio.CancelledError:
                await asyncio.sleep(7)
                raise
        if what == "die":
            self.process.kill()
            await asyncio.get_running_loop().create_future()
        if what == "block":
            self.process.freeze(LEASE_S + 1, main_only=True)
            await asyncio.sleep(0)

    def _define(self) -> None:
        self._define_runs()
        self._define_waits()
        self._define_unique()
        self._define_others()

    def _define_runs(self) -> None:
        plain = self.plain

        @plain.task(retry=RETRY, timeout=TIMEOUT_S)
        async def work(fate: list[str], seconds: float) -> str:
            with self._run() as job:
                await self._meet(fate, seconds)
                return f"{job.id}/{job.attempt}"

        @plain.task(retry=RETRY, timeout=TIMEOUT_S)
        def crunch(fate: list[str], seconds: float) -> str:
            with self._run() as job:
                self._meet_in_thread(fate, seconds)
                return f"{job.id}/{job.attempt}"

        @plain.task(retry=RETRY, timeout=60)
        async def steps(fate: list[str], seconds: float) -> str:
            with self._run() as job:
                for name in ("one", "two"):
                    await job.step(name, self._step, name)
                    self._confirm(job, name)
                    await self._meet(fate, seconds)
                return f"{job.id}/{job.attempt}"

        @plain.task(retry=RETRY, timeout=60)
        async def cursor(pages: int, fate: list[str]) -> str:
            with self._run() as job:
                done: int = job.saved or 0
                life = job._run.lease.life
                saved = self.ledger.saved.get((job.id, life), 0)
                if done < saved:
                    self.world.problem(f"{job.id}/{job.attempt} has lost what it saved")
                while done < pages:
                    done += 1
                    await job.save(done)
                    self.ledger.saved[job.id, life] = done
                await self._meet(fate, 0.1)
                return f"{job.id}/{job.attempt}"

        self.work, self.crunch, self.steps, self.cursor = work, crunch, steps, cursor

    def _define_waits(self) -> None:
        plain = self.plain

        @plain.task(retry=RETRY)
        async def leaf(n: int) -> int:
            with self._run():
                await asyncio.sleep(0.05 * n)
                return n

        @plain.task(retry=RETRY)
        async def parent(children: int, fate: list[str]) -> int:
            with self._run() as job:
                for n in range(children):
                    await job.add(leaf, n)
                found = await job.wait_for_children()
                if sorted(found.values()) != list(range(children)):
                    self.world.problem(f"{job.id} got {found} from {children} children")
                await self._meet(fate, 0.0)
                return sum(found.values())

        @plain.task(retry=RETRY)
        async def approve() -> str:
            with self._run() as job:
                try:
                    return str(await job.wait_for_signal("go", timeout=15))
                except WaitTimeout:
                    return "timeout"

        @plain.task(retry=RETRY)
        async def pages(n: int) -> int:
            with self._run() as job:
                seen: int = job.saved or 0
                if seen < n:
                    raise Snooze(0.3, saved=seen + 1)
                return seen

        @plain.task(retry=RETRY)
        async def total(values: list[str], fate: list[str]) -> str:
            with self._run() as job:
                self.ledger.inputs[job.id] = values
                await self._meet(fate, 0.0)
                return f"{job.id}/{job.attempt}"

        self.leaf, self.parent, self.approve = leaf, parent, approve
        self.pages, self.total = pages, total

    def _define_unique(self) -> None:
        plain = self.plain

        @plain.task(retry=RETRY)
        async def scheduled() -> None:
            with self._run():
                await asyncio.sleep(0.05)

        @plain.task(retry=RETRY, unique=Unique("document"))
        async def index(document: int, fate: list[str], seconds: float) -> str:
            with self._run() as job:
                await self._meet(fate, seconds)
                return f"{job.id}/{job.attempt}"

        @plain.task(retry=RETRY, unique=Unique("account", mode="keep_last"))
        async def sync(account: int, version: int, seconds: float) -> int:
            with self._run():
                await asyncio.sleep(seconds)
                return version

        @plain.batch_task(size=3, window=0.3, retry=RETRY)
        async def batch(items: list[str]) -> list[Any]:
            self.ledger.batches.append((self.world.now, items))
            self.world.tell(self.process.name, f"batch of {', '.join(items)}")
            await asyncio.sleep(0.2)
            return list(items)

        self.scheduled, self.index, self.sync, self.batch = scheduled, index, sync, batch

    def _define_others(self) -> None:
        @self.keyed.task(key="tenant", retry=RETRY, timeout=TIMEOUT_S)
        async def deliver(tenant: str, fate: list[str], seconds: float) -> str:
            with self._run() as job:
                await self._meet(fate, seconds)
                return f"{job.id}/{job.attempt}"

        @self.narrow.task(retry=RETRY, timeout=TIMEOUT_S)
        async def squeeze(fate: list[str], seconds: float) -> str:
            with self._run() as job:
                await self._meet(fate, seconds)
                return f"{job.id}/{job.attempt}"

        self.deliver, self.squeeze = deliver, squeeze

    async def _step(self, name: str) -> str:
        job = current_job()
        lease = job._run.lease
        self.ledger.steps.append(StepCall(job.id, lease.life, job.attempt, name, self.world.now))
        await asyncio.sleep(0.05)
        return f"{name}/{job.attempt}"

    def _confirm(self, job: CurrentJob, name: str) -> None:
        at = (job.attempt, self.world.now)
        self.ledger.confirmed.setdefault((job.id, job._run.lease.life, name), at)


def _raise(what: str) -> None:
    """What a handler raises."""
    if what == "fail":
        raise ValueError("simulated")
    if what == "reject":
        raise Reject("simulated")
    if what == "after":
        raise Retry.after(0.7)
    if what == "snooze":
        raise Snooze(0.5, saved=current_job().saved)
    if what == "limited":
        raise RateLimited(1.5)


HANGS_S = 25.0
"""Seconds: longer than all faults. Tasks without a timeout return after it."""
THREAD_HANGS_S = 12.0
"""Seconds: longer than the timeout and the grace of a run together."""
LEASE_S = 5.0
"""Seconds of a lease. Faults last up to four times as long."""
