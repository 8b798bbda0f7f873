"""A Kafka topic: acks=all, an idempotent producer, compressed, keyed by tenant/queue/job so that one job's events stay in order.

`kafka://host:9092,host2:9092/topic?compression.type=zstd&security.protocol=SSL…`: the query holds options of librdkafka.
Credentials come from the environment: JQ_KAFKA_SASL_MECHANISM (default PLAIN), JQ_KAFKA_SASL_USERNAME, JQ_KAFKA_SASL_PASSWORD.
Messages wait without a limit of time: while Kafka is down they stay queued in the producer in their order, the page is not
acknowledged, and the store keeps all that follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException, Producer

from jobq.core import wire
from jobq.core.event_records import EventRecord
from jobq.core.kafka import sasl
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError
from jobq.relay.targets import Rejected, TargetUnavailable

log = logging.getLogger("jobq.relay.kafka")

_NEVER = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
    }
)


def _credentials() -> dict[str, str]:
    """What the environment holds, as options of librdkafka. Over TLS, unless the URL says otherwise."""
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
    """One producer for all queues; a thread of its own serves its callbacks."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.topic = parts.path.strip("/")
        if not parts.netloc or not self.topic:
            raise ConfigError(f"{redacted_url(url)!r} names no topic: kafka://host:9092/topic")
        if "@" in parts.netloc:
            raise ConfigError(
                f"{redacted_url(url)!r} has credentials in it: set JQ_KAFKA_SASL_USERNAME and JQ_KAFKA_SASL_PASSWORD instead"
            )
        self.name = f"kafka://{parts.netloc}/{self.topic}"
        self.config: dict[str, Any] = {
            "bootstrap.servers": parts.netloc,
            "client.id": "jq-relay",
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 5,
            "message.timeout.ms": 0,  # wait for Kafka as long as it takes: giving up on one message would overtake it
            **_credentials(),
            **dict(parse_qsl(parts.query)),
            "error_cb": self._on_error,
        }
        self.problem: str | None = None
        self._producer: Producer | None = None
        self._retired = (
            threading.Event()
        )  # of the present producer: its thread throws away what is unsent, and ends

    async def open(self) -> None:
        """Start the producer. It connects by itself, now or when Kafka is there."""
        if self._producer is None:
            try:
                self._producer = Producer(self.config, logger=log)
            except KafkaException as e:
                raise ConfigError(f"{self.name}: {e.args[0].str()}") from e
            self._retired = threading.Event()
            threading.Thread(
                target=_serve,
                args=(self._producer, self._retired),
                name="jq-relay-kafka",
                daemon=True,
            ).start()

    def _on_error(self, error: KafkaError) -> None:
        self.problem = error.str()

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Hand the page to the producer and wait for every delivery report."""
        await self.open()
        assert self._producer is not None
        delivery = _Delivery(asyncio.get_running_loop(), len(events))
        refused = [
            Rejected(event, why)
            for event in events
            if (why := await self._produce(event, delivery))
        ]
        delivery.give_up(len(refused))
        try:
            await delivery.done
        except asyncio.CancelledError:
            self._abandon()  # nothing may be delivered behind the back of whoever sends these events next
            raise
        refused += [
            Rejected(event, error.str())
            for event, error in delivery.failed
            if error.code() in _NEVER
        ]
        lost = [error for _, error in delivery.failed if error.code() not in _NEVER]
        if lost:
            self._abandon()  # a producer that lost a message may be broken for good (fatal errors): the next send makes a new one
            raise TargetUnavailable(
                f"{self.name} did not take {len(lost)} of {len(events)} events: {lost[0].str()}"
            )
        self.problem = None
        return refused

    async def _produce(self, event: EventRecord, delivery: _Delivery) -> str | None:
        """Queue one message; answers why not, if it can never be."""
        assert self._producer is not None
        value, key = wire.encode(event), wire.key(event)
        while True:
            try:
                self._producer.produce(
                    self.topic, value=value, key=key, on_delivery=delivery.callback(event)
                )
                return None
            except BufferError:  # the producer's queue is full: wait for reports
                await asyncio.sleep(0.01)
            except KafkaException as e:
                error = e.args[0]
                if error.code() in _NEVER:
                    return str(error.str())
                self._abandon()
                raise TargetUnavailable(f"{self.name}: {error.str()}") from e

    def _abandon(self) -> None:
        """Forget the producer and what it has not sent; whoever waits for its reports hears that they failed."""
        self._producer = None
        self._retired.set()

    async def tick(self) -> None:
        """Nothing to do: the producer's thread looks after it."""

    async def aclose(self) -> None:
        """What was acknowledged is in Kafka; what was not will be sent again by the next relay."""
        self._abandon()


def _serve(producer: Producer, retired: threading.Event) -> None:
    """Call delivery reports as they come, for as long as the producer is in use."""
    while not retired.is_set():
        producer.poll(0.1)
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    producer.flush(2.0)


class _Delivery:
    """Counts the reports of one page; they come on the producer's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expected: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.failed: list[tuple[EventRecord, KafkaError]] = []
        self._loop, self._left = loop, expected
        self._lock = threading.Lock()
        self._finish_if_none_left(0)

    def callback(self, event: EventRecord) -> Any:
        """The report of one message."""

        def report(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                self.failed.append((event, error))
            self._finish_if_none_left(1)

        return report

    def give_up(self, count: int) -> None:
        """So many messages were never queued."""
        self._finish_if_none_left(count)

    def _finish_if_none_left(self, arrived: int) -> None:
        with self._lock:
            self._left -= arrived
            finished = self._left == 0
        if finished:
            with contextlib.suppress(
                RuntimeError
            ):  # the event loop is closed: nobody waits for this any more
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
