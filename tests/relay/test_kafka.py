"""The Kafka target against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobSpec
from jobq.core.values.checks import MAX_ID_LENGTH
from jobq.relay import Relay, open_target
from jobq.stores.base import Store
from tests.kafka import Kafka
from tests.relay.conftest import QUEUE, put, work
from tests.waiting import until


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    broker = Kafka(tmp_path_factory.mktemp("kafka")).start()
    yield broker
    broker.stop()


def read(kafka: Kafka, topic: str, count: int) -> list[EventRecord]:
    """At least `count` events of a topic, in the order of its partitions."""
    group = {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": kafka.address, **group})
    consumer.subscribe([topic])
    found: list[EventRecord] = []
    until = time.monotonic() + 60
    while len({event.id for event in found}) < count:
        message = consumer.poll(30) if time.monotonic() < until else None
        assert message is not None, f"only {len(found)} of {count} events came"
        error, value = message.error(), message.value()
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            continue  # the first event creates the topic, and has not arrived yet
        assert error is None
        assert value is not None
        if b'"kind":"mark"' in value:
            continue
        assert message.key() == wire.key(wire.decode(value))
        found.append(wire.decode(value))
    consumer.close()
    return found


async def test_one_jobs_events_arrive_in_order(store: Store, kafka: Kafka) -> None:
    target = open_target(f"kafka://{kafka.address}/in-order")
    relay = Relay(store, target)
    ids = [f"job-{n}" for n in range(50)]
    await put(store, *ids)
    await work(store)
    assert await relay.drain() == 150
    await target.aclose()
    arrived = await asyncio.to_thread(read, kafka, "in-order", 150)
    assert len(arrived) == 150
    for id in ids:
        assert [event.kind for event in arrived if event.job == id] == [
            "accepted",
            "started",
            "completed",
        ]


async def test_while_kafka_is_down_jobs_run_and_events_follow_in_order(
    store: Store, kafka: Kafka
) -> None:
    target = open_target(f"kafka://{kafka.address}/outage")
    relay = Relay(store, target, lease=1.5)
    running = asyncio.ensure_future(relay.run())
    await put(store, "before")
    await asyncio.to_thread(read, kafka, "outage", 1)
    await asyncio.to_thread(kafka.stop)
    await put(store, "during")
    await work(store)
    await until(
        lambda: any(queue.problem for queue in relay.status.queues), "the relay to see the outage"
    )
    await asyncio.to_thread(kafka.start)
    arrived = await asyncio.to_thread(read, kafka, "outage", 6)
    relay.stop()
    await running
    for id in ("before", "during"):
        kinds = [
            event.kind
            for event in {event.id: event for event in arrived if event.job == id}.values()
        ]
        assert kinds == ["accepted", "started", "completed"]


async def test_an_event_too_large_for_the_broker_is_saved_as_rejected(
    store: Store, kafka: Kafka, tmp_path: Path
) -> None:
    target = open_target(
        f"kafka://{kafka.address}/small?message.max.bytes=1000&compression.type=none"
    )
    relay = Relay(store, target, rejected=tmp_path / "refused.jsonl")
    name = "\N{SNAIL}" * MAX_ID_LENGTH  # of 4 bytes each
    long_name = JobSpec(queue=QUEUE, id="long", name=name, payload=b"[[],{}]", given_id=True)
    await store.put([long_name])
    await put(store, "short")
    assert await relay.drain() == 2
    await target.aclose()
    arrived = await asyncio.to_thread(read, kafka, "small", 2)
    assert {(event.job, event.kind, event.number) for event in arrived} == {
        ("short", "accepted", 2),
        ("", "gap", 1),
    }
    assert '"job":"long"' in (tmp_path / "refused.jsonl").read_text()
    assert relay.status.queues[0].refused == 1


async def test_every_partition_gets_the_mark_after_the_events(store: Store, kafka: Kafka) -> None:
    target = open_target(f"kafka://{kafka.address}/marked")
    await put(store, *(f"job-{n}" for n in range(20)))
    assert await Relay(store, target, who="first").drain() == 20
    await target.aclose()
    seen = await asyncio.to_thread(lines_by_partition, kafka, "marked", 24)
    assert sorted(seen) == [0, 1, 2, 3]
    for partition, lines in seen.items():
        last = lines[-1]
        assert (last["kind"], last["number"], last["partition"], last["partitions"]) == (
            "mark",
            20,
            partition,
            4,
        )
        assert [line for line in lines[:-1] if line["kind"] == "mark"] == []


def lines_by_partition(kafka: Kafka, topic: str, count: int) -> dict[int, list[dict[str, Any]]]:
    """The first `count` messages of a topic, by partition."""
    group = {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": kafka.address, **group})
    consumer.subscribe([topic])
    found: dict[int, list[dict[str, Any]]] = {}
    for _ in range(count):
        message = consumer.poll(30)
        assert message is not None
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        found.setdefault(partition, []).append(json.loads(value))
    consumer.close()
    return found
