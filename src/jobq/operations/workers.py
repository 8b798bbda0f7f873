"""Orders to workers. A worker receives one with its next heartbeat."""

from __future__ import annotations

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import WorkerRecord, WorkerRequest, asked_concurrency
from jobq.core.values.checks import check_id
from jobq.errors import JobNotFound
from jobq.stores.base import Store

ORDERS: dict[str, str] = {
    "drain": "finish its running jobs and claim no more",
    "resume": "claim jobs again",
    "shutdown": "finish its running jobs and stop",
    "shutdown-now": "release its running jobs and stop",
}
"""What each request asks of a worker."""


def words(request: WorkerRequest) -> str:
    """What a request asks of a worker."""
    if (number := asked_concurrency(request)) is None:
        return ORDERS[request]
    return f"run up to {number} {'job' if number == 1 else 'jobs'} at once"


async def of_tenant(
    store: Store, tenant: str | None, queue: QueueName | None = None
) -> list[WorkerRecord]:
    """The live workers of a queue, of a tenant or of all, by name."""
    found = await store.workers(queue)
    return sorted(
        (
            each
            for each in found
            if tenant is None or any(name.tenant == tenant for name in each.queues)
        ),
        key=lambda each: each.name,
    )


async def ask(store: Store, name: str, request: WorkerRequest) -> None:
    """Ask a worker. Raises JobNotFound if no such worker is alive."""
    if not await store.ask_worker(check_id(name, "worker"), request):
        raise JobNotFound(f"no worker {name!r} is alive")
