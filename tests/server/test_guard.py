"""What a principal may do with the store of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from jobq.core.records import Claim, Complete, Edge, JobKey, JobSpec, LeaseRef, QueueName
from jobq.errors import AccessDenied, JobNotFound
from jobq.server.guard import CALLS, GuardedStore
from jobq.server.principal import ANYONE, Principal, Scope
from jobq.server.quotas import TenantRules
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
    assert calls_of_the_contract() <= set(vars(GuardedStore))


async def test_a_job_of_another_tenant_looks_missing(store: Store) -> None:
    await store.put([spec(OTHER, "1"), spec(ACME, "1")])
    mine = guarded(store, "admin")
    found = await mine.get([JobKey(OTHER, "1"), JobKey(ACME, "1"), JobKey(ACME, "2")])
    assert [record and record.queue for record in found] == [None, ACME, None]


async def test_a_job_cannot_wait_for_a_job_of_another_tenant(store: Store) -> None:
    await store.put([spec(OTHER, "1")])
    mine = guarded(store, "produce")
    with pytest.raises(JobNotFound, match="no queue 'mail' of tenant 'other'"):
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
