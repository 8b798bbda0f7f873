"""Runs one scenario: starts its processes, causes its faults, waits for the end and judges."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from jobq import Worker
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import ScheduleRecord
from jobq.core.records.states import ENDED
from jobq.errors import ConfigError
from jobq.relay.relay import Relay
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.audit import audit
from jobq_conformance.kit import read_all, read_log
from tests.simulation.app import URL, App, Ledger
from tests.simulation.faults import CallFault, Freeze, Jump, Kill, OutageOf, Raise
from tests.simulation.network import Network
from tests.simulation.producers import Producer
from tests.simulation.relays import Shipped, Target
from tests.simulation.scenario import KEYS, Scenario
from tests.simulation.seams import simulated
from tests.simulation.shown_calls import Exchanged
from tests.simulation.world import Process, World, WorldStuck

FAULTY_S = 20.0
"""Seconds after which no new fault happens."""
CALM_S = 13.0
"""The same in a world without long faults: seconds after which nobody does anything new."""
PATIENCE_S = 900.0
"""Virtual seconds that the jobs get to end when the faults have ended."""
QUEUES = ("plain", "keyed", "narrow", "dead")
_stores = count(1)


@dataclass
class Evidence:
    """What a world leaves behind, for invariants.py."""

    scenario: Scenario
    ledger: Ledger
    events: dict[str, list[EventRecord]]
    records: dict[str, dict[str, JobRecord]]
    schedules: list[ScheduleRecord]
    shipped: Shipped
    exchanged: list[Exchanged]
    world: World


@dataclass(frozen=True)
class Result:
    """How a simulation ended."""

    digest: str
    problems: tuple[str, ...]
    story: list[tuple[float, str, str]]
    seconds: float  # virtual
    steps: int
    calls: int
    jobs: int
    kills: int
    exchanged: list[Exchanged]


def simulate(
    scenario: Scenario,
    check: Callable[[Evidence], list[str]] | None,
    *,
    keep_story: bool = False,
    store: str = "memory",
) -> Result:
    """Run a scenario, and check what it leaves behind. Without `check`, only its trace matters."""
    world = World(scenario.seed, keep_story=keep_story)
    folder = None
    if store == "memory":
        url = f"memory://simulation-{os.getpid()}-{next(_stores)}"
    else:
        folder = tempfile.mkdtemp(prefix="jobq-simulation-")
        url = f"sqlite:///{folder}/jobs.db"
    try:
        with simulated(world):
            stage = _Stage(world, scenario, url, collects=check is not None)
            try:
                stage.play()
                if check is not None and stage.evidence is not None and not world.problems:
                    for problem in check(stage.evidence):
                        world.problem(problem)
            except WorldStuck as stuck:
                world.problem(f"stuck: {stuck}")
            finally:
                stage.close()
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return Result(
        digest=stage.digest or world.digest,
        problems=tuple(world.problems),
        story=world.story or [],
        seconds=world.now - 1000.0,
        steps=world.steps,
        calls=sum(process.calls for process in world.all),
        jobs=len(stage.ledger.accepted),
        kills=sum(not process.alive for process in world.all),
        exchanged=stage.network.exchanged,
    )


class _Stage:
    """The processes of a world, and who starts them again when they die."""

    def __init__(self, world: World, scenario: Scenario, url: str, *, collects: bool) -> None:
        self.world = world
        self.collects = collects
        self.digest = ""  # of the trace until the evidence is collected
        self.scenario = scenario
        self.ledger = Ledger()
        self.network = Network(world, url)
        self.network.lanes = scenario.lanes
        self.network.lossy, self.network.slow = scenario.lossy, scenario.slow
        self.shipped = Shipped(world)
        long = any(
            not (isinstance(f, Raise) or (isinstance(f, CallFault) and f.is_short))
            for f in scenario.faults
        )
        self.faulty_s = FAULTY_S if long or scenario.slow else CALM_S
        self.living: dict[str, Process] = {}
        self.stops: dict[str, Callable[[], Any]] = {}  # by process
        self.workers: dict[str, Worker] = {}  # the last one of each slot
        self.stopping = False
        self.evidence: Evidence | None = None
        self.done = False
        self.producers = {
            name: Producer(self, name, [a for a in scenario.actions if a.who == name])
            for name in scenario.producers
        }
        world.on_death.append(self._died)
        self._prepare_faults()

    # ── faults ──

    def _prepare_faults(self) -> None:
        for fault in self.scenario.faults:
            if isinstance(fault, CallFault):
                self.network.faults[fault.process, fault.call] = fault
            elif isinstance(fault, Freeze):
                self.world.later(fault.at, partial(self._freeze, fault))
            elif isinstance(fault, Jump):
                self.world.later(fault.at, partial(self._jump, fault))
            elif isinstance(fault, OutageOf):
                start = self.world.now + fault.at
                self.network.outages.append((start, start + fault.seconds, fault.process))
        self.world.later(self.faulty_s, self._calm_down)

    def _freeze(self, fault: Freeze) -> None:
        if fault.seat in self.living:
            self.living[fault.seat].freeze(fault.seconds, main_only=fault.main_only)

    def _jump(self, fault: Jump) -> None:
        self.world.wall_offset_ms += fault.ms
        self.world.tell("clock", f"set by {fault.ms} ms")

    def _calm_down(self) -> None:
        """From here on nothing goes wrong, so everything must end."""
        self.world.tell("faults", "end")
        self.network.faults.clear()
        self.network.outages.clear()
        self.network.lossy = self.network.slow = 0.0
        for process in self.living.values():
            process.kill_at_step = None
            process.raise_at.clear()

    # ── processes ──

    def play(self) -> None:
        """Run the world until the judge has seen enough."""
        judge = self.world.process("judge")
        self.network.reliable.add("judge")
        judge.start(self._judge()).add_done_callback(self._judged)
        self.world.run(lambda: self.done)

    def _judged(self, task: asyncio.Task[None]) -> None:
        self.done = True
        if (error := task.exception()) is not None:
            self.world.problem(f"{type(error).__name__}: {error}")

    def start(self, seat: str, incarnation: int = 0) -> None:
        """Start a process of the scenario."""
        if self.stopping:
            return
        process = self.world.process(f"{seat}.{incarnation}")
        self.living[seat] = process
        self.stops.pop(seat, None)
        if self.world.now < 1000.0 + self.faulty_s:
            for fault in self.scenario.faults:
                if isinstance(fault, Kill) and fault.process == process.name:
                    process.kill_at_step = fault.step
                elif isinstance(fault, Raise) and fault.process == process.name:
                    process.raise_at.add(fault.call)
        work = {"w": self._work, "p": self._produce, "r": self._relay}[seat[0]]
        task = process.start(work(seat, process))
        task.add_done_callback(partial(self._ended, seat, process))

    def _died(self, process: Process) -> None:
        """Somebody starts a killed process again, as Kubernetes and systemd do."""
        seat, _, incarnation = process.name.partition(".")
        if self.living.get(seat) is process:
            del self.living[seat]
            seconds = process.rng.choice((0.1, 1.0, 4.0, 9.0))
            self.world.later(seconds, partial(self.start, seat, int(incarnation) + 1))

    def _ended(self, seat: str, process: Process, task: asyncio.Task[Any]) -> None:
        if self.living.get(seat) is process:
            del self.living[seat]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.world.problem(f"{process.name} ended with {type(error).__name__}: {error}")
        elif seat.startswith("w") and not self.stopping:  # it was told to restart
            incarnation = int(process.name.partition(".")[2])
            self.world.later(0.5, partial(self.start, seat, incarnation + 1))

    async def _work(self, seat: str, process: Process) -> None:
        app = App(process, self.ledger, self.scenario.shape)
        worker = self.workers[seat] = app.worker(self.scenario.workers[int(seat[1:])])
        self.stops[seat] = lambda: process.main.create_task(worker.stop())
        await worker.run()

    async def _produce(self, seat: str, process: Process) -> None:
        await self.producers[seat].run(App(process, self.ledger, self.scenario.shape))

    async def _relay(self, seat: str, process: Process) -> None:
        store = open_store(URL)
        while True:
            try:
                await store.migrate()
                break
            except Exception:
                await asyncio.sleep(0.5)
        relay = Relay(
            store,
            Target(self.shipped, process.name),
            who=process.name,
            page=20,
            lease=4.0,
            poll=2.0,
        )
        self.stops[seat] = relay.stop
        await relay.run()

    # ── the judge ──

    async def _judge(self) -> None:
        """Wait until all has ended, then stop everything and collect the evidence."""
        for seat in self.scenario.seats:
            self.start(seat)
        async with open_store(URL) as store:
            await asyncio.sleep(self.faulty_s)
            await self._end_of_jobs(store)
            await self._probe()
            await self._slots_free()
            await self._stop_all()
            self.digest = self.world.digest
            if self.collects:
                await self._collect(store)

    async def _end_of_jobs(self, store: Store) -> None:
        names = await self._queues(store)
        for name in names:
            await store.resume(name)
            await store.release_hold(name)
        deadline = self.world.now + PATIENCE_S
        while True:
            left = await self._left(store, names)
            if not left:
                return
            if self.world.now > deadline:
                raise AssertionError(f"not ended: {left}")
            await asyncio.sleep(3.0)

    async def _queues(self, store: Store) -> list[QueueName]:
        return [record.queue for record in await store.queues()]

    async def _left(self, store: Store, names: list[QueueName]) -> str:
        busy = [name for name, producer in self.producers.items() if not producer.finished]
        if busy:
            return f"the actions of {', '.join(busy)}"
        for schedule in await store.list_schedules(limit=1000):
            if schedule.next_ms is not None:
                return f"schedule {schedule.spec.id}"
        for name in names:
            if name.queue == "dead":
                continue
            counts = await store.count(name)
            open = {state.value: n for state, n in counts.items() if n and state not in ENDED}
            if open:
                return f"jobs of {name.queue}: {open}"
        return ""

    async def _probe(self) -> None:
        """If no slot has leaked, another job of each queue and key ends soon."""
        process = self.world.process("probe")
        self.network.reliable.add("probe")
        app = App(process, self.ledger, self.scenario.shape)

        async def probe() -> None:
            calls = [app.work.options(id="probe-plain").bind([], 0.0)]
            jobs = [await app.plain.enqueue_many(calls)]
            jobs.append(
                [await app.deliver.options(id=f"probe-{key}").enqueue(key, [], 0.0) for key in KEYS]
            )
            for n in range(self.scenario.shape.limit):
                task = app.squeeze.options(id=f"probe-narrow-{n}")
                jobs.append([await task.enqueue([], 0.0)])
            for job in (each for some in jobs for each in some):
                self.ledger.accepted[job.id] = job.queue
                try:
                    await job.result(timeout=60)
                except TimeoutError:
                    self.world.problem(f"{job.id} does not run: is a slot leaked?")

        done = asyncio.get_running_loop().create_future()
        process.start(probe()).add_done_callback(
            lambda task: done.get_loop().call_soon(_forward, task, done)
        )
        await done

    async def _slots_free(self) -> None:
        """Nothing runs any more, so each worker soon has all its slots."""
        taken = [seat for seat in self.living if seat in self.workers]
        deadline = self.world.now + 30
        while taken and self.world.now < deadline:
            await asyncio.sleep(0.1)
            # A worker may be replaced meanwhile, if it was told to restart.
            taken = [seat for seat in taken if self._taken(seat) > 0]
        for seat in taken:
            self.world.problem(f"{seat} has {self._taken(seat)} slots that are not free")

    def _taken(self, seat: str) -> int:
        """Slots that are not free, and leases that are renewed."""
        worker = self.workers[seat]
        held = sum(len(station.runner.held) for station in worker._stations)
        return 0 if worker._slots is None else abs(worker._slots.total - worker._slots.free) + held

    async def _stop_all(self) -> None:
        self.stopping = True
        deadline = self.world.now + 60
        while self.living:
            for seat, process in list(self.living.items()):
                if seat in self.stops:
                    process.main.call_soon(self.stops[seat])
            if self.world.now > deadline:
                self.world.problem(f"{', '.join(self.living)} cannot be stopped")
                return
            await asyncio.sleep(1.0)

    async def _collect(self, store: Store) -> None:
        events: dict[str, list[EventRecord]] = {}
        records: dict[str, dict[str, JobRecord]] = {}
        for name in await self._queues(store):
            await audit(store, name)
            events[name.queue] = await read_log(store, name)
            records[name.queue] = {r.id: r for r in await read_all(store, name)}
        await self._ship_rest(store)
        self.evidence = Evidence(
            scenario=self.scenario,
            ledger=self.ledger,
            events=events,
            records=records,
            schedules=await store.list_schedules(limit=1000),
            shipped=self.shipped,
            exchanged=self.network.exchanged,
            world=self.world,
        )

    async def _ship_rest(self, store: Store) -> None:
        if self.scenario.relays:
            relay = Relay(store, Target(self.shipped, "judge"), who="judge", page=500, lease=4.0)
            try:
                await relay.drain()
            except ConfigError:  # a late call of a relay that has stopped took its office once more
                await asyncio.sleep(relay.lease_ms / 1000)
                await relay.drain()

    def close(self) -> None:
        """Close the store, and all event loops."""
        self.world.close()
        close_databases(self.network.url)


def close_databases(url: str) -> None:
    """Close the store's database, even if handles are still open."""
    from jobq.stores.sqlite import database

    name = url if url.startswith("memory:") else next(iter(database._shared), "")
    found = database._shared.pop(name, None)
    if found is not None:
        found[0].close()


def _forward(task: asyncio.Task[None], done: asyncio.Future[None]) -> None:
    if (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(None)
