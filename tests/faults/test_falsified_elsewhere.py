"""The falsifications of tests/pipeline/test_falsified.py, on Kafka and on Delta tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from jobq.pipeline.session import open_session
from tests.kafka import Kafka, spark_jars
from tests.pipeline.stories import Lines, is_mark
from tests.pipeline.test_falsified import CASES, check, make_world

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

PARTITIONS = 4


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with Delta and the Kafka connector in it."""
    conf = {
        "spark.jars": spark_jars("spark-delta", "spark-kafka"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
    }
    session = open_session("falsified", master="local[2]", format="delta", kafka=True, conf=conf)
    yield session
    session.stop()


def test_on_delta_tables_all_are_judged_rightly(spark: SparkSession, tmp_path: Path) -> None:
    world = make_world(spark, tmp_path, format="delta")
    for name in CASES:
        check(world, name)


def test_on_kafka_all_are_judged_rightly(spark: SparkSession, tmp_path: Path) -> None:
    kafka = Kafka(tmp_path / "kafka").start()

    def deliver(_: Path, lines: Lines) -> str:
        producer = Producer({"bootstrap.servers": kafka.address})
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
        world = make_world(spark, tmp_path, deliver=deliver)
        for name in CASES:
            check(world, name)
    finally:
        kafka.stop()
