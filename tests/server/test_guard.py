"""What a principal may do with the store of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import ANYONE, Principal, Scope
from jobq.access.quotas import TenantRules
from jobq.access.table import CALLS
from jobq.core.records.commands import Remove
from jobq.core.records.jobs import (
    Block,
    Claim,
    Complete,
    Edge,
    JobKey,
    JobRecord,
    JobSpec,
    LeaseRef,
    QueueName,
    Topic,
    UniqueSpec,
)
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.errors import AccessDenied, ConfigError, InvalidJob, JobNotFound
from jobq.stores import open_store
from jobq.stores.base import Store

ACME = QueueName("acme", "mail")
OTHER = QueueName("other", "mail")


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://guard") as found:
        yield found


def guarded(store: Store, *scopes: Scope, tenant: str | None = "acme") -> Store:
    principal = Principal(subject="ann", tenant=tenant, scopes=frozenset(scopes))
    return cast(Store, GuardedStore(store, principal, TenantRules()))


def spec(queue: QueueName, id: str, **more: object) -> JobSpec:
    return JobSpec(queue=queue, id=id, name="send", payload=b"{}", **more)  # type: ignore[arg-type]


def calls_of_the_contract() -> set[str]:
    return {
        name
        for role in Store.__mro__
        for name, value in vars(role).items()
        if callable(value) and not name.startswith("_") and role.__module__.startswith("jobq.")
    }


def test_every_call_of_the_contract_has_a_rule() -> None:
    assert calls_of_the_contract() == set(CALLS)


def test_every_call_of_the_contract_is_guarded() -> None:
    homes = {name: getattr(GuardedStore, name).__module__ for name in calls_of_the_contract()}
    assert {name for name, home in homes.items() if not home.startswith("jobq.access.")} == set()


async def test_a_job_of_another_tenant_looks_missing(store: Store) -> None:
    await store.put([spec(OTHER, "1"), spec(ACME, "1")])
    mine = guarded(store, "admin")
    found = await mine.get([JobKey(OTHER, "1"), JobKey(ACME, "1"), JobKey(ACME, "2")])
    assert [record and record.queue for record in found] == [None, ACME, None]


async def test_a_job_cannot_wait_for_a_job_of_another_tenant(store: Store) -> None:
    await store.put([spec(OTHER, "1")])
    mine = guarded(store, "produce")
    with pytest.raises(InvalidJob, match="waits for a job of another tenant: '1'"):
        await mine.put([spec(ACME, "2", after=(Edge(JobKey(OTHER, "1")),))])
    assert await store.get([JobKey(ACME, "2")]) == [None]


async def test_a_repeated_call_of_another_tenants_worker_brings_no_leases(store: Store) -> None:
    await store.put([spec(OTHER, "1")])
    claim = Claim(queues=(OTHER,), limit=1, lease_ms=1000)
    theirs = guarded(store, "work", tenant="other")
    first = await theirs.settle([], worker="w", call="1", then=claim)
    assert len(first.leases) == 1
    mine = guarded(store, "work")
    again = await mine.settle(
        [], worker="w", call="1", then=Claim(queues=(ACME,), limit=1, lease_ms=1000)
    )
    assert not again.leases


async def test_an_outcome_for_another_tenants_lease_is_stale(store: Store) -> None:
    await store.put([spec(OTHER, "1")])
    claim = Claim(queues=(OTHER,), limit=1, lease_ms=60_000)
    (lease,) = (await store.settle([], worker="w", call="1", then=claim)).leases
    mine = guarded(store, "work")
    outcome = Complete(queue=OTHER, id=lease.id, token=lease.token)
    settled = await mine.settle([outcome], worker="w", call="2")
    assert [ref.id for ref in settled.stale] == ["1"]
    assert await mine.extend([LeaseRef(OTHER, "1", lease.token)], lease_ms=1) == ["lost"]


async def test_a_call_without_its_scope_is_refused_with_what_it_needs(store: Store) -> None:
    with pytest.raises(AccessDenied, match="put needs the scope produce"):
        await guarded(store, "read").put([spec(ACME, "1")])


async def test_anyone_may_do_everything_where_nobody_checks_tokens(store: Store) -> None:
    anyone = cast(Store, GuardedStore(store, ANYONE, TenantRules()))
    await anyone.put([spec(ACME, "9"), spec(OTHER, "9")])
    assert {record.queue for record in await anyone.queues()} >= {ACME, OTHER}


async def test_everything_that_names_a_job_of_another_tenant_indirectly_is_refused(
    store: Store,
) -> None:
    await store.put([spec(OTHER, "indirect")])
    mine = guarded(store, "admin")
    theirs = JobKey(OTHER, "indirect")
    template = spec(ACME, "t", after=(Edge(theirs),))
    record = JobRecord(
        queue=ACME, id="r", name="n", state=State.FAILED, payload=b"{}", parents=(theirs,)
    )
    await store.put([spec(ACME, "blocking")])
    claim = Claim(queues=(ACME,), limit=100, lease_ms=60_000)
    leases = (await store.settle([], worker="x", call="1", then=claim)).leases
    lease = next(lease for lease in leases if lease.id == "blocking")
    block = Block(queue=ACME, id=lease.id, token=lease.token, after=(Edge(theirs),))
    for attempt in (
        mine.put([template]),
        mine.put([template], flow="flow"),
        mine.put_schedule(
            ScheduleSpec(queue=ACME, id="s", template=template, every_ms=1000), next_ms=1
        ),
        mine.put_schedule(
            ScheduleSpec(queue=ACME, id="s", template=spec(OTHER, "t"), every_ms=1000), next_ms=1
        ),
        mine.restore([record]),
        mine.settle([block], worker="w", call="1"),
    ):
        with pytest.raises((JobNotFound, InvalidJob)):
            await attempt
    for topic in (Topic("ended", OTHER, "indirect"), Topic("log", OTHER, None)):
        with pytest.raises(JobNotFound):
            mine.listen([topic])


async def test_the_same_id_and_the_same_lock_of_two_tenants_are_apart(store: Store) -> None:
    unique = UniqueSpec(lock="the same")
    await store.put([spec(OTHER, "same", unique=unique)])
    (result,) = await guarded(store, "produce").put([spec(ACME, "same", unique=unique)])
    assert not result.duplicate
    assert result.state is State.WAITING


async def test_a_producer_does_not_read_the_job_that_a_duplicate_found(store: Store) -> None:
    await store.put([spec(ACME, "dup")])
    (blind,) = await guarded(store, "produce").put([spec(ACME, "dup")])
    (seeing,) = await guarded(store, "produce", "read").put([spec(ACME, "dup")])
    assert (blind.duplicate, blind.found) == (True, None)
    assert seeing.found is not None


async def test_dead_letters_stay_in_their_tenant(store: Store) -> None:
    mine = guarded(store, "admin")
    await mine.declare(QueueName("acme", "dying"), QueueConfig(dead_letters="dead"))
    with pytest.raises(InvalidJob):
        await mine.declare(QueueName("acme", "dying"), QueueConfig(dead_letters="o{ther}"))


async def test_a_worker_of_a_tenant_has_the_tenant_in_its_name(store: Store) -> None:
    mine, theirs = guarded(store, "admin"), guarded(store, "admin", tenant="other")
    for each, queue in ((mine, ACME), (theirs, OTHER)):
        worker = WorkerRecord(name="w1", host="h", pid=1, queues=(queue,), concurrency=1)
        assert not (await each.beat(worker, ttl_ms=60_000)).displaced
    assert [worker.name for worker in await mine.workers()] == ["acme:w1"]
    assert await mine.ask_worker("w1", "drain")
    assert await mine.ask_worker("acme:w1", "drain")
    assert not await mine.ask_worker("other:w1", "drain")
    assert (await store.beat(worker_of("other:w1", OTHER), ttl_ms=60_000)).request is None


def worker_of(name: str, queue: QueueName) -> WorkerRecord:
    return WorkerRecord(name=name, host="h", pid=1, queues=(queue,), concurrency=1)


async def test_a_worker_of_several_tenants_shows_a_tenant_only_its_own_queues(
    store: Store,
) -> None:
    shared = WorkerRecord(name="fleet", host="h", pid=1, queues=(ACME, OTHER), concurrency=1)
    await store.beat(shared, ttl_ms=60_000)
    seen = {worker.name: worker.queues for worker in await guarded(store, "read").workers()}
    assert seen["fleet"] == (ACME,)
    assert not await guarded(store, "admin").ask_worker("fleet", "shutdown")


async def test_an_event_names_the_subject_of_the_token(store: Store) -> None:
    queue = QueueName("acme", "paused")
    await guarded(store, "admin").pause(queue, actor="bob")
    (event,) = (await store.read_events(queue, after="0")).events
    assert event.actor == "ann (bob)"


async def test_removing_a_job_or_moving_a_reader_needs_admin(store: Store) -> None:
    await store.put([spec(ACME, "kept")])
    producer = guarded(store, "produce", "read", "work")
    with pytest.raises(AccessDenied, match="admin"):
        await producer.alter([Remove(job=JobKey(ACME, "kept"))])
    with pytest.raises(AccessDenied, match="admin"):
        await producer.ack_events(ACME, "reader", "0")
    assert await producer.ack_events(ACME, "reader", None) is None


NONSENSE: dict[str, JobSpec] = {
    "a queue with braces": spec(QueueName("acme", "a{b}"), "1"),
    "an empty queue": spec(QueueName("acme", ""), "1"),
    "a queue with a line break": spec(QueueName("acme", "a\nb"), "1"),
    "a long queue": spec(QueueName("acme", "q" * 500), "1"),
    "an empty id": spec(ACME, ""),
    "a long id": spec(ACME, "i" * 1000),
    "a negative priority": spec(ACME, "1", priority=-1),
    "a huge priority": spec(ACME, "1", priority=2**70),
    "a negative delay": spec(ACME, "1", delay_ms=-1),
    "a huge delay": spec(ACME, "1", delay_ms=2**62),
    "a huge time": spec(ACME, "1", at_ms=2**62),
    "a cost of 0": spec(ACME, "1", cost=0),
    "a huge ttl": spec(ACME, "1", ttl_ms=2**62),
    "a key with a null": spec(ACME, "1", key="a\0"),
    "a huge meta": spec(ACME, "1", meta={"a": "x" * 100_000}),
    "a huge lock": spec(ACME, "1", unique=UniqueSpec(lock="x" * 10_000)),
}


@pytest.mark.parametrize("kind", NONSENSE)
async def test_a_job_that_no_client_of_ours_makes_is_refused(store: Store, kind: str) -> None:
    with pytest.raises(InvalidJob):
        await guarded(store, "produce").put([NONSENSE[kind]])


async def test_numbers_that_no_client_of_ours_sends_are_refused(store: Store) -> None:
    mine = guarded(store, "admin")
    claim = Claim(queues=(ACME,), limit=1, lease_ms=2**62)
    for attempt in (
        mine.settle([], worker="w", call="1", then=claim),
        mine.settle([], worker="w" * 1000, call="1"),
        mine.settle([], worker="w", call="c" * 1000),
        mine.extend([LeaseRef(ACME, "1", "t")], lease_ms=-1),
        mine.hold(ACME, 2**62),
        mine.lead("x" * 1000, who="me", ttl_ms=1),
        mine.sleep([ACME], worker="w", slots=1, timeout_ms=2**62),
    ):
        with pytest.raises(InvalidJob):
            await attempt


async def test_a_negative_limit_is_not_the_whole_queue(store: Store) -> None:
    mine = guarded(store, "admin")
    await mine.put([spec(ACME, "1"), spec(ACME, "2")])
    assert await mine.purge_pending(ACME, limit=-1) == 0
    assert (await mine.count(ACME))[State.WAITING] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_ms": 0},
        {"every_ms": -1},
        {"every_ms": 2**62},
        {},
        {"every_ms": 1000, "cron": "* * * * *"},
        {"cron": "every day"},
        {"cron": "* * * * *", "tz": "Nowhere/Land"},
        {"every_ms": 1000, "start_ms": 2**62},
        {"every_ms": 1000, "limit": 0},
    ],
    ids=str,
)
async def test_a_schedule_that_the_server_could_not_plan_is_refused(
    store: Store, wrong: dict[str, Any]
) -> None:
    schedule = ScheduleSpec(queue=ACME, id="s", template=spec(ACME, "t"), **wrong)
    with pytest.raises((InvalidJob, ConfigError)):
        await guarded(store, "produce").put_schedule(schedule, next_ms=1)
