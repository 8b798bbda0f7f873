"""Events that Kafka rejects for good are kept in the store, as failed jobs that operators see."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobq.core import wire
from jobq.core.records import Failure, JobRecord, QueueName
from jobq.core.states import State
from jobq.relay.targets import Rejected
from jobq.stores.base import Store

QUEUE = "jobq-relay-rejected"
"""The queue of rejected events, in the tenant of each event."""


class StoredRejects:
    """Keeps rejected events as failed jobs. The arguments of each job are the event."""

    where = f"the queue {QUEUE} of their tenants"

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, target: str, rejected: Sequence[Rejected]) -> None:
        """Store the events. An event that was stored before is not stored again."""
        now_ms = int(time.time() * 1000)
        await self._store.restore([_record(each, target, now_ms) for each in rejected])


def _record(rejected: Rejected, target: str, now_ms: int) -> JobRecord:
    event, why = rejected
    return JobRecord(
        queue=QueueName(event.queue.tenant, QUEUE),
        id=event.id,
        name="rejected",
        state=State.FAILED,
        payload=b'[[],{"event":' + wire.encode(event) + b"}]",
        created_ms=now_ms,
        finished_ms=now_ms,
        given_id=True,
        failure=Failure(
            reason="rejected", type="Rejected", message=f"{target}: {why}", at_ms=now_ms
        ),
    )
