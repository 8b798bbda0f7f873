"""The long end-to-end drill: every process is killed several times while jobs come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'jobq[spark]'")

from jobq import State
from tests.pipeline.drill import Drill

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]

ROUNDS = 5
JOBS = 400


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[Drill]:
    made = Drill(tmp_path)
    yield made
    made.close()


def test_the_books_balance_after_many_crashes_of_everything(drill: Drill) -> None:
    chance = random.Random(11)
    drill.enqueue(0, JOBS)
    parts = {"worker": drill.worker(), "relay": drill.relay()}
    drill.wait_until(lambda: drill.ended() > 0, watch=list(parts.values()))
    parts["pipeline"] = drill.pipeline()
    for n in range(1, ROUNDS + 1):
        drill.enqueue(n * JOBS, (n + 1) * JOBS)
        before = drill.taken_in()
        victims = chance.sample(["worker", "relay", "pipeline", "kafka"], 2)
        drill.wait_until(lambda target=before: drill.taken_in() > target, seconds=240)
        if "kafka" in victims:
            drill.kafka.stop(hard=chance.random() < 0.5)
        for name in victims:
            if name in parts:
                drill.kill(parts[name])
        if "kafka" in victims:
            drill.kafka.start()
        for name in ("worker", "relay", "pipeline"):
            if (
                parts[name].poll() is not None
            ):  # killed by us, or a stream that gave up while Kafka was away
                parts[name] = getattr(drill, name)()
    every = 2 * (ROUNDS + 1) * JOBS
    drill.wait_until(lambda: drill.ended() == every, watch=[parts["worker"]], seconds=300)
    drill.wait_until(drill.shipped, watch=[parts["relay"]])
    drill.kill(parts["pipeline"])
    assert drill.pipeline("--once", "--max-events", "100000").wait(300) == 0, drill.last_words()
    verdict = drill.start(
        "audit",
        "jobq.pipeline",
        "audit",
        "--lake",
        drill.lake,
        "--store",
        drill.url,
        "--master",
        "local[2]",
    )
    assert verdict.wait(300) == 0, drill.last_words()
    said = (drill.folder / "audit.txt").read_text()
    assert "verdict: proved" in said
    assert drill.counts()[State.FAILED] == len(range(0, (ROUNDS + 1) * JOBS, 50))
