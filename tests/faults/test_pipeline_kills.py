"""Exactly once through 20 kills: workers, relays and the pipeline die on Kafka, with duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobq.core.states import State
from jobq.pipeline.audit import audit
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS
from tests.pipeline.conftest import spark as spark
from tests.pipeline.drill import Drill

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

KILLS = 20
JOBS_PER_KILL = 60


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    made = Drill(tmp_path)
    yield made
    made.close()


def test_every_event_is_in_the_lake_once_after_20_kills(drill: Drill, spark: SparkSession) -> None:
    start = {"worker": drill.worker, "relay": drill.relay, "pipeline": drill.pipeline}
    running = {name: begin() for name, begin in start.items()}
    jobs = 0
    for n in range(KILLS):
        name = [*start][n % 3]
        in_lake = drill.taken_in()
        drill.enqueue(jobs, jobs + JOBS_PER_KILL)
        jobs += JOBS_PER_KILL
        # Kill it while it works: the worker with jobs left, the pipeline between its batches.
        drill.wait_until(lambda wanted=jobs: drill.ended() >= wanted, seconds=300)
        if name == "pipeline":
            drill.wait_until(lambda before=in_lake: drill.taken_in() > before, seconds=300)
        drill.kill(running[name])
        if name == "relay":
            drill.send_again()
        running[name] = start[name]()
    drill.wait_until(lambda: drill.ended() == 2 * jobs, seconds=300)
    drill.wait_until(drill.shipped, seconds=300)
    drill.kill(running["pipeline"])
    assert drill.pipeline("--once").wait(600) == 0, drill.last_words()

    lake = Lake(spark, drill.lake)
    assert lake.state.totals.duplicates > 0, "the test forces duplicates"
    found = audit(lake, store=drill.url)
    assert found.verdict == "proved", [
        (queue.queue, queue.problems, queue.doubts) for queue in found.queues
    ]
    events = lake.read(EVENTS)
    assert events.count() == events.select("id").distinct().count() == lake.state.totals.events
    store = drill.counts()
    assert sum(queue.totals.accepted for queue in found.queues) == 2 * jobs
    assert sum(queue.totals.completed for queue in found.queues) == store[State.COMPLETED]
    assert sum(queue.totals.failed for queue in found.queues) == store[State.FAILED]
