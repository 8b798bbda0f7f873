"""A store with everything that the dashboard shows, and a browser without a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from jobq.core.records.jobs import (
    Claim,
    Complete,
    Edge,
    Fail,
    Failure,
    JobKey,
    JobSpec,
    LeaseRef,
    Note,
    QueueName,
    RetryLater,
    UniqueSpec,
)
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.workers import WorkerRecord
from jobq.core.rules.waits import StepRecord, pack_step
from jobq.stores.base import Store
from jobq.web.site import Dashboard

MARK = "what only people who see payloads may read"
"""Is in arguments, results, progress, saved values, steps, log lines, meta and errors."""
HOUR_MS = 3_600_000
LOCAL = "http://localhost:8088"


class Browser:
    """Sends requests to a dashboard, keeps its cookies, and sends CSRF tokens along."""

    def __init__(
        self,
        dashboard: Dashboard,
        *,
        base: str = LOCAL,
        client: str = "127.0.0.1",
        headers: Mapping[str, str] | None = None,
        root_path: str = "",
    ) -> None:
        transport = httpx.ASGITransport(app=dashboard, client=(client, 50_000), root_path=root_path)
        self.http = httpx.AsyncClient(transport=transport, base_url=base, headers=headers)

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """GET a path. A query that is None is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return await self.http.get(path, params=given or None)

    async def read(self, path: str, **query: Any) -> Any:
        """What a GET of the API returns."""
        reply = await self.get(f"/api/v1/{path}", **query)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def csrf_token(self) -> str:
        """The token for requests that change something."""
        return str((await self.read("session"))["csrf_token"])

    async def post(self, path: str, /, **body: Any) -> httpx.Response:
        """POST to the API, with a CSRF token."""
        headers = {"X-CSRF-Token": await self.csrf_token()}
        return await self.http.post(f"/api/v1/{path}", json=body, headers=headers)

    async def act(self, name: str, /, **body: Any) -> Any:
        """Carry out an action, e.g. `queue.pause`."""
        reply = await self.post(name.replace(".", "/"), **body)
        assert reply.status_code == 200, reply.text
        return reply.json()


async def fill(store: Store, tenant: str = "acme") -> QueueName:
    """Everything that a tenant can have, in the queue `mail`."""
    queue = QueueName(tenant, "mail")
    payload = b'[[],{"text":"%s"}]' % MARK.encode()

    def spec(id: str, **more: Any) -> JobSpec:
        more.setdefault("meta", {"note": MARK})
        return JobSpec(queue=queue, id=id, name="send", payload=payload, **more)

    await store.declare(queue, QueueConfig(dead_letters="dead", event_meta=("note",)))
    await store.put([spec("done", unique=UniqueSpec(lock="lock")), spec("failed"), spec("again")])
    done, failed, again = (await _claim(store, queue, 3, "1")).values()
    failure = Failure(
        reason="error",
        type="ValueError",
        message=MARK,
        traceback=f"Traceback …\nValueError: {MARK}",
        fingerprint="feed1234beef",
    )
    note = Note(
        lease=LeaseRef(queue, "done", done),
        progress=b'{"done": 3, "total": 4, "text": "%s"}' % MARK.encode(),
        lines=(MARK, "second"),
        saved=b'"%s"' % MARK.encode(),
        steps=(("first", pack_step(StepRecord(n=0, result=payload, attempt=1, at_ms=1))),),
    )
    await store.note([note])
    await store.settle(
        [
            Complete(queue=queue, id="done", token=done, result=payload),
            Fail(queue=queue, id="failed", token=failed, failure=failure),
            RetryLater(queue=queue, id="again", token=again, failure=failure, delay_ms=HOUR_MS),
        ],
        worker="w",
        call="2",
    )
    await store.put([spec("running")])
    (running,) = (await _claim(store, queue, 1, "3")).values()
    await store.note([Note(lease=LeaseRef(queue, "running", running), lines=(MARK,))])
    await store.put(
        [
            spec("waiting"),
            spec("later", delay_ms=HOUR_MS),
            spec("part"),
            spec("whole", after=(Edge(JobKey(queue, "part")),)),
        ]
    )
    template = ScheduleSpec(queue=queue, id="nightly", template=spec("x"), every_ms=HOUR_MS)
    await store.put_schedule(template, next_ms=4_000_000_000_000)
    worker = WorkerRecord(
        name=f"{tenant}:w", host="host", pid=1, queues=(queue,), concurrency=5, active=1
    )
    await store.beat(worker, ttl_ms=HOUR_MS)
    return queue


async def _claim(store: Store, queue: QueueName, number: int, call: str) -> dict[str, str]:
    """The tokens of claimed jobs, by id."""
    worker = f"{queue.tenant}:w"
    claim = Claim(queues=(queue,), limit=number, lease_ms=HOUR_MS)
    settled = await store.settle([], worker=worker, call=call, then=claim)
    assert len(settled.leases) == number
    return {lease.id: lease.token for lease in settled.leases}


async def actors(store: Store, queue: QueueName) -> dict[str, str | None]:
    """Who caused the newest event of each kind, e.g. of `paused`."""
    page = await store.read_events(queue, after="0")
    return {str(event.kind): event.actor for event in page.events}
