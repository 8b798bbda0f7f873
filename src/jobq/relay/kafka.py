"""The `kafka://` target: an idempotent producer with acks=all and compression.

Messages are keyed by tenant/queue/job, so the events of one job stay in order. The query of the URL
sets options of librdkafka: `kafka://host:9092,host2:9092/topic?security.protocol=SSL`. Credentials
come from the environment: JQ_KAFKA_SASL_MECHANISM (default PLAIN), JQ_KAFKA_SASL_USERNAME and
JQ_KAFKA_SASL_PASSWORD.

Marks (`core.records.marks`) are written to every partition of the topic.

Messages never expire. While Kafka is unavailable, the page stays in the producer's queue, in order
and unacknowledged, and the store keeps all later events.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer

from jobq.core.kafka import sasl
from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.marks import Mark
from jobq.core.records.marks import encode as encode_mark
from jobq.core.values.printable import redacted_url
from jobq.engine.service import Outage
from jobq.errors import ConfigError
from jobq.relay.targets import Rejected, TargetUnavailable

log = logging.getLogger("jobq.relay.kafka")

T = TypeVar("T")

_ANSWER_S = 10.0  # seconds to wait for the list of partitions: longer than an election of leaders

# Errors of a message that Kafka would reject every time.
_PERMANENT = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
    }
)

_CHECK_S = 10.0
"""Seconds that Kafka has to respond to `check`."""


def _credentials() -> dict[str, str]:
    """Options of librdkafka for the credentials in the environment. The default is TLS."""
    found = sasl(os.environ)
    if found is None:
        return {}
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": found.mechanism}
    return (
        {**options, "sasl.username": found.username, "sasl.password": found.password}
        if found.username
        else options
    )


class KafkaTarget:
    """One producer for all queues. A thread polls it and runs its delivery callbacks."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.topic = parts.path.strip("/")
        if not parts.netloc or not self.topic:
            raise ConfigError(f"{redacted_url(url)!r} has no topic: use kafka://host:9092/topic")
        if "@" in parts.netloc:
            raise ConfigError(
                f"{redacted_url(url)!r} contains credentials: "
                "use JQ_KAFKA_SASL_USERNAME and JQ_KAFKA_SASL_PASSWORD instead"
            )
        self.name = f"kafka://{parts.netloc}/{self.topic}"
        self.config: dict[str, Any] = {
            "bootstrap.servers": parts.netloc,
            "client.id": "jq-relay",
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 5,
            # No timeout: if one message expired, later ones would be delivered before it.
            "message.timeout.ms": 0,
            **_credentials(),
            **dict(parse_qsl(parts.query)),
            "error_cb": self._on_error,
        }
        self.outage = Outage(f"shipping events to {self.name}")
        self.problem: str | None = None
        self._checking = False
        self._producer: Producer | None = None
        # Tells the current producer's thread to discard unsent messages and end.
        self._retired = threading.Event()

    async def open(self) -> None:
        """Start the producer. It connects in the background, whenever Kafka is available."""
        if self._producer is None:
            try:
                self._producer = Producer(self.config, logger=_Lines())
            except KafkaException as e:
                raise ConfigError(f"{self.name}: {e.args[0].str()}") from e
            self._retired = threading.Event()
            threading.Thread(
                target=_serve,
                args=(self._producer, self._retired),
                name="jq-relay-kafka",
                daemon=True,
            ).start()

    async def check(self) -> str:
        """Ask Kafka for the topic. TargetUnavailable if it does not respond."""
        self._checking = True
        await self.open()
        assert self._producer is not None
        try:
            found = await asyncio.to_thread(self._producer.list_topics, self.topic, _CHECK_S)
        except KafkaException as e:
            why = self.problem or e.args[0].str()
            raise TargetUnavailable(f"{self.name} does not respond: {why}") from e
        finally:
            self._checking = False
        topic = found.topics[self.topic]
        if topic.error is not None:
            return f"responds; the topic {self.topic} does not exist yet ({topic.error.str()})"
        return f"responds; the topic {self.topic} has {len(topic.partitions)} partitions"

    def _on_error(self, error: KafkaError) -> None:
        """Called on the producer's thread, for each try to connect to each broker."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.problem = error.str()
        elif not self._checking:
            self.outage.failed(
                TargetUnavailable(f"{error.str()}: {self.problem or 'no reason given'}")
            )

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Queue the page in the producer and wait for every delivery report."""
        await self.open()
        assert self._producer is not None
        delivery: _Delivery[EventRecord] = _Delivery(asyncio.get_running_loop(), len(events))
        rejected = [
            Rejected(event, why)
            for event in events
            if (
                why := await self._produce(
                    wire.encode(event), delivery.callback(event), key=wire.key(event)
                )
            )
        ]
        delivery.give_up(len(rejected))
        try:
            await delivery.done
        except asyncio.CancelledError:
            # Another relay may send these events next: nothing of this page may follow then.
            self._abandon()
            raise
        rejected += [
            Rejected(event, error.str())
            for event, error in delivery.failed
            if error.code() in _PERMANENT
        ]
        lost = [error for _, error in delivery.failed if error.code() not in _PERMANENT]
        if lost:
            # After a fatal error a producer never works again. The next send starts a new one.
            self._abandon()
            raise TargetUnavailable(
                f"{self.name}: {len(lost)} of {len(events)} events were not delivered: "
                f"{lost[0].str()}"
            )
        self.problem = None
        self.outage.over()
        return rejected

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Write the marks to all partitions that the topic has now."""
        await self.open()
        partitions = await asyncio.to_thread(self._partitions)
        places = [(mark, partition) for mark in marks for partition in partitions]
        delivery: _Delivery[Mark] = _Delivery(asyncio.get_running_loop(), len(places))
        for mark, partition in places:
            value = encode_mark(mark, partition, len(partitions))
            why = await self._produce(value, delivery.callback(mark), partition=partition)
            if why:
                raise TargetUnavailable(f"{self.name}: could not write a mark: {why}")
        await delivery.done
        if delivery.failed:
            raise TargetUnavailable(
                f"{self.name}: {len(delivery.failed)} of {len(places)} marks were not delivered: "
                f"{delivery.failed[0][1].str()}"
            )

    def _partitions(self) -> list[int]:
        """The partitions of the topic, asked every time: somebody may have added some, and a mark
        that is missing in one of them would claim too much."""
        assert self._producer is not None
        try:
            topic = self._producer.list_topics(self.topic, timeout=_ANSWER_S).topics[self.topic]
        except KafkaException as e:
            raise TargetUnavailable(f"{self.name}: {e.args[0].str()}") from e
        if topic.error is not None or not topic.partitions:
            raise TargetUnavailable(f"{self.name}: the topic has no partitions: {topic.error}")
        return sorted(topic.partitions)

    async def _produce(
        self, value: bytes, on_delivery: Any, *, key: bytes | None = None, partition: int = -1
    ) -> str | None:
        """Queue one message. Returns the reason if Kafka can never accept it, otherwise None.

        Without a partition, the key chooses it."""
        assert self._producer is not None
        while True:
            try:
                self._producer.produce(
                    self.topic, value=value, key=key, partition=partition, on_delivery=on_delivery
                )
                return None
            except BufferError:  # the producer's queue is full: wait for deliveries
                await asyncio.sleep(0.01)
            except KafkaException as e:
                error = e.args[0]
                if error.code() in _PERMANENT:
                    return str(error.str())
                self._abandon()
                raise TargetUnavailable(f"{self.name}: {error.str()}") from e

    def _abandon(self) -> None:
        """Drop the producer and its unsent messages. Their deliveries are reported as failed."""
        self._producer = None
        self._retired.set()

    async def tick(self) -> None:
        """Do nothing: the producer's thread does the work."""

    async def aclose(self) -> None:
        """Drop the producer. The next relay sends what was not acknowledged."""
        self._abandon()


class _Lines:
    """What librdkafka logs. It has a line for each try to connect to each broker, so its lines are
    for `debug`. `KafkaTarget` logs when Kafka is lost and when it is back."""

    def log(self, level: int, message: str, *args: object) -> None:
        """Called by confluent_kafka: `args` begin with what the line is about, e.g. FAIL."""
        about_settings = bool(args) and str(args[0]).startswith("CONF")
        log.log(level if about_settings else logging.DEBUG, message, *args)


def _serve(producer: Producer, retired: threading.Event) -> None:
    """Poll the producer, which runs its callbacks, until it is retired. Then discard its queue."""
    while not retired.is_set():
        producer.poll(0.1)
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    producer.flush(2.0)


class _Delivery(Generic[T]):
    """Counts the delivery reports of one page. They arrive on the producer's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expected: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.failed: list[tuple[T, KafkaError]] = []
        self._loop, self._left = loop, expected
        self._lock = threading.Lock()
        self._finish_if_none_left(0)

    def callback(self, sent: T) -> Any:
        """The delivery callback of one message."""

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                self.failed.append((sent, error))
            self._finish_if_none_left(1)

        return report

    def give_up(self, count: int) -> None:
        """Stop waiting for `count` messages that were never queued."""
        self._finish_if_none_left(count)

    def _finish_if_none_left(self, arrived: int) -> None:
        with self._lock:
            self._left -= arrived
            finished = self._left == 0
        if finished:
            # RuntimeError: the event loop is closed, so nobody waits for the page.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
