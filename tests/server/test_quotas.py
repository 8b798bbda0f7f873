"""What a tenant may use: quotas, rate and priority ceiling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from jobq.core.commands import Cancel, Reprioritise, SendSignal, Update
from jobq.core.queues import Limits, QueueConfig, ScheduleSpec, Tokens
from jobq.core.records import Claim, Edge, JobKey, JobSpec, QueueName
from jobq.core.states import State
from jobq.errors import ConfigError, InvalidJob, PayloadTooLarge, QuotaExceeded
from jobq.server import quotas
from jobq.server.guard import GuardedStore
from jobq.server.principal import ANYONE, SCOPES, Principal
from jobq.server.quotas import TenantLimits, TenantRules
from jobq.stores import open_store
from jobq.stores.base import Store

MAIL = QueueName("acme", "mail")


@pytest.fixture
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    async with open_store(f"memory://quotas-{request.node.name}") as found:
        yield found


class Now:
    """A clock for rates and counts."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def limited(store: Store, now: Now | None = None, **limits: Any) -> Store:
    rules = TenantRules(tenants={"acme": TenantLimits(**limits)}, clock=now or Now())
    acme = Principal(subject="ann", tenant="acme", scopes=SCOPES)
    return cast(Store, GuardedStore(store, acme, rules))


def spec(id: str, queue: QueueName = MAIL, **more: Any) -> JobSpec:
    return JobSpec(queue=queue, id=id, name="send", payload=more.pop("payload", b"{}"), **more)


async def test_jobs_beyond_the_quota_are_refused_until_workers_start_some(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=3)
    await acme.put([spec("1"), spec("2", delay_ms=60_000)])
    await acme.put([spec("3", QueueName("acme", "other"))])
    with pytest.raises(QuotaExceeded, match=r"has 3 waiting jobs and may have 3 \(max_waiting\)"):
        await acme.put([spec("4")])
    assert await store.get([JobKey(MAIL, "4")]) == [None]
    await acme.settle(
        [], worker="w", call="1", then=Claim(queues=(MAIL,), limit=1, lease_ms=60_000)
    )
    now.s += 0.2
    await acme.put([spec("4")])


async def test_a_repeated_submit_is_a_duplicate_even_when_the_quota_is_used_up(
    store: Store,
) -> None:
    acme = limited(store, max_waiting=2)
    await acme.put([spec("1"), spec("2")])
    assert [result.duplicate for result in await acme.put([spec("1"), spec("2")])] == [True, True]
    with pytest.raises(QuotaExceeded):
        await acme.put([spec("2"), spec("3")])


async def test_many_callers_at_once_do_not_exceed_the_quota(store: Store) -> None:
    acme = limited(store, max_waiting=50)
    results = await asyncio.gather(
        *(acme.put([spec(f"{n}")]) for n in range(200)), return_exceptions=True
    )
    assert sum(isinstance(result, list) for result in results) == 50
    assert (await store.count(MAIL))[State.WAITING] == 50


async def test_jobs_that_are_stored_during_a_count_are_counted(store: Store) -> None:
    now, other = Now(), QueueName("acme", "other")
    acme = limited(store, now, max_waiting=3)
    await acme.put([spec("1"), spec("2", other)])
    now.s += 2
    count, put = store.count, store.put
    admitted, counted, stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_put(*args: Any, **more: Any) -> Any:
        admitted.set()
        await counted.wait()
        return await put(*args, **more)

    async def slow_count(queue: QueueName) -> dict[State, int]:
        found = await count(queue)
        if queue == MAIL:
            counted.set()
        else:
            await stored.wait()
        return found

    store.put = slow_put  # type: ignore[method-assign]
    early = asyncio.create_task(acme.put([spec("3")]))
    await admitted.wait()
    store.count = slow_count  # type: ignore[method-assign]
    now.s += 2
    late = asyncio.create_task(acme.put([spec("4")]))
    await early
    stored.set()
    with pytest.raises(QuotaExceeded):
        await late


async def test_the_quota_is_counted_without_looking_at_jobs(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=10_000)
    counted = 0
    original = store.count

    async def counting(queue: QueueName) -> dict[State, int]:
        nonlocal counted
        counted += 1
        return await original(queue)

    store.count = counting  # type: ignore[method-assign]
    for n in range(100):
        await acme.put([spec(f"{n}-{i}") for i in range(10)])
    assert counted <= 1, "one count lasts for a second"
    now.s += 1.5
    await acme.put([spec("last")])
    assert counted <= 2


async def test_a_put_that_fails_gives_its_places_back(store: Store) -> None:
    acme = limited(store, Now(), max_waiting=1)
    with pytest.raises(InvalidJob):
        await acme.put([spec("1", after=(Edge(JobKey(MAIL, "nowhere")),))])
    guarded = cast(GuardedStore, acme)
    assert guarded._tenants._usage["acme"].in_flight == 0


async def test_a_tenant_that_submits_too_fast_waits_for_its_rate(store: Store) -> None:
    now = Now()
    acme = limited(store, now, submit_rate=10)
    await acme.put([spec(f"{n}") for n in range(30)])
    with pytest.raises(QuotaExceeded, match="more than 10 jobs per second") as refused:
        await acme.put([spec("x")])
    assert refused.value.retry_after == pytest.approx(2.1)
    now.s += 2.2
    await acme.put([spec("x")])


async def test_a_tenant_has_no_more_queues_than_it_may_have(store: Store) -> None:
    acme = limited(store, max_queues=2)
    await acme.put([spec("1")])
    await acme.declare(QueueName("acme", "second"), QueueConfig())
    third = QueueName("acme", "third")
    claim = Claim(queues=(third,), limit=1, lease_ms=1000)
    for attempt in (
        acme.put([spec("1", third)]),
        acme.declare(third, QueueConfig()),
        acme.settle([], worker="w", call="1", then=claim),
        acme.sleep([third], worker="w", slots=1, timeout_ms=1),
        acme.put_schedule(
            ScheduleSpec(queue=third, id="s", template=spec("s", third), every_ms=1000), next_ms=1
        ),
    ):
        with pytest.raises(QuotaExceeded, match="'third' cannot be made"):
            await attempt
    assert {record.queue.queue for record in await store.queues("acme")} == {"mail", "second"}
    await store.obliterate(QueueName("acme", "second"))
    await acme.put([spec("1", third)])


async def test_queues_that_are_made_at_once_count_too(store: Store) -> None:
    acme = limited(store, max_queues=2)
    puts = (acme.put([spec("1", QueueName("acme", f"q{n}"))]) for n in range(5))
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(each, QuotaExceeded) for each in results) == 3
    assert len(await store.queues("acme")) == 2


async def test_what_operators_do_makes_no_queue_beyond_the_quota(store: Store) -> None:
    acme = limited(store, max_queues=1)
    await acme.put([spec("1")])
    new = QueueName("acme", "new")
    for attempt in (
        acme.pause(new),
        acme.resume(new),
        acme.hold(new, 1000),
        acme.set_limits(new, Limits()),
        acme.ack_events(new, "reader", "0"),
        acme.put_schedule(
            ScheduleSpec(queue=new, id="s", template=spec("s", new), every_ms=1000), next_ms=1
        ),
    ):
        with pytest.raises(QuotaExceeded, match="'new' cannot be made"):
            await attempt
    assert len(await store.queues("acme")) == 1


async def test_jobs_of_a_flow_count_before_the_flow_is_submitted(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=3)
    await acme.put([spec("1"), spec("2")], flow="f", last=False)
    now.s += 5
    with pytest.raises(QuotaExceeded, match="has 2 waiting jobs and may have 3"):
        await acme.put([spec("x"), spec("y")])
    await acme.put([spec("3")], flow="f")
    now.s += 5
    with pytest.raises(QuotaExceeded, match="has 3 waiting jobs"):
        await acme.put([spec("4")])


async def test_a_flow_that_the_store_refuses_gives_its_places_back(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=3)
    await acme.put([spec("1"), spec("2")], flow="f", last=False)
    nowhere = Edge(job=JobKey(MAIL, "nowhere"))
    with pytest.raises(InvalidJob):
        await acme.put([spec("3", after=(nowhere,))], flow="f")
    now.s += 0.2
    await acme.put([spec("5"), spec("6"), spec("7")])


async def test_a_refusal_does_not_hide_what_is_staged_of_a_flow(store: Store) -> None:
    """Otherwise a tenant stages more and more, and then submits all of it."""
    acme = limited(store, max_waiting=3, max_priority=5)
    await acme.put([spec("1"), spec("2")], flow="f", last=False)
    for refused in ([spec("3"), spec("4")], [spec("5", priority=6)]):
        with pytest.raises((QuotaExceeded, InvalidJob)):
            await acme.put(refused, flow="f", last=False)
    with pytest.raises(QuotaExceeded, match="has 2 waiting jobs and may have 3"):
        await acme.put([spec("6"), spec("7")], flow="f")
    await acme.put([spec("8")], flow="f")
    counts = await store.count(MAIL)
    assert counts[State.WAITING] == 3


async def test_the_id_of_a_cancelled_job_counts_as_a_new_job(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=2)
    await acme.put([spec("1"), spec("2")])
    now.s += 0.2
    await store.alter([Cancel(job=JobKey(MAIL, "1")), Cancel(job=JobKey(MAIL, "2"))])
    await acme.put([spec("3"), spec("4")])
    with pytest.raises(QuotaExceeded):
        await acme.put([spec("1"), spec("2")])
    await acme.put([spec("3"), spec("4")])  # these are duplicates


async def test_a_flow_without_end_meets_the_rate_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_MAX_DEBT", 10.0)
    monkeypatch.setattr(quotas, "_MAX_DEBT_S", 2.0)
    acme = limited(store, submit_rate=2)
    await acme.put([spec(f"a{n}") for n in range(13)], flow="f", last=False)
    with pytest.raises(QuotaExceeded, match="more than 2 jobs per second") as refused:
        await acme.put([spec("b")], flow="f")
    assert 0 < (refused.value.retry_after or 0) <= 0.5


async def test_jobs_of_many_puts_are_admitted_together_or_not_at_all(store: Store) -> None:
    acme = cast(GuardedStore, limited(store, max_waiting=5))
    with pytest.raises(QuotaExceeded, match="so 6 more do not fit"):
        await acme.put_all([spec(str(n)) for n in range(6)], step=2)
    with pytest.raises(QuotaExceeded):
        await acme.put_all([spec(str(n)) for n in range(6)], step=2, flow="f")
    assert await store.queues("acme") == []
    assert len(await acme.put_all([spec(str(n)) for n in range(5)], step=2)) == 5
    with pytest.raises(QuotaExceeded, match="has 5 waiting jobs"):
        await acme.put([spec("6")])


async def test_a_job_that_does_not_fit_its_queue_refuses_all_puts(store: Store) -> None:
    acme = cast(GuardedStore, limited(store))
    keyed, costly = QueueName("acme", "keyed"), QueueName("acme", "costly")
    await store.put([spec("1", keyed, key="k")])
    await store.declare(costly, QueueConfig(limits=Limits(rate=Tokens(capacity=3, refill=1))))
    for wrong in (
        spec("x", keyed),
        spec("x", costly, cost=4),
        spec("x", key="k"),
        spec("x", after=(Edge(job=JobKey(MAIL, "0")),)),
    ):
        with pytest.raises((ConfigError, InvalidJob)):
            await acme.put_all([spec("0"), spec("1"), spec("2"), wrong], step=2)
    assert sum((await store.count(MAIL)).values()) == 0


async def test_a_flow_that_is_never_submitted_gives_its_places_back(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_waiting=3)
    await acme.put([spec("1"), spec("2")], flow="f", last=False)
    now.s += 3_590
    with pytest.raises(QuotaExceeded):
        await acme.put([spec("5"), spec("6"), spec("7")])
    now.s += 11
    await acme.put([spec("5"), spec("6"), spec("7")])


async def test_a_flow_is_one_batch_for_the_rate(store: Store) -> None:
    acme = limited(store, submit_rate=2)
    await acme.put([spec("1"), spec("2")], flow="f", last=False)
    await acme.put([spec("3")], flow="f")
    with pytest.raises(QuotaExceeded, match="more than 2 jobs per second"):
        await acme.put([spec("4")], flow="g")


async def test_a_tenant_has_no_more_schedules_than_it_may_have(store: Store) -> None:
    acme = limited(store, max_schedules=2)

    async def put(id: str, every_ms: int = 1000) -> None:
        found = ScheduleSpec(queue=MAIL, id=id, template=spec("s"), every_ms=every_ms)
        await acme.put_schedule(found, next_ms=1)

    await put("a")
    await put("b")
    await put("a", 2000)
    with pytest.raises(QuotaExceeded, match="2 schedules"):
        await put("c")
    await acme.drop_schedule(MAIL, "a")
    await put("c")


async def test_a_job_above_the_priority_ceiling_is_refused_by_every_way(store: Store) -> None:
    acme = limited(store, max_priority=5)
    await acme.put([spec("1", priority=5)])
    schedule = ScheduleSpec(queue=MAIL, id="s", template=spec("s", priority=6), every_ms=1000)
    for attempt in (
        acme.put([spec("2", priority=6)]),
        acme.alter([Reprioritise(job=JobKey(MAIL, "1"), priority=6)]),
        acme.put_schedule(schedule, next_ms=1),
    ):
        with pytest.raises(InvalidJob, match=r"priority=6 is above 5.*'acme'"):
            await attempt


async def test_a_payload_above_the_limit_is_refused_by_every_way(store: Store) -> None:
    acme = limited(store, max_payload=10)
    await acme.put([spec("1", payload=b"x" * 10)])
    job = JobKey(MAIL, "1")
    for attempt in (
        acme.put([spec("2", payload=b"x" * 11)]),
        acme.alter([Update(job=job, payload=b"x" * 11)]),
        acme.alter([SendSignal(job=job, name="go", value=b"x" * 11)]),
    ):
        with pytest.raises(PayloadTooLarge, match="11 bytes"):
            await attempt


async def test_other_tenants_have_the_limits_of_default(store: Store) -> None:
    rules = TenantRules(TenantLimits(max_priority=1), {"acme": TenantLimits()})
    anyone = cast(Store, GuardedStore(store, ANYONE, rules))
    await anyone.put([spec("1", priority=9)])
    with pytest.raises(InvalidJob, match="'other'"):
        await anyone.put([spec("1", QueueName("other", "mail"), priority=9)])
