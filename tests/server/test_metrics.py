"""What a server tells Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from grpc import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import SCOPES, Principal
from jobq.access.quotas import TenantRules
from jobq.console.probes import Probes
from jobq.core.records.jobs import (
    Claim,
    Complete,
    JobSpec,
    Lease,
    LeaseRef,
    QueueName,
    RetryLater,
)
from jobq.core.records.queues import Limits, QueueConfig
from jobq.errors import StoreUnavailable
from jobq.relay.status import QueueStatus, RelayStatus
from jobq.server import metrics
from jobq.server.config import ServerSettings
from jobq.server.context import Proof, ServerContext
from jobq.server.metrics import ServerMetrics
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.kit import FakeClock, failure
from tests.telemetry.http import get

MAIL = QueueName("acme", "mail")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[Store]:
    async with open_store(f"memory://{uuid4().hex}", clock=clock) as opened:
        yield opened


class Scene:
    """A server's store as a caller uses it, and what the server tells about it."""

    def __init__(self, store: Store) -> None:
        self.metrics = ServerMetrics(store)
        context = ServerContext(store, ServerSettings())
        self.metrics.attach(context)
        self.caller: GuardedStore = context.guarded_by(Proof())
        self.calls = 0

    async def put(self, *ids: str, queue: QueueName = MAIL) -> None:
        await self.caller.put([JobSpec(queue=queue, id=id, name="t", payload=b"") for id in ids])

    async def settle(self, *outcomes: Complete | RetryLater, claim: int = 0) -> Sequence[Lease]:
        self.calls += 1
        then = Claim(queues=(MAIL,), limit=claim, lease_ms=1000) if claim else None
        settled = await self.caller.settle(outcomes, worker="w", call=f"c{self.calls}", then=then)
        return settled.leases

    async def samples(self) -> dict[str, float]:
        """Every sample that is not 0: its name and its labels without tenant and queue."""
        text = self.metrics.text(await self.metrics.gauges()).decode()
        return {
            " ".join([s.name, *(v for k, v in s.labels.items() if k not in ("tenant", "queue"))]): (
                s.value
            )
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.value
        }


@pytest.fixture
def scene(store: Store) -> Scene:
    return Scene(store)


def done(lease: Lease) -> Complete:
    return Complete(queue=lease.queue, id=lease.id, token=lease.token)


async def test_submits_claims_and_ends_are_counted(scene: Scene, store: Store) -> None:
    await store.declare(MAIL, QueueConfig(limits=Limits(max_waiting=3)))
    await scene.put("a", "b", "c")
    await scene.put("a", "d")  # a duplicate, and one that the full queue refuses
    first, second = await scene.settle(claim=2)
    again = RetryLater(
        queue=MAIL, id=second.id, token=second.token, failure=failure(second), delay_ms=0
    )
    await scene.settle(done(first), again)
    found = await scene.samples()
    assert found["jobq_jobs_submitted_total"] == 3
    assert found["jobq_jobs_duplicate_total"] == found["jobq_jobs_refused_total"] == 1
    assert found["jobq_jobs_claimed_total"] == 2
    assert found["jobq_jobs_settled_total completed"] == 1
    assert found["jobq_jobs_settled_total retried"] == 1
    assert found["jobq_job_run_seconds_count"] == 2
    assert found["job_queue_depth waiting"] == 2
    assert found["job_queue_depth completed"] == 1


async def test_a_wait_counts_from_when_the_job_was_due(scene: Scene, clock: FakeClock) -> None:
    await scene.caller.put(
        [JobSpec(queue=MAIL, id="later", name="t", payload=b"", delay_ms=60_000)]
    )
    clock.advance(64_000)
    (lease,) = await scene.settle(claim=1)
    assert (await scene.samples())["jobq_job_wait_seconds_sum"] == 4
    again = RetryLater(
        queue=MAIL, id=lease.id, token=lease.token, failure=failure(lease), delay_ms=0
    )
    await scene.settle(again, claim=1)  # a retry does not wait for its first start
    assert (await scene.samples())["jobq_job_wait_seconds_count"] == 1


async def test_lost_leases_are_counted_and_their_runs_are_not(
    scene: Scene, clock: FakeClock
) -> None:
    await scene.put("a")
    (lease,) = await scene.settle(claim=1)
    clock.advance(2_000)
    (taken,) = await scene.settle(claim=1)
    await scene.settle(done(lease))
    ref = LeaseRef(lease.queue, lease.id, lease.token)
    assert await scene.caller.extend([ref], lease_ms=1000) == ["lost"]
    found = await scene.samples()
    assert found["jobq_leases_lost_total"] == 2
    assert "jobq_jobs_settled_total completed" not in found
    await scene.settle(done(taken))
    assert (await scene.samples())["jobq_job_run_seconds_count"] == 1


async def test_leases_that_callers_make_up_use_no_labels_and_touch_no_other_tenant(
    scene: Scene, store: Store
) -> None:
    await scene.put("a")
    for n in range(3):
        made_up = LeaseRef(QueueName("acme", f"made-up-{n}"), "1", "t")
        await scene.caller.extend([made_up], lease_ms=1000)
        await scene.settle(Complete(queue=made_up.queue, id="1", token="t", result=b"null"))
    other = Principal(subject="eve", tenant="other", scopes=SCOPES)
    eve = metrics.CountedStore(store, other, TenantRules(), metrics=scene.metrics)
    assert await eve.extend([LeaseRef(MAIL, "a", "t")], lease_ms=1000) == ["lost"]
    stolen = Complete(queue=MAIL, id="a", token="t", result=b"null")
    assert (await eve.settle([stolen], worker="w", call="1")).stale
    text = scene.metrics.text([]).decode()
    assert "made-up" not in text
    assert 'jobq_leases_lost_total{queue="mail"' not in text
    assert 'jobq_leases_lost_total{queue="{other}",tenant="{other}"} 6.0' in text


async def test_calls_are_counted_by_method_and_status(scene: Scene) -> None:
    scene.metrics.called("/jobq.v1.JobService/Submit", StatusCode.OK, 0.002)
    scene.metrics.called("/jobq.v1.JobService/Submit", StatusCode.NOT_FOUND, 0.002)
    found = await scene.samples()
    assert found["jobq_rpc_seconds_count OK /jobq.v1.JobService/Submit"] == 1
    assert found["jobq_rpc_seconds_count NOT_FOUND /jobq.v1.JobService/Submit"] == 1


async def test_queues_beyond_the_limit_are_counted_together(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_QUEUES", 2)
    for n in range(5):
        await scene.put("a", queue=QueueName("acme", f"q{n}"))
    text = scene.metrics.text(await scene.metrics.gauges()).decode()
    submitted = [line for line in text.splitlines() if line.startswith("jobq_jobs_submitted_total")]
    assert len(submitted) == 3
    assert 'jobq_jobs_submitted_total{queue="{other}",tenant="{other}"} 3.0' in submitted
    assert text.count('state="waiting"') == 2
    assert "jobq_queues 5.0" in text


async def test_running_jobs_that_are_remembered_are_bounded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_LEASES", 2)
    await scene.put("a", "b", "c")
    leases = await scene.settle(claim=3)
    await scene.settle(*map(done, leases))
    found = await scene.samples()
    assert found["jobq_jobs_settled_total completed"] == 3
    assert found["jobq_job_run_seconds_count"] == 2


async def test_an_unavailable_store_is_told_and_counters_stay(
    scene: Scene, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.put("a")

    async def down(tenant: str | None = None) -> list[object]:
        raise StoreUnavailable("down")

    monkeypatch.setattr(store, "queues", down)
    text = scene.metrics.text(await scene.metrics.gauges()).decode()
    assert "jobq_store_up 0.0" in text
    assert "job_queue_depth{" not in text
    assert "jobq_jobs_submitted_total{" in text


async def test_the_route_serves_all_of_it_with_the_relays_lag(scene: Scene) -> None:
    await scene.put("a")
    lag = QueueStatus(tenant="acme", queue="mail", lag_ms=2_500)
    scene.metrics.relay = lambda: RelayStatus(target="kafka", queues=(lag,))
    routes = {"/metrics": scene.metrics.route(asyncio.get_running_loop())}
    with Probes({0: routes}, host="127.0.0.1") as probes:
        _, port = probes.addresses[0]
        status, text = await asyncio.to_thread(get, port, "/metrics")
    assert status == 200
    assert 'jobq_relay_lag_seconds{tenant="acme",queue="mail"} 2.5' in text
    assert 'job_queue_depth{queue="mail",state="waiting",tenant="acme"} 1.0' in text
