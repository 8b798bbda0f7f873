"""Events that Kafka rejects are kept in the store."""

from __future__ import annotations

from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.relay.targets import Rejected
from jobq.server.run import REJECTED_QUEUE, StoredRejects
from jobq.stores import open_store

MAIL = QueueName("acme", "mail")


async def test_a_rejected_event_becomes_a_failed_job_of_its_tenant_once() -> None:
    async with open_store("memory://rejects") as store:
        await store.put([JobSpec(queue=MAIL, id="1", name="send", payload=b"[[],{}]")])
        (event,) = (await store.read_events(MAIL, after="0")).events
        rejects = StoredRejects(store)
        for _ in range(2):
            await rejects.keep("kafka://broker/topic", [Rejected(event, "too large")])
        (record,) = await store.get([JobKey(QueueName("acme", REJECTED_QUEUE), event.id)])
        assert record is not None
        assert record.state is State.FAILED
        assert record.failure is not None
        assert record.failure.message == "kafka://broker/topic: too large"
        assert b'"job":"1"' in record.payload.replace(b" ", b"")
        counts = await store.count(QueueName("acme", REJECTED_QUEUE))
        assert counts[State.FAILED] == 1
