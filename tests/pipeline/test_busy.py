"""The audit of a queue that never rests: jobs come and go while the lake is read and audited."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from jobq.core.records.jobs import QueueName
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.audit.verdict import QueueAudit
from jobq.pipeline.lake import Lake
from jobq.relay import Relay, open_target
from jobq.stores import open_store
from jobq_conformance.kit import Desk, FakeClock, complete
from tests.pipeline.conftest import take_in
from tests.pipeline.stories import Lines, is_mark
from tests.waiting import takes, wait_until

QUEUE = QueueName("acme", "busy")
PAUSE_S = 0.02  # between two jobs


class Traffic:
    """Jobs that are put, run and completed without end. `done` counts them."""

    def __init__(self, url: str) -> None:
        self.url, self.done = url, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        async with open_store(self.url) as store:
            desk = Desk(store, QUEUE, FakeClock())
            for n in count():
                if self._stop.is_set():
                    return
                await desk.put(f"job-{n}")
                await desk.settle(complete(await desk.take()))
                self.done = n + 1
                await takes(PAUSE_S)

    def more(self, jobs: int) -> None:
        """Wait until so many more jobs have completed."""
        wanted = self.done + jobs
        wait_until(lambda: self.done >= wanted, f"{jobs} more jobs")

    @contextmanager
    def flowing(self) -> Iterator[Traffic]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(30)


def shipped(url: str, folder: Path) -> Lines:
    """What a relay ships now: the events since the last call, and their mark."""

    async def ship() -> None:
        target = open_target(f"files://{folder}")
        await target.open()
        async with open_store(url) as store:
            # One name for all, so that none has to wait for the leadership of the one before.
            await Relay(store, target, who="one", rejected=folder / "refused").drain()
        await target.aclose()

    before = {*folder.glob("*.jsonl")}
    asyncio.run(ship())
    new = sorted({*folder.glob("*.jsonl")} - before)
    return [json.loads(line) for file in new for line in file.read_text().splitlines()]


def test_one_event_removed_from_a_busy_queue_is_found_by_the_next_audit(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, lake = f"sqlite:///{tmp_path}/jobs.db", Lake(spark, str(tmp_path / "lake"))

    def audited(lines: Lines, number: int) -> QueueAudit:
        """Read the lines into the lake and audit it, while the store goes on."""
        take_in(lake, lines, number=number)
        traffic.more(1)
        found = audit(lake, store=url)
        assert found.full == (number == 0)
        (queue,) = found.queues
        assert queue.behind > 0, "the queue was to be busy"
        return queue

    with Traffic(url).flowing() as traffic:
        traffic.more(20)
        first = audited(shipped(url, tmp_path / "shipped"), 0)
        assert first.problems == []
        (doubt,) = first.doubts
        assert doubt.startswith(f"the lake is {first.behind:,} events behind the store")

        traffic.more(20)
        lines = shipped(url, tmp_path / "shipped")
        events = [line for line in lines if not is_mark(line)]
        gone = next(line for line in events[len(events) // 2 :] if line["kind"] == "completed")
        second = audited([line for line in lines if line is not gone], 1)
        assert (second.verdict, second.problems[0]) == ("violated", f"1 × lost: {gone['number']:,}")
