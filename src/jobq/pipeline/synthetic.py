"""Synthetic job events, for sizing a cluster, for benchmarks and for tests.

The jobs have valid histories with retries, stalls, snoozes, cancellations and reruns, and the skew
of real traffic. The same seed gives the same events. Lines are formatted by hand, which is faster
than `core.records.wire.encode`; a test checks that the result is the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

CHUNK = 20_000  # jobs whose events are sorted by time together, so a file is only nearly in order
EVENTS_PER_JOB = 3.307  # average over 300k jobs, to convert a number of events to a number of jobs

# (tenant, queue, share, task, median run in ms, failure rate). One tenant has two thirds of the
# traffic, as in many real systems.
_TRAFFIC = (
    ("acme", "billing", 40, "charge", 120, 0.03),
    ("acme", "mail", 20, "send", 60, 0.02),
    ("acme", "reports", 6, "render", 4_000, 0.05),
    ("globex", "default", 15, "sync", 300, 0.04),
    ("globex", "images", 8, "thumbnail", 700, 0.01),
    ("initech", "default", 7, "import", 1_500, 0.08),
    ("umbrella", "lab", 3, "assay", 9_000, 0.12),
    ("hooli", "default", 1, "crawl", 800, 0.2),
)
_WORKERS = 12
_ERRORS = (
    ("error", "ConnectionError: connection refused", "9f1c2ab0"),
    ("error", "KeyError: 'invoice'", "41d7e6c3"),
    ("error", "ValueError: amount must be positive", "7be0a915"),
    ("timeout", "TimeoutError: ran for longer than 30 s", "c02d88f1"),
    ("error", "HTTPError: 503 from payments", "5a64be7d"),
)


class Plan(NamedTuple):
    """What to generate. Jobs arrive during `hours` from `start_ms` on, most in the middle."""

    jobs: int
    start_ms: int = 1_763_164_800_000  # 2025-11-15 00:00 UTC
    hours: float = 24.0
    seed: int = 7
    log: str = "synth"


def write(plan: Plan, directory: Path, *, files: int = 8, processes: int = 2) -> int:
    """Write the events of a plan as `files` files of JSON lines. Returns the number of events."""
    directory.mkdir(parents=True, exist_ok=True)
    bounds = [plan.jobs * n // files for n in range(files + 1)]
    shares = [
        (plan, bounds[n], bounds[n + 1], directory / f"events-{n:05d}.jsonl") for n in range(files)
    ]
    if processes == 1 or files == 1:
        return sum(map(_write_share, shares))
    with ProcessPoolExecutor(processes) as pool:
        return sum(pool.map(_write_share, shares))


def _write_share(share: tuple[Plan, int, int, Path]) -> int:
    plan, first, last, path = share
    count = 0
    with path.open("w", encoding="ascii", buffering=1 << 20) as file:
        for line in lines(plan, first, last):
            file.write(line)
            file.write("\n")
            count += 1
    return count


def lines(plan: Plan, first: int = 0, last: int | None = None) -> Iterator[str]:
    """The events of the jobs from `first` up to `last`, sorted by time within each chunk."""
    last = plan.jobs if last is None else last
    for begin in range(first, last, CHUNK):
        chunk: list[_Event] = []
        for number in range(begin, min(begin + CHUNK, last)):
            chunk += _Life(plan, number).live()
        chunk.sort(key=_when)
        # Events are numbered per log without gaps. Each chunk is a shard of its own, so that chunks
        # can be generated independently.
        numbers: dict[str, int] = {}
        for _, log, head, rest in chunk:
            number = numbers[log] = numbers.get(log, 0) + 1
            yield f'{head}"number":{number},"shard":{begin},{rest}'


_Event = tuple[int, str, str, str]
"""An event: its time, its queue, and the line before and after its number and shard."""


def _when(entry: _Event) -> int:
    return entry[0]


_PICK = tuple(row for row in _TRAFFIC for _ in range(row[2]))


class _Life:
    """One job from acceptance to its end. `live` generates its events."""

    __slots__ = (
        "at",
        "attempt",
        "created",
        "due",
        "events",
        "fails",
        "head",
        "key",
        "life",
        "n",
        "number",
        "random",
        "rate",
        "run",
        "stalls",
        "started",
        "state",
        "tail",
        "tenant",
        "until",
        "where",
        "worker",
        "log",
    )

    def __init__(self, plan: Plan, number: int) -> None:
        rng = self.random = random.Random(plan.seed * 1_000_003 + number)
        tenant, queue, _, task, self.run, self.rate = _PICK[int(rng.random() * len(_PICK))]
        span = plan.hours * 3_600_000
        share = number / plan.jobs
        # Busiest in the middle of the period.
        self.at = plan.start_ms + int(span * (share + 0.1 * math.sin(2 * math.pi * share)))
        self.until = plan.start_ms + int(span) + 600_000  # jobs that have not ended then stay held
        self.number, self.log, self.tenant = number, plan.log, tenant
        self.created, self.due, self.started = self.at, self.at, 0
        self.attempt = self.fails = self.stalls = self.life = self.n = 0
        self.state, self.worker = "", ""
        self.key = f'"key":"customer-{int(rng.random() ** 3 * 500)}",' if queue == "billing" else ""
        self.head = f'"tenant":"{tenant}","queue":"{queue}","job":"{plan.log}{number:012d}","life":'
        self.tail = f',"name":"{task}",{self.key}"attempt":'
        self.where = f"{tenant}/{queue}"
        self.events: list[_Event] = []

    def emit(
        self, kind: str, state: str, more: str = "", *, ended: bool = False, worker: str = ""
    ) -> None:
        """Add an event: the transition to `state`, now."""
        at = self.at
        previous = f',"previous":"{self.state}"' if self.state and kind != "accepted" else ""
        by = f',"worker":"{worker}"' if worker else ""
        started = f',"started_ms":{self.started}' if self.started else ""
        finished = f',"finished_ms":{at}' if ended else ""
        self.events.append(
            (
                at,
                self.where,
                f'{{"v":1,"id":"{self.log}-{at}-{self.number}-{self.n}",',
                (
                    f'"kind":"{kind}","at_ms":{at},{self.head}{self.life}{self.tail}{self.attempt},'
                    f'"failures":{self.fails},"stalls":{self.stalls},"state":"{state}"'
                    f'{previous}{by}{more},"created_ms":{self.created},"due_ms":{self.due}'
                    f"{started}{finished}}}"
                ),
            )
        )
        self.state = state
        self.n += 1

    def live(self) -> list[_Event]:
        """Generate all events of the job, until its end or the end of the plan."""
        self.accept()
        while self.state not in ("completed", "failed", "cancelled") or self.begin_again():
            if self.state in ("delayed", "blocked"):
                self.at = max(self.due, self.at + 1)
                if self.at > self.until:
                    break
                self.emit("promoted" if self.state == "delayed" else "unblocked", "waiting")
            elif not self.wait() or not self.work():
                break
        return self.events

    def accept(self) -> None:
        """Accept the job: most are due at once, some later, and a few are blocked by other jobs."""
        luck = self.random.random()
        if luck < 0.85:
            self.emit("accepted", "waiting")
        elif luck < 0.97:
            self.due = self.at + int(self.random.expovariate(1 / 300_000)) + 1
            self.emit("accepted", "delayed")
        else:
            self.due = self.at + int(self.random.expovariate(1 / 5_000)) + 1
            self.emit("accepted", "blocked")

    def wait(self) -> bool:
        """Wait for a start. Returns False if the plan ends first."""
        luck = self.random.random()
        # A burst: 15 minutes in every 4 hours.
        burst = 20 if (self.at // 60_000) % 240 in range(60, 75) else 1
        self.at += 1 + int(self.random.lognormvariate(3.5, 1.2) * burst)
        if self.at > self.until:
            return False
        if luck < 0.003:
            self.emit("changed", "waiting")
            self.at += 1
        if luck > 0.99:
            self.emit("cancelled", "cancelled", ',"reason":"cancelled"', ended=True)
        elif luck > 0.987:
            self.emit(
                "failed",
                "failed",
                ',"reason":"expired","error":"Expired: not started in time",'
                '"fingerprint":"0e1d5a77"',
                ended=True,
            )
        else:
            self.attempt += 1
            self.started = self.at
            self.worker = f"{self.tenant}-{int(self.random.random() * _WORKERS)}"
            self.emit("started", "active", worker=self.worker)
        return True

    def work(self) -> bool:
        """Run the job once. Returns False if the plan ends first."""
        if self.state != "active":
            return True
        rng = self.random
        self.at += 1 + int(self.run * rng.lognormvariate(0, 0.6))
        luck = rng.random()
        if luck < 0.004:
            self.at = self.started + 15_000
        if self.at > self.until:
            return False
        if luck < self.rate + 0.02:
            self.misfortune(luck)
        else:
            self.emit("completed", "completed", ended=True, worker=self.worker)
        return True

    def misfortune(self, luck: float) -> None:
        """End a run in any way but success."""
        at, worker = self.at, self.worker
        if luck < 0.004:
            self.stalls += 1
            if self.stalls > 3:
                self.emit(
                    "failed",
                    "failed",
                    ',"reason":"stalled","error":"Stalled: the lease expired",'
                    '"fingerprint":"57a11ed0"',
                    ended=True,
                )
            else:
                self.emit("stalled", "waiting", ',"reason":"stalled"')
        elif luck < 0.012:
            self.due = at + 5_000
            self.emit("snoozed", "delayed", worker=worker)
        elif luck < 0.015:
            self.emit("released", "waiting", worker=worker)
        elif luck < 0.017:
            self.emit("limited", "waiting", worker=worker)
        elif luck < 0.018:
            self.due = at + 2_000
            self.emit("blocked", "blocked", worker=worker)
        elif luck < 0.02:
            self.emit("cancelled", "cancelled", ',"reason":"cancelled"', ended=True, worker=worker)
        else:
            self.fail()

    def fail(self) -> None:
        """The handler raised: retry after a backoff, or fail after the fourth time."""
        reason, error, fingerprint = _ERRORS[int(self.random.random() ** 2 * len(_ERRORS))]
        more = f',"reason":"{reason}","error":"{error}","fingerprint":"{fingerprint}"'
        self.fails += 1
        if self.fails > 3:
            self.emit("failed", "failed", more, ended=True, worker=self.worker)
        else:
            self.due = self.at + 1_000 * 2 ** (self.fails - 1)
            self.emit("retried", "delayed", more, worker=self.worker)

    def begin_again(self) -> bool:
        """An operator reruns one in five failed jobs, later."""
        if self.state != "failed" or self.life > 2 or self.random.random() > 0.2:
            return False
        self.at += 60_000 + int(self.random.expovariate(1 / 600_000))
        if self.at > self.until:
            return False
        self.life += 1
        self.fails = self.stalls = 0
        self.started, self.due = 0, self.at
        self.emit("rerun", "waiting")
        return True
