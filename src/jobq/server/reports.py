"""Turns what workers of other languages report into outcomes. `core.decide` makes the decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from jobq.core.decide import Raised, Unknown, decide
from jobq.core.policies import UNDECLARED
from jobq.core.records import (
    AnyOutcome,
    JobKey,
    LeaseRef,
    QueueName,
    Release,
    SnoozeFor,
)
from jobq.rpc import convert_workers as convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.stores.base import Store

_REMEMBERED_S = 5.0
"""Seconds that the defaults of a tenant's queues are remembered. Reading them lists all queues."""


class QueueDefaults:
    """How often jobs of a queue are retried by default, read when it is needed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, dict[QueueName, int | None]]] = {}

    async def max_retries(self, store: Store, queue: QueueName) -> int | None:
        """The default of the queue. None: it has none."""
        now = time.monotonic()
        until, found = self._known.get(queue.tenant, (0.0, {}))
        if until <= now:
            records = await store.queues(queue.tenant)
            found = {each.queue: each.defaults.max_retries for each in records}
            self._known[queue.tenant] = (now + _REMEMBERED_S, found)
        return found.get(queue)


async def outcomes_of(
    store: Store,
    results: Sequence[pb.Result],
    tenant: str,
    *,
    now_ms: int,
    random: Callable[[], float],
    defaults: QueueDefaults,
) -> list[AnyOutcome]:
    """The outcomes of runs, in order. Reads only jobs whose outcome depends on their record."""
    convert.bounded(results, "results")
    refs = [convert.lease_ref(result.lease, tenant) for result in results]
    ends = [convert.end_of(result) for result in results]
    needed = [
        JobKey(ref.queue, ref.id)
        for ref, result in zip(refs, results, strict=True)
        if convert.needs_record(result)
    ]
    records = dict(zip(needed, await store.get(needed) if needed else (), strict=True))
    outcomes: list[AnyOutcome] = []
    for ref, result, end in zip(refs, results, ends, strict=True):
        record = records.get(JobKey(ref.queue, ref.id))
        if isinstance(end, SnoozeFor):
            outcomes.append(
                msgspec.structs.replace(end, queue=ref.queue, id=ref.id, token=ref.token)
            )
        else:
            if isinstance(end, Unknown) and record is not None:
                end = Unknown(record.name)
            lease = convert.lease_of(ref, result, record)
            if lease.retry is None and isinstance(end, Raised):
                default = await defaults.max_retries(store, ref.queue)
                lease = msgspec.structs.replace(lease, default_retries=default)
            outcomes.append(decide(lease, end, retry=UNDECLARED, now_ms=now_ms, random=random))
    return outcomes


def releases_of(leases: Sequence[LeaseRef], *, delay_ms: int) -> list[AnyOutcome]:
    """The outcomes of jobs that are released, in order.

    A released job returns to the front of its queue. With a delay it is snoozed, and keeps what it
    has saved.
    """
    if not delay_ms:
        return [Release(queue=each.queue, id=each.id, token=each.token) for each in leases]
    return [
        SnoozeFor(queue=each.queue, id=each.id, token=each.token, delay_ms=delay_ms, saved_number=1)
        for each in leases
    ]
