"""The lake as Delta tables, interrupted in the middle of a batch.

A fault test, because Delta's own bookkeeping takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobq.pipeline import synthetic
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.jobs.upkeep import compact, retain
from jobq.pipeline.lake import Batch, Lake
from jobq.pipeline.session import open_session
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.tables import ATTEMPTS, EVENTS, QUARANTINE, QUEUE_MINUTE
from tests.kafka import spark_jars
from tests.pipeline.conftest import History, take_in, wire_rows

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with Delta in it."""
    conf = {
        "spark.jars": spark_jars("spark-delta"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
    }
    session = open_session("delta", master="local[2]", format="delta", conf=conf)
    yield session
    session.stop()


def test_a_delta_lake_holds_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = synthetic.Plan(
        jobs=150, start_ms=History.START + 23 * 3_600_000 + 1_800_000, hours=1
    )  # over midnight
    lines: list[Any] = list(synthetic.lines(plan))
    delta, plain = (
        Lake(spark, str(tmp_path / "delta"), format="delta"),
        Lake(spark, str(tmp_path / "plain")),
    )
    take_in(plain, [*lines, "nonsense"])
    half = len(lines) // 2
    take_in(delta, lines[:half], number=0)
    rows = wire_rows(spark, [*lines, "nonsense"])

    def stop(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(delta, "_commit", stop)
    with pytest.raises(InterruptedError):
        ingest(delta, rows, Batch(run="test", number=1))
    monkeypatch.undo()
    again = Lake(spark, delta.root)
    assert again.state.format == "delta"
    ingest(again, rows, Batch(run="test", number=1))
    assert again.state.totals.events == len(lines)
    for lake in (again, plain):
        derive(lake, DEFAULTS)
    for table in (EVENTS, QUARANTINE, ATTEMPTS, QUEUE_MINUTE):
        columns = [name for name in table.columns if table is not QUARANTINE or name == "problem"]
        found, wanted = (
            sorted(map(str, lake.read(table).select(*columns).collect())) for lake in (again, plain)
        )
        assert found == wanted, table.name
    audited = audit(again)
    assert ({queue.verdict for queue in audited.queues}, audited.stray) == ({"proved"}, 1)
    assert compact(again)
    assert retain(again, keep_days=1, today=date(2025, 11, 17))["events"] >= 1
    assert {queue.verdict for queue in audit(again).queues} == {"proved"}
