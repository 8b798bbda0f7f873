"""The falsifications of tests/pipeline/test_falsified.py on Kafka, Delta and Iceberg.

`make faults` has a session with Delta, `make test-iceberg` one with Iceberg. Both read Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobq.pipeline.session import Format
from tests.kafka import Kafka
from tests.pipeline.conftest import FORMATS
from tests.pipeline.conftest import spark as spark
from tests.pipeline.stories import Lines, is_mark
from tests.pipeline.test_falsified import CASES, World, make_world, said

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

PARTITIONS = 4


def wrongly_judged(world: World) -> dict[str, tuple[str, str]]:
    """The falsifications with another verdict or another reason, and what the audit said."""
    found = {name: (world.queue(name).verdict, said(world, name)) for name in CASES}
    return {
        name: (verdict, text)
        for name, (verdict, text) in found.items()
        if verdict != CASES[name].verdict or CASES[name].says not in text
    }


@pytest.mark.parametrize("format", FORMATS[1:])
def test_on_tables_of_another_format_all_are_judged_rightly(
    spark: SparkSession, tmp_path: Path, format: Format
) -> None:
    assert wrongly_judged(make_world(spark, tmp_path, format=format)) == {}


@pytest.mark.parametrize("format", FORMATS)
def test_on_kafka_all_are_judged_rightly(
    spark: SparkSession, tmp_path: Path, format: Format
) -> None:
    client = pytest.importorskip("confluent_kafka", reason="needs jobq[kafka]")
    kafka = Kafka(tmp_path / "kafka").start()

    def deliver(_: Path, lines: Lines) -> str:
        producer = client.Producer({"bootstrap.servers": kafka.address})
        for line in lines:
            if is_mark(line) and line["partitions"] == 1:  # the relay writes it to all partitions
                for n in range(PARTITIONS):
                    mark = {**line, "partition": n, "partitions": PARTITIONS}
                    producer.produce("events", json.dumps(mark), partition=n)
            else:
                key = f"{line['tenant']}/{line['queue']}/{line['job']}"
                producer.produce("events", json.dumps(line), key=key)
            producer.poll(0)
        assert producer.flush(60) == 0
        return f"kafka://{kafka.address}/events"

    try:
        assert wrongly_judged(make_world(spark, tmp_path, format=format, deliver=deliver)) == {}
    finally:
        kafka.stop()
