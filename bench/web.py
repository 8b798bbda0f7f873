"""Is the dashboard as quick with a million jobs in a queue as with a thousand?

    python -m bench.web                       SQLite files with 1,000 and 1,000,000 jobs, minutes
    python -m bench.web --many 50000          a quick test
    python -m bench.web --store valkey        on a Valkey server; postgres likewise

Both queues have the same mix of states. Requests to both alternate, and the medians are compared.
Each request goes through the whole application, but not through a socket. Exit code 1 if a page or
a call takes more than twice as long with many jobs. What compares jobs with a filter looks at up to
2,000 of them, and a queue with a thousand jobs has fewer, so it has a bound in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

import jobq.web
from bench.places import place
from jobq.core.records.jobs import Claim, Complete, Fail, Failure, JobSpec, QueueName
from jobq.core.records.queues import QueueConfig, RetentionData, ScheduleSpec
from jobq.core.records.workers import WorkerRecord
from jobq.stores import open_store
from jobq.stores.base import Store

BOUND = 2.0
"""How much longer a request may take with many jobs."""
FLOOR_S = 0.003
"""Seconds that count as no difference: half a dozen store calls on a busy machine."""
SEARCH_S = 0.2
"""Seconds that a comparison of 2,000 jobs with a filter may take."""
QUEUE = QueueName("default", "mail")
MAIL = {"tenant": "default", "queue": "mail"}
CHUNK = 500
PAYLOAD = b'[[],{"text":"' + b"x" * 100 + b'"}]'
ERRORS = 20
"""Different errors among the failed jobs."""
ENDED, FAILED, DELAYED = 0.5, 0.15, 0.05
"""Shares of the jobs. The rest is waiting."""

PATHS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/", {}),
    ("/queue", MAIL),
    ("/jobs", MAIL),
    ("/jobs", {**MAIL, "state": "waiting"}),
    ("/jobs", {**MAIL, "state": "failed", "error": "fingerprint3"}),
    ("/job", {**MAIL, "id": "job-3"}),
    ("/search", {"q": "job-3"}),
    ("/dead", {}),
    ("/schedules", {}),
    ("/flows", {}),
    ("/workers", {}),
    ("/worker", {"name": "w"}),
    ("/tenants", {}),
    ("/api/v1/overview", {}),
    ("/api/v1/queue", MAIL),
    ("/api/v1/queue/minutes", MAIL),
    ("/api/v1/queue/events", MAIL),
    ("/api/v1/jobs", MAIL),
    ("/api/v1/jobs/preview", {**MAIL, "state": "failed"}),
    ("/api/v1/jobs/preview", {**MAIL, "state": "failed", "name": "send"}),
    ("/api/v1/job", {**MAIL, "id": "job-3"}),
    ("/api/v1/dead", {}),
)


SEARCHES = {"/jobs?state&error", "/api/v1/jobs/preview?state&name"}
"""What compares jobs with a filter."""


class Timed(NamedTuple):
    """Seconds of one request, with few and with many jobs."""

    path: str
    few: float
    many: float

    @property
    def ratio(self) -> float:
        """How much longer it takes with many jobs."""
        return self.many / self.few

    @property
    def within(self) -> bool:
        """Whether the bound is kept."""
        if self.path in SEARCHES:
            return self.many <= SEARCH_S
        return self.ratio <= BOUND or self.many - self.few <= FLOOR_S


async def fill(store: Store, number: int, tell: Callable[[str], None]) -> None:
    """Put this many jobs into the queue, end some of them, and add what else pages show."""
    keep = RetentionData(completed_ms=None, failed_ms=None, cancelled_ms=None, count=None)
    await store.declare(QUEUE, QueueConfig(retention=keep))
    ended = int(number * ENDED)
    failed, delayed = int(number * FAILED), int(number * DELAYED)
    call = 0
    for start in range(0, number, CHUNK):
        ids = range(start, min(start + CHUNK, number))
        await store.put(
            [
                JobSpec(
                    queue=QUEUE,
                    id=f"job-{n}",
                    name="send",
                    payload=PAYLOAD,
                    given_id=True,
                    delay_ms=3_600_000 if n >= number - delayed else 0,
                )
                for n in ids
            ]
        )
        if start % 100_000 == 0:
            tell(f"{start:,} of {number:,} jobs")
    for start in range(0, ended, CHUNK):
        claim = Claim(queues=(QUEUE,), limit=min(CHUNK, ended - start), lease_ms=3_600_000)
        call += 1
        claimed = await store.settle([], worker="w", call=str(call), then=claim)
        outcomes: list[Complete | Fail] = []
        for place_, lease in enumerate(claimed.leases, start):
            name = {"queue": QUEUE, "id": lease.id, "token": lease.token}
            if place_ % (ended // max(1, failed) or 1) == 0:
                failure = Failure(
                    reason="error",
                    type="ValueError",
                    message=f"bad value {place_ % ERRORS}",
                    fingerprint=f"fingerprint{place_ % ERRORS}",
                )
                outcomes.append(Fail(**name, failure=failure))  # type: ignore[arg-type]
            else:
                outcomes.append(Complete(**name, result=PAYLOAD))  # type: ignore[arg-type]
        call += 1
        await store.settle(outcomes, worker="w", call=str(call))
        if start % 100_000 == 0:
            tell(f"{start:,} of {ended:,} ended")
    template = JobSpec(queue=QUEUE, id="x", name="send", payload=PAYLOAD)
    await store.put_schedule(
        ScheduleSpec(queue=QUEUE, id="nightly", template=template, every_ms=3_600_000),
        next_ms=4_000_000_000_000,
    )
    worker = WorkerRecord(name="w", host="h", pid=1, queues=(QUEUE,), concurrency=10)
    await store.beat(worker, ttl_ms=86_400_000)


async def measure(urls: tuple[str, str], numbers: tuple[int, int], rounds: int) -> list[Timed]:
    """The medians of each path on both stores."""
    console = Console(stderr=True)
    for url, number in zip(urls, numbers, strict=True):
        async with open_store(url) as store:
            await fill(store, number, console.log)
    seconds: dict[tuple[int, int], list[float]] = {}
    browsers = [
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=jobq.web.app(url)), base_url="http://localhost"
        )
        for url in urls
    ]
    for turn in range(rounds + 1):
        for place_, (path, query) in enumerate(PATHS):
            for which, browser in enumerate(browsers):
                began = time.perf_counter()
                reply = await browser.get(path, params=query)
                took = time.perf_counter() - began
                if reply.status_code not in (200, 303):  # a search that finds one job leads to it
                    raise SystemExit(f"{path} returned {reply.status_code}: {reply.text[:200]}")
                if turn:  # the first round loads templates and caches
                    seconds.setdefault((place_, which), []).append(took)
    return [
        Timed(
            path + (f"?{'&'.join(k for k in query if k not in MAIL)}" if query else ""),
            statistics.median(seconds[place_, 0]),
            statistics.median(seconds[place_, 1]),
        )
        for place_, (path, query) in enumerate(PATHS)
    ]


URLS = {"sqlite": "sqlite:///{folder}/jobs.db", "valkey": "valkey://127.0.0.1:{port}"}


@contextmanager
def _stores(kind: str) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        few, many = (stack.enter_context(place(kind, URLS.get(kind, ""))).url for _ in range(2))
        yield few, many


def main() -> int:
    """Measure, print a table, and return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", default="sqlite", choices=("sqlite", "valkey", "postgres"))
    parser.add_argument("--few", type=int, default=1_000)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with _stores(given.store) as urls:
        found = asyncio.run(measure(urls, (given.few, given.many), given.rounds))
    table = Table("request", f"{given.few:,} jobs", f"{given.many:,} jobs", "ratio")
    for each in found:
        table.add_row(
            each.path,
            f"{each.few * 1000:.1f} ms",
            f"{each.many * 1000:.1f} ms",
            f"{each.ratio:.2f}"
            + (", up to 2,000 jobs" if each.path in SEARCHES else "")
            + ("" if each.within else ", too slow"),
        )
    Console().print(table)
    return 0 if all(each.within for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
