"""The Spark session of the pipeline's tests, and a class that writes events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "pyspark", reason="the pipeline's tests need pyspark: pip install 'jobq[spark]'"
)

from pyspark.sql import DataFrame, SparkSession

from jobq.pipeline.lake import Batch, Lake
from jobq.pipeline.session import _format_settings, open_session
from tests.kafka import spark_jars
from tests.pipeline.quick import QUICK

# The format of tables that the session knows besides Parquet. `make faults` runs the tests with
# Delta. Iceberg needs an older Spark: `make test-iceberg` has an environment of its own.
TABLES = os.environ.get("JQ_TEST_FORMAT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests more time: Spark is slow on a busy machine, and the first test starts it."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


FORMATS = ("parquet", *([TABLES] if TABLES in ("delta", "iceberg") else []))
"""The formats that the session of the tests can write."""

EACH_FORMAT = [
    pytest.param(format, marks=() if format == "parquet" else pytest.mark.faults)
    for format in FORMATS
]
"""The same as parameters of a test."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and few partitions, because tests are small."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["JQ_SPARK_JARS"] = ""
    session = open_session(
        "tests",
        master="local[2]",
        conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.bindAddress": "127.0.0.1",
            **_extensions(),
            "spark.jars": ",".join(filter(None, (_kafka_jars(), _table_jars()))),
            "spark.sql.adaptive.enabled": "false",
            **QUICK,
        },
    )
    yield session
    session.stop()


def _kafka_jars() -> str:
    """The jars of Kafka's connector, or nothing. Tests that need them are skipped."""
    try:
        return spark_jars("spark-kafka-4.1" if TABLES == "iceberg" else "spark-kafka")
    except pytest.skip.Exception:
        return ""


def _table_jars() -> str:
    return spark_jars(f"spark-{TABLES}") if TABLES in FORMATS else ""


def _extensions() -> dict[str, str]:
    if TABLES not in FORMATS:
        return {}
    few = {"spark.databricks.delta.snapshotPartitions": "1"}  # the default, 50, is for large tables
    return {**_format_settings(TABLES), **few}  # type: ignore[arg-type]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path / "lake"))


class History:
    """Writes events as a store does: `h.event("accepted", "a", None, "waiting", at=0)`.

    Times are in seconds after midnight."""

    START = 1_763_164_800_000  # 2025-11-15 00:00 UTC

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._jobs: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._logs: dict[tuple[str, str], int] = {}

    def event(
        self,
        kind: str,
        job: str,
        state: str,
        *,
        at: float = 0,
        tenant: str = "acme",
        queue: str = "mail",
        **more: Any,
    ) -> History:
        known = self._jobs.setdefault(
            (tenant, queue, job),
            {"life": 0, "attempt": 0, "failures": 0, "stalls": 0, "state": None},
        )
        at_ms = self.START + int(at * 1000)
        if kind == "accepted":
            known |= {"created_ms": at_ms, "due_ms": at_ms}
        if kind == "rerun":
            known |= {"life": known["life"] + 1, "failures": 0, "stalls": 0, "due_ms": at_ms}
        if kind == "started":
            known |= {"attempt": known["attempt"] + 1, "started_ms": at_ms}
        if kind == "stalled":
            known |= {"stalls": known["stalls"] + 1}
        if kind in ("retried", "failed"):
            known |= {"failures": known["failures"] + 1}
        previous = None if kind == "accepted" else known["state"]
        line = {
            "v": 1,
            "id": f"log-{len(self.lines) + 1}-0-f00dcafe",
            "number": self._next(tenant, queue),
            "shard": 0,
            "kind": kind,
            "at_ms": at_ms,
            "tenant": tenant,
            "queue": queue,
            "job": job,
            "name": "send",
            "previous": previous,
            **known,
            "state": state,
            **more,
        }
        known["state"] = state
        self.lines.append({name: value for name, value in line.items() if value is not None})
        return self

    def life(
        self,
        job: str,
        *,
        at: float = 0,
        wait: float = 1,
        run: float = 2,
        end: str = "completed",
        **more: Any,
    ) -> History:
        """The events of a job that is accepted, started and ended."""
        self.event("accepted", job, "waiting", at=at, **more)
        self.event("started", job, "active", at=at + wait, worker="w-1", **more)
        return self.event(end, job, end, at=at + wait + run, worker="w-1", **more)

    def done(
        self, kind: str, reason: str | None = None, actor: str | None = None, *, at: float = 0
    ) -> History:
        """An operation on the queue."""
        at_ms = self.START + int(at * 1000)
        line = {
            "v": 1,
            "id": f"log-{len(self.lines) + 1}-0-f00dcafe",
            "number": self._next("acme", "mail"),
            "shard": 0,
            "kind": kind,
            "at_ms": at_ms,
            "tenant": "acme",
            "queue": "mail",
            "job": "",
            "life": 0,
            "name": "",
            "attempt": 0,
            "failures": 0,
            "stalls": 0,
            "created_ms": at_ms,
            "reason": reason,
            "actor": actor,
        }
        self.lines.append({name: value for name, value in line.items() if value is not None})
        return self

    def _next(self, tenant: str, queue: str) -> int:
        """The next number of a queue's log."""
        log = self._logs[tenant, queue] = self._logs.get((tenant, queue), 0) + 1
        return log

    def gap(self, *, at: float = 0, dropped: int = 1) -> History:
        """A gap: the store's log lost so many events here."""
        at_ms = self.START + int(at * 1000)
        for _ in range(dropped):
            number = self._next("acme", "mail")
        self.lines.append(
            {
                "v": 1,
                "id": f"log-{len(self.lines) + 1}-0-f00dcafe",
                "number": number,
                "shard": 0,
                "kind": "gap",
                "at_ms": at_ms,
                "tenant": "acme",
                "queue": "mail",
                "job": "",
                "life": 0,
                "name": "",
                "attempt": 0,
                "failures": 0,
                "stalls": 0,
                "created_ms": at_ms,
                "reason": "3 entries dropped",
            }
        )
        return self


@pytest.fixture
def history() -> History:
    return History()


def wire_rows(spark: SparkSession, lines: list[Any]) -> DataFrame:
    """Lines (text, or dicts to encode as JSON) as a source delivers them."""
    import json

    from jobq.pipeline.transforms.parse import from_json_lines

    text = [(line if isinstance(line, str) else json.dumps(line),) for line in lines]
    return from_json_lines(spark.createDataFrame(text, "value string"))


def take_in(lake: Lake, lines: list[Any], number: int = 0, run: str = "test") -> Any:
    """Add lines to the lake as one batch."""
    from jobq.pipeline.jobs.ingest import ingest

    return ingest(lake, wire_rows(lake.spark, lines), Batch(run=run, number=number))
