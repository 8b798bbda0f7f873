"""Load, and what must hold of it afterwards whatever was done to the servers meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.states import ENDED, State
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.audit import check_story, stories_of
from jobq_conformance.kit import read_log
from tests.waiting import takes, until, until_it_succeeds

APP = Path(__file__).with_name("app.py")
QUEUE = QueueName("faults", "faults")
PATIENCE = 90
_names = count()


class Workers:
    """Worker processes that die and are replaced."""

    def __init__(self, url: str, n: int) -> None:
        self.url = url
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(n):
            self._start()

    def _start(self) -> None:
        name = f"worker-{next(_names)}"
        self.running[name] = subprocess.Popen([sys.executable, str(APP), self.url, name])

    def kill_one(self, name: str | None = None) -> None:
        """-9, and another takes its place. Without a name, any of them."""
        victim = self.running.pop(name or random.choice(list(self.running)))
        victim.kill()
        victim.wait()
        self._start()

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@asynccontextmanager
async def workers(url: str, n: int = 2) -> AsyncIterator[Workers]:
    """Worker processes for a while."""
    group = await asyncio.to_thread(Workers, url, n)
    try:
        yield group
    finally:
        await asyncio.to_thread(group.stop)


async def produce(store: Store, n: int, pace: float = 0.01, first: int = 0) -> list[str]:
    """Put n jobs in small batches, repeating each until it is acknowledged. Returns the ids.

    `first` is the number of the first job."""
    acknowledged: list[str] = []
    for start in range(first, first + n, 20):
        specs = [
            JobSpec(
                queue=QUEUE, id=f"j{k:05}", name="work", payload=b"[[%d],{}]" % k, max_stalls=1000
            )
            for k in range(start, min(start + 20, first + n))
        ]
        await stubborn(store, specs)
        acknowledged += [spec.id for spec in specs]
        await takes(pace)
    return acknowledged


async def stubborn(store: Store, specs: list[JobSpec]) -> None:
    """The outcome of a call that failed is unknown: repeat it until it is known."""
    await until_it_succeeds(
        lambda: store.put(specs), StoreUnavailable, "the store to take jobs", seconds=PATIENCE
    )


async def all_ended(store: Store, n: int) -> None:
    """Wait until nothing of the n jobs is under way."""

    async def ended() -> bool:
        try:
            counts = await store.count(QUEUE)
        except StoreUnavailable:
            return False
        return sum(counts[state] for state in ENDED) >= n

    await until(ended, "all jobs to end", seconds=PATIENCE)


async def begin(url: str) -> None:
    """Register a reader, so that the whole log is there to be checked in the end."""
    async with open_store(url) as store:
        await store.ack_events(QUEUE, "faults", "0")


async def check(url: str, ids: list[str]) -> Counter[str]:
    """Check that each acknowledged job ended exactly once and each repeat run has a reason.

    Returns how often each kind of event occurred."""
    async with open_store(url) as store:
        log = await read_log(store, QUEUE, limit=5000)
        stories = stories_of(log)
        assert set(ids) <= stories.keys(), f"lost: {sorted(set(ids) - stories.keys())[:10]}"
        for id in ids:
            story = stories[id]
            check_story(story)
            assert sum(e.state in ENDED for e in story) == 1, described(story)
            assert story[-1].state is State.COMPLETED, described(story)
        counts = await store.count(QUEUE)
        assert counts[State.COMPLETED] == len(ids)
        assert not any(
            counts[state] for state in (State.ACTIVE, State.WAITING, State.DELAYED, State.BLOCKED)
        )
    return Counter(str(e.kind) for e in log)


def described(story: list[EventRecord]) -> str:
    """A job's story in a line."""
    return f"{story[0].job}: " + ", ".join(
        f"{e.kind} by {e.worker} at {e.at_ms % 100_000}" for e in story
    )
