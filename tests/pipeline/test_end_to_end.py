"""From jobs to the audit's verdict, with real Kafka and Spark, while every part is killed once.

tests/faults/test_pipeline.py is a longer version of this test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobq import State
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS, TENANT_DAY
from tests.pipeline.drill import Drill


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    made = Drill(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(400)
def test_the_lake_agrees_with_the_store_after_every_part_was_killed(
    drill: Drill, spark: SparkSession
) -> None:
    drill.enqueue(0, 200)
    worker, relay = drill.worker(), drill.relay()
    drill.wait_until(lambda: drill.ended() >= 50, watch=[worker, relay])
    pipeline = drill.pipeline()
    drill.kill(worker)
    worker = drill.worker()
    drill.wait_until(lambda: drill.taken_in() > 0, watch=[worker, relay, pipeline])
    drill.kill(pipeline)
    drill.kafka.stop(hard=True)
    drill.kill(relay)
    drill.enqueue(200, 300)
    relay = drill.relay()
    drill.wait_until(lambda: drill.ended() == 600, watch=[worker, relay])
    drill.kafka.start()
    drill.wait_until(drill.shipped, watch=[relay])
    assert drill.pipeline("--once").wait(200) == 0, drill.last_words()

    lake = Lake(spark, drill.lake)
    found = audit(lake, store=drill.url)
    assert found.verdict == "proved", [
        (queue.queue, queue.problems, queue.behind) for queue in found.queues
    ]
    store = drill.counts()
    assert sum(queue.totals.completed for queue in found.queues) == store[State.COMPLETED]
    assert sum(queue.totals.failed for queue in found.queues) == store[State.FAILED] == 6
    assert sum(queue.totals.accepted for queue in found.queues) == 600
    events = lake.read(EVENTS)
    assert events.count() == events.select("id").distinct().count() == lake.state.totals.events
    usage = lake.read(TENANT_DAY).selectExpr("sum(accepted)", "sum(completed)").first()
    assert usage is not None
    assert tuple(usage) == (600, store[State.COMPLETED])
