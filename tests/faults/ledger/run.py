"""One run: load on a store, faults by a plan, and a verdict from the facts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.ledger import facts, plan, warden
from tests.faults.ledger.facts import now_ms
from tests.faults.ledger.fleet import Fleet, end
from tests.faults.ledger.judge import Fault, Finding, Judge, Verdict
from tests.faults.ledger.places import CLOCKS, Place, Sqlite
from tests.faults.ledger.places_postgres import Postgres, PostgresPair
from tests.faults.ledger.places_server import JqServers, JqServersOnPostgres, JqServersOnValkey
from tests.faults.ledger.places_valkey import Cluster, Sentinel, Valkey
from tests.faults.ledger.reader import passes
from tests.waiting import blocks

PLACES: dict[str, type[Place]] = {
    "sqlite": Sqlite,
    "valkey": Valkey,
    "valkey-sentinel": Sentinel,
    "valkey-cluster": Cluster,
    "postgres": Postgres,
    "postgres-pair": PostgresPair,
    "grpc": JqServers,
    "grpc-valkey": JqServersOnValkey,
    "grpc-postgres": JqServersOnPostgres,
}
EXECUTORS = ("inline", "thread", "process", "command", "mixed")
STUCK_S = 180
"""Seconds without any progress after which a run is given up: far longer than a lease, a failover
and the start of a worker on a loaded machine."""
MARGIN_MS = 1_000
"""Milliseconds that the reader goes back beyond what a fault may have undone."""
FAULT_S = 2.0
"""Seconds of load per fault: most faults last about so long."""
MANY = 100_000
"""Jobs from which on a run saves time: workers run more jobs at once, and producers enqueue more of
them in a call."""
MIN_WORK_MS, MAX_WORK_MS = 5.0, 1_000.0
"""Milliseconds that a handler works on average, unless the caller decides."""
FORK_MS = 10_000
"""Milliseconds before a failover in which a primary may have been ahead of its replica, by calls
that were never acknowledged."""
LOOK_S = 0.05
"""Seconds between two looks at the progress."""


class Stuck(Exception):
    """Nothing ends any more."""


@dataclass(kw_only=True)
class Settings:
    """What a run consists of."""

    store: str
    jobs: int
    kills: int
    others: int | None = None
    """Faults that are no kills; by default, one for two kills."""
    durability: str | None = None
    executor: str = "inline"
    seed: int = 1
    only: tuple[str, ...] = ()
    """The kinds of faults; by default, all that the store can have."""
    workers: int = 3
    producers: int = 2
    lease_s: float = 2.0
    concurrency: int | None = None
    """Jobs that a worker runs at once: so many runs does a kill interrupt."""
    work_ms: float | None = None
    """The average time that a handler works; by default, so long that faults meet running jobs."""


@dataclass
class Result:
    """A verdict, and what the run consisted of."""

    settings: Settings
    durability: str
    verdict: Verdict
    faults: list[Fault]
    seconds: float
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.verdict.findings


Show = Callable[[str], None]


def execute(settings: Settings, folder: Path, show: Show) -> Result:
    """Run load and faults in `folder`, and judge them."""
    began = time.monotonic()
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    keeper = warden.start(mark)
    os.environ["LEDGER_MARK"] = mark
    try:
        run = _Run(settings, folder, show)
        try:
            run.go()
        finally:
            run.close()
    finally:
        del os.environ["LEDGER_MARK"]
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(30)
    show("judging")
    verdict = judge(folder, run.faults, wall_ms=run.wall_ms)
    for finding in run.bad_exits:
        verdict.add(finding)
    return Result(
        settings, run.place.durability, verdict, run.faults, time.monotonic() - began,
        run.place.left_out,
    )  # fmt: skip


def judge(folder: Path, faults: list[Fault], *, wall_ms: int) -> Verdict:
    """Judge the facts of a folder."""
    merged = folder / "sorted.txt"
    facts.merge(folder, merged)
    counts = json.loads((folder / "counts.json").read_text())
    found = Judge(
        faults,
        wall_ms=wall_ms,
        clocks_jump=any(fault.kind in CLOCKS for fault in faults),
    )
    with merged.open() as lines:
        found.judge(facts.stories(lines, passes(folder)))
    found.check_counts(counts)
    return found.verdict


class _Run:
    def __init__(self, settings: Settings, folder: Path, show: Show) -> None:
        self._settings, self._folder, self._show = settings, folder, show
        self.faults: list[Fault] = []
        self.bad_exits: list[Finding] = []
        self.wall_ms = time.time_ns() // 1_000_000 - now_ms()
        kind = PLACES[settings.store]
        wanted = frozenset(settings.only or plan.KINDS)
        if not settings.only and settings.jobs > 1_000_000:
            wanted -= {"disk full"}  # the small disk is memory
        self.place = kind(folder, settings.durability, wanted, settings.jobs)
        if self.place.loses:  # the judge compares times of events with those of power cuts
            self.place.wanted -= CLOCKS
        others = settings.kills // 2 if settings.others is None else settings.others
        self._plan = plan.make(settings.kills, others, self.place.wanted, settings.seed)
        self._rng = random.Random(settings.seed)
        self._fleet = Fleet(
            self.place, folder, jobs=settings.jobs, executor=settings.executor,
            variables={
                "LEDGER_LEASE_S": str(settings.lease_s),
                "LEDGER_CONCURRENCY": str(self._concurrency),
                "LEDGER_BATCH": "250" if settings.jobs >= MANY else "50",
                "LEDGER_WORK_MS": str(self._work_ms()),
                "LEDGER_AHEAD": str(max(500, min(20_000, settings.jobs // 10))),
            },
        )  # fmt: skip
        self._last = (0, 0.0)  # how many jobs had ended, and since when

    @property
    def _concurrency(self) -> int:
        return self._settings.concurrency or (100 if self._settings.jobs >= MANY else 20)

    def _work_ms(self) -> float:
        """The time of a handler. By default, the load takes as long as all the faults."""
        given = self._settings.work_ms
        slots = self._settings.workers * self._concurrency
        wanted = len(self._plan) * FAULT_S * 1000 * slots / max(1, self._settings.jobs)
        return min(MAX_WORK_MS, max(MIN_WORK_MS, wanted)) if given is None else given

    def close(self) -> None:
        """End all processes."""
        try:
            self._fleet.stop()
        finally:
            self.place.close()

    def go(self) -> None:
        """The load with all faults of the plan, until every job has ended."""
        self._fleet.start(self._settings.workers, self._settings.producers)
        self._last = (0, time.monotonic())
        for step in self._plan:
            wanted = int(step.share * self._settings.jobs)
            self._wait(lambda wanted=wanted: self._ended >= wanted or self._done)  # type: ignore[misc]
            self._strike(step)
            self._last = (self._last[0], time.monotonic())
        self._wait(lambda: self._done)
        self._fleet.stop()
        self._fleet.finish(FORK_MS if self.place.loses or self.place.forks else 0)

    @property
    def _ended(self) -> int:
        return int(self._fleet.progress()["ended"])

    @property
    def _done(self) -> bool:
        """Whether nothing is left to do, by a look that began after the last producer had ended."""
        if self._fleet.producing:
            return False
        now = now_ms()
        while (seen := self._fleet.progress())["at_ms"] < now:
            blocks(LOOK_S)
            if now_ms() - now > STUCK_S * 1000:
                raise Stuck("the reader does not get any further")
        return bool(seen["read"] and seen["pending"] == 0)

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            blocks(LOOK_S)
            self._fleet.check()
            seen = self._fleet.progress()
            done, since = self._last
            if seen["ended"] != done:
                self._last = (seen["ended"], time.monotonic())
            elif time.monotonic() - since > STUCK_S:
                raise Stuck(
                    f"no job has ended for {STUCK_S} s: {seen['ended']:,} have ended and "
                    f"{seen['pending']:,} are pending; see {self._folder}"
                )
            self._show(
                f"{seen['ended']:,} of {self._settings.jobs:,} jobs, {len(self.faults)} of "
                f"{len(self._plan)} faults"
            )

    # ── faults ────────────────────────────────────────────────────────────────────────────────────

    def _strike(self, step: plan.Step) -> None:
        rng, kind = random.Random(step.seed), step.kind
        if not self._fleet.producing:  # they are done
            kind = kind.replace("producer", "worker")
        act = getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))
        if self.place.may_undo(kind):  # the reader must not continue in another history
            self._fleet.stop_reader()
        at_ms = now_ms()
        who, forgets = act(rng) or ("", None)
        forks = at_ms - FORK_MS if kind == "failover" and self.place.forks else None
        fault = Fault(kind, at_ms, now_ms(), who, forgets, forks)
        self.faults.append(fault)
        with (self._folder / "faults.jsonl").open("a") as file:
            file.write(json.dumps(fault._asdict()) + "\n")
        if self._fleet.reader is None:
            since = min((ms for ms in (forgets, forks) if ms is not None), default=None)
            self._fleet.start_reader(0 if since is None else now_ms() - since + MARGIN_MS)

    def _pause_s(self, rng: random.Random) -> float:
        """Longer than a lease."""
        return self._settings.lease_s * rng.uniform(1.2, 2.0)

    def _kill_worker(self, rng: random.Random) -> tuple[str, None]:
        name = rng.choice(sorted(self._fleet.workers))
        process = self._fleet.workers.pop(name)
        process.kill()
        process.wait(30)
        self._fleet.start_worker()
        return name, None

    def _kill_producer(self, rng: random.Random) -> tuple[str, None]:
        name = rng.choice(sorted(self._fleet.producing))
        process = self._fleet.producers[name]
        process.kill()
        if process.wait(30) != 0:  # it was not done at the last moment
            self._fleet.start_producer(name)
        return name, None

    def _kill_server(self, rng: random.Random) -> tuple[str, int | None]:
        return "", self.place.kill(rng)

    def _freeze_worker(self, rng: random.Random) -> tuple[str, None]:
        return self._freeze(self._fleet.workers, list(self._fleet.workers), rng)

    def _freeze_producer(self, rng: random.Random) -> tuple[str, None]:
        return self._freeze(self._fleet.producers, self._fleet.producing, rng)

    def _freeze(
        self, processes: dict[str, subprocess.Popen[bytes]], names: list[str], rng: random.Random
    ) -> tuple[str, None]:
        name = rng.choice(sorted(names))
        processes[name].send_signal(signal.SIGSTOP)
        blocks(self._pause_s(rng))
        processes[name].send_signal(signal.SIGCONT)
        return name, None

    def _freeze_server(self, rng: random.Random) -> None:
        self.place.freeze(rng)
        blocks(self._pause_s(rng))
        self.place.thaw()

    def _terminate_worker(self, rng: random.Random) -> tuple[str, None]:
        name = rng.choice(sorted(self._fleet.workers))
        process = self._fleet.workers.pop(name)
        self._fleet.start_worker()
        process.terminate()
        end(process)
        if process.returncode not in (0, -signal.SIGTERM):  # -SIGTERM: it was still importing
            text = f"worker {name} ended with {process.returncode} after SIGTERM: see worker.txt"
            self.bad_exits.append(Finding("bad exit", 0, text))
        return name, None

    def _network_delay(self, rng: random.Random) -> None:
        for proxy in self.place.proxies:
            proxy.delay_s = rng.uniform(0.05, 0.3)
        self._and_restore(rng)

    def _network_lost_replies(self, rng: random.Random) -> None:
        for proxy in self.place.proxies:
            proxy.swallow_replies()
        self._and_restore(rng)

    def _network_half_open(self, rng: random.Random) -> None:
        for proxy in self.place.proxies:
            proxy.swallow()
        self._and_restore(rng)

    def _network_reset(self, rng: random.Random) -> None:
        for proxy in self.place.proxies:
            proxy.refuse()
        self._and_restore(rng)

    def _and_restore(self, rng: random.Random) -> None:
        blocks(self._pause_s(rng))
        for proxy in self.place.proxies:
            proxy.restore()
            proxy.cut()

    def _failover(self, rng: random.Random) -> tuple[str, int | None]:
        return "", self.place.failover(rng)

    def _disk_full(self, rng: random.Random) -> None:
        self.place.fill()
        blocks(self._pause_s(rng))
        self.place.empty()
        self.place.repair()

    def _clock_forward(self, rng: random.Random) -> None:
        self._jump(rng, 1)

    def _clock_back(self, rng: random.Random) -> None:
        self._jump(rng, -1)

    def _jump(self, rng: random.Random, sign: int) -> None:
        seconds = sign * rng.choice((1, 5, 60, 3600))
        rng.choice(list(self.place.clocks.values())).jump(seconds)

    def _power_cut(self, rng: random.Random) -> tuple[str, int | None]:
        if not self.place.shares_machine:
            return "", self.place.power_cut(rng)
        producing = self._fleet.kill_all()
        forgets = self.place.power_cut(rng)
        workers = len(self._fleet.workers)
        self._fleet.workers.clear()
        for _ in range(workers):
            self._fleet.start_worker()
        for name in producing:
            self._fleet.start_producer(name)
        return "the machine", forgets
