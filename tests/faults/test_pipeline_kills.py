"""Exactly once through 20 kills: workers, relays and the pipeline die on Kafka, with duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobq.core.records.states import State
from jobq.pipeline.audit.audit import audit
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
    killed: Counter[str] = Counter()
    left: set[str] = set()  # what killed pipelines have left in the lake
    jobs = 0
    for n in range(KILLS):
        name = [*start][n % 3]
        in_lake = drill.taken_in()
        drill.enqueue(jobs, jobs + JOBS_PER_KILL)
        jobs += JOBS_PER_KILL
        if name == "pipeline" and killed[name] % 2:  # in the middle of a batch
            drill.wait_until(
                lambda old=frozenset(left): drill.staging() - old,
                watch=[*running.values()],
                seconds=300,
            )
        elif name == "pipeline":  # right after a batch, of which Spark has not made a note yet
            drill.wait_until(
                lambda before=in_lake: drill.taken_in() > before,
                watch=[*running.values()],
                seconds=300,
            )
        else:  # with half of the new jobs left to run and to ship
            drill.wait_until(
                lambda wanted=2 * jobs - JOBS_PER_KILL: drill.ended() >= wanted,
                watch=[*running.values()],
                seconds=300,
            )
        drill.kill(running[name])
        killed[name] += 1
        left |= drill.staging() if name == "pipeline" else set()
        if name == "relay":
            drill.send_again()
        running[name] = start[name]()
    drill.wait_until(lambda: drill.ended() == 2 * jobs, watch=[*running.values()], seconds=300)
    drill.wait_until(drill.shipped, watch=[running["relay"]], seconds=300)
    drill.kill(running["pipeline"])
    last = drill.pipeline("--once", "--max-events", "100000")
    assert last.wait(600) == 0, drill.last_words()

    assert killed == {"worker": 7, "relay": 7, "pipeline": 6}
    lake = Lake(spark, drill.lake)
    assert lake.state.totals.duplicates > lake.state.totals.events, "each relay's end forces copies"
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
    assert events.where("kind = 'stalled'").count() > 0, "the killed workers were running jobs"
