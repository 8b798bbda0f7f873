"""What a tenant may use: quotas, rate and priority ceiling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from uuid import uuid4

import pytest

from jobq.access import usage
from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import ANYONE, SCOPES, Principal, Scope
from jobq.access.quotas import TenantRules
from jobq.access.schedules import TenantSchedules
from jobq.access.usage import TenantLimits
from jobq.core.records.commands import Cancel, Reprioritise, Rerun, SendSignal, Update
from jobq.core.records.jobs import (
    Claim,
    Complete,
    Edge,
    Filter,
    JobKey,
    JobSpec,
    QueueName,
    Release,
    UniqueSpec,
)
from jobq.core.records.queues import Fire, Limits, QueueConfig, ScheduleSpec, Tokens
from jobq.core.records.states import State
from jobq.engine.scheduler import fire_due
from jobq.errors import (
    ConfigError,
    InvalidJob,
    PayloadTooLarge,
    QuotaExceeded,
    StoreUnavailable,
)
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.kit import FakeClock

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


def limited(store: Store, now: Callable[[], float] | None = None, **limits: Any) -> Store:
    rules = TenantRules(tenants={"acme": TenantLimits(**limits)}, clock=now or Now())
    return guarded(store, rules)


def guarded(
    store: Store, rules: TenantRules, scopes: frozenset[Scope] = SCOPES, clock: Any = None
) -> Store:
    acme = Principal(subject="ann", tenant="acme", scopes=scopes)
    seconds = time.time if clock is None else lambda: clock() / 1000
    return cast(Store, GuardedStore(store, acme, rules, clock=seconds))


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
    monkeypatch.setattr(usage, "_MAX_DEBT", 10.0)
    monkeypatch.setattr(usage, "_MAX_DEBT_S", 2.0)
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


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


class Clocked:
    """A store with a clock that moves only when the test says so, and a server's scheduler."""

    def __init__(self, raw: Store, clock: FakeClock, limits: TenantLimits) -> None:
        self.raw, self.clock = raw, clock
        self.rules = TenantRules(tenants={"acme": limits}, clock=lambda: clock() / 1000)
        self.acme = guarded(raw, self.rules, frozenset({"produce", "work", "read"}), clock)
        self.operator = cast(Store, GuardedStore(raw, ANYONE, self.rules))
        self.schedules = TenantSchedules(raw, self.rules, clock)
        self.calls = 0

    async def fire(self, passes: int = 100) -> int:
        """Passes of the server's scheduler, until one fires nothing."""
        for n in range(passes):
            if not await fire_due(self.schedules, self.clock(), planner=self.schedules.plan):
                return n
        return passes

    async def count(self, *states: State) -> int:
        counts = await self.raw.count(MAIL)
        return sum(counts.get(state, 0) for state in states)

    async def work(self, jobs: int) -> None:
        """Complete jobs."""
        self.calls += 1
        claim = Claim(queues=(MAIL,), limit=jobs, lease_ms=60_000)
        settled = await self.acme.settle([], worker="w", call=f"c{self.calls}", then=claim)
        await self.acme.settle(
            [Complete(queue=MAIL, id=each.id, token=each.token) for each in settled.leases],
            worker="w",
            call=f"d{self.calls}",
        )


@pytest.fixture
async def clocked() -> AsyncIterator[Callable[..., Clocked]]:
    clock = FakeClock()
    async with open_store(f"memory://quotas-{uuid4().hex}", clock=clock) as raw:
        yield lambda **limits: Clocked(raw, clock, TenantLimits(**limits))


def every(ms: int | None, id: str = "s", **more: Any) -> ScheduleSpec:
    template = spec("s", payload=more.pop("payload", b"{}"))
    return ScheduleSpec(queue=MAIL, id=id, template=template, every_ms=ms, **more)


async def test_a_schedule_faster_than_min_interval_is_refused(
    clocked: Callable[..., Clocked],
) -> None:
    """The case that stored 87,189 jobs in 30 s."""
    scene = clocked(max_waiting=10, submit_rate=5)
    flood = every(1, catch_up="all", payload=b"x" * 20_000)
    for store in (scene.acme, scene.operator):
        with pytest.raises(InvalidJob, match="less than 1 s apart"):
            await store.put_schedule(flood, next_ms=scene.clock())
    await scene.acme.put_schedule(every(1, after_complete=True), next_ms=scene.clock())


async def test_a_flood_that_is_stored_already_fills_the_quota_and_no_more(
    clocked: Callable[..., Clocked],
) -> None:
    scene = clocked(max_waiting=10, submit_rate=5)
    flood = every(1, catch_up="all", payload=b"x" * 20_000)
    await scene.raw.put_schedule(flood, next_ms=scene.clock())
    for _ in range(30):
        scene.clock.advance(1_000)
        await scene.fire()
    assert await scene.count(State.WAITING) == 10
    assert (await scene.acme.put_schedule(flood, next_ms=1)).spec == flood, "nothing changes"


async def test_while_the_quota_is_full_the_time_stays_due(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_waiting=2)
    await scene.acme.put([spec("1"), spec("2")])
    for id, catch_up in (("skip", "skip"), ("one", "one"), ("all", "all")):
        await scene.acme.put_schedule(every(60_000, id, catch_up=catch_up), next_ms=None)
    due = [record.next_ms for record in await scene.raw.list_schedules(MAIL)]
    scene.clock.advance(4 * 60_000 + 90_000)
    assert await scene.fire() == 0
    assert [record.next_ms for record in await scene.raw.list_schedules(MAIL)] == due
    assert await scene.count(State.WAITING) == 2
    made: list[str] = []
    for _ in range(20):  # there is room now, and catch_up decides
        await scene.work(2)
        scene.clock.advance(100)
        await scene.fire()
    page = await scene.raw.find(Filter(queue=MAIL), limit=100)
    made = sorted(record.schedule or "" for record in page.records if record.schedule)
    assert made == ["all"] * 5 + ["one"] * 1 + ["skip"] * 1


async def test_a_full_tenant_keeps_no_other_from_firing(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_waiting=0)
    for n in range(120):
        await scene.raw.put_schedule(every(60_000, f"s{n:03}"), next_ms=scene.clock())
    other = QueueName("other", "mail")
    late = ScheduleSpec(queue=other, id="late", template=spec("x", other), every_ms=60_000)
    await scene.raw.put_schedule(late, next_ms=scene.clock() + 10)
    scene.clock.advance(20)
    await scene.fire()
    assert (await scene.raw.count(other))[State.WAITING] == 1
    assert await scene.count(State.WAITING) == 0


async def test_a_tenant_that_submitted_too_much_keeps_no_other_from_firing(
    clocked: Callable[..., Clocked],
) -> None:
    """Late times of a tenant wait for its submit rate: other schedules are listed before them."""
    scene = clocked(submit_rate=5)
    for n in range(120):
        at = scene.clock() - 3_600_000
        await scene.raw.put_schedule(every(60_000, f"s{n:03}", catch_up="all"), next_ms=at)
    await scene.acme.put([spec(f"j{n}") for n in range(5_000)])
    other = QueueName("other", "mail")
    late = ScheduleSpec(queue=other, id="late", template=spec("x", other), every_ms=60_000)
    await scene.raw.put_schedule(late, next_ms=scene.clock() + 10)
    scene.clock.advance(20)
    await scene.fire()
    assert (await scene.raw.count(other))[State.WAITING] == 1


async def test_places_are_free_again_if_the_store_fails_while_schedules_are_admitted(
    clocked: Callable[..., Clocked], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = clocked()
    rules = TenantRules(TenantLimits(max_waiting=10), clock=lambda: scene.clock() / 1000)
    count = scene.raw.count
    other = QueueName("other", "mail")

    async def fails(queue: QueueName) -> dict[State, int]:
        if queue == other:
            raise StoreUnavailable("the store is restarting")
        return await count(queue)

    await scene.raw.put([spec("x", other)])
    fires = [Fire(queue=name, schedule="s", at_ms=1, next_ms=2) for name in (MAIL, other)]
    monkeypatch.setattr(scene.raw, "count", fails)
    for _ in range(12):
        scene.clock.advance(2_000)
        with pytest.raises(StoreUnavailable):
            await rules.admit_fires(scene.raw, fires, late_ms=0)
    scene.clock.advance(2_000)
    assert await rules.has_room(scene.raw, MAIL.tenant)


async def test_the_server_plans_the_times_of_a_caller_with_work(
    clocked: Callable[..., Clocked],
) -> None:
    scene = clocked(max_waiting=100)
    record = await scene.acme.put_schedule(every(60_000, catch_up="all"), next_ms=1)
    assert record.next_ms == scene.clock() + 60_000, "the server's time, not the caller's"
    at = record.next_ms
    scene.clock.advance(60_000)
    asked = [Fire(queue=MAIL, schedule="s", at_ms=at + n, next_ms=at + n + 1) for n in range(100)]
    assert (await scene.acme.fire(asked)).count(True) == 1
    (record,) = await scene.raw.list_schedules(MAIL)
    assert record.next_ms == at + 60_000
    assert await scene.count(State.WAITING) == 1
    assert await scene.acme.fire(asked) == [False] * 100


async def test_catching_up_waits_for_the_submit_rate(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(submit_rate=5)
    day = every(1_000, catch_up="all")
    await scene.raw.put_schedule(day, next_ms=scene.clock() - 86_400_000)
    await scene.fire()
    assert await scene.count(State.WAITING) == 5
    scene.clock.advance(2_000)
    await scene.fire()
    assert await scene.count(State.WAITING) == 15 - 5, "five per second"


async def test_cron_times_that_are_too_close_are_refused_or_left_out(
    clocked: Callable[..., Clocked],
) -> None:
    scene = clocked(min_interval=300)
    often = every(None, cron="* * * * *")
    with pytest.raises(InvalidJob, match="less than 300 s apart"):
        await scene.acme.put_schedule(often, next_ms=None)
    await scene.acme.put_schedule(every(None, "ok", cron="*/5 * * * *"), next_ms=None)
    await scene.raw.put_schedule(often, next_ms=scene.clock())
    for _ in range(60):
        await scene.fire()
        scene.clock.advance(60_000)
    page = await scene.raw.find(Filter(queue=MAIL), limit=100)
    assert [each.schedule for each in page.records].count("s") == 12


# ── reruns, duplicates, ended jobs ────────────────────────────────────────────────────────────────


async def test_a_rerun_is_refused_when_the_quota_is_full(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_waiting=2)
    await scene.acme.put([spec("1"), spec("2")])
    await scene.work(2)
    scene.clock.advance(200)
    await scene.acme.put([spec("3")])
    again = [Rerun(job=JobKey(MAIL, id)) for id in ("1", "2")]
    with pytest.raises(QuotaExceeded, match="1 waiting jobs and may have 2"):
        await scene.acme.alter(again)
    assert await scene.acme.alter(again[:1]) == ["done"]
    assert await scene.acme.alter(again[:1]) == ["late"], "it waits already, so it needs no place"
    with pytest.raises(QuotaExceeded):
        await scene.acme.alter(again[1:])
    with pytest.raises(QuotaExceeded):
        await scene.acme.put([spec("4")])


@pytest.mark.parametrize("mode", ["simple", "throttle", "debounce", "keep_last"])
@pytest.mark.parametrize("started", [False, True])
async def test_a_job_that_finds_its_lock_held_takes_no_place(
    clocked: Callable[..., Clocked], mode: Any, started: bool
) -> None:
    """Of all modes and holders: the quota says what the store would have done without it."""
    unique = UniqueSpec(lock="l", mode=mode, ttl_ms=3_600_000)
    free, full = clocked(), clocked(max_waiting=1)
    await free.raw.put([spec("holder", unique=unique)])
    if started:
        claim = Claim(queues=(MAIL,), limit=1, lease_ms=60_000)
        await free.raw.settle([], worker="w", call="1", then=claim)
    await free.raw.put([spec("other")][: int(started)])
    for n in range(3):  # the second keep_last changes the follow-up of the first
        before = await full.count(State.WAITING, State.DELAYED, State.BLOCKED)
        assert before >= 1
        try:
            (result,) = await full.acme.put([spec(f"n{n}", unique=unique)])
            assert result.duplicate
        except QuotaExceeded:
            (result,) = await free.raw.put([spec(f"n{n}", unique=unique)])
            assert not result.duplicate
        full.clock.advance(1_000)


async def test_two_jobs_of_one_call_with_one_lock_or_id_are_one(store: Store) -> None:
    acme, unique = limited(store, max_waiting=1), UniqueSpec(lock="l")
    await acme.put([spec("1", unique=unique), spec("2", unique=unique), spec("1")])
    assert (await store.count(MAIL))[State.WAITING] == 1


async def test_duplicates_take_no_places_from_others(store: Store) -> None:
    acme = limited(store, max_waiting=2)
    await acme.put([spec("1")])
    for _ in range(5):
        await acme.put([spec("1")])
    await acme.put([spec("2")])


async def test_ended_jobs_count_towards_max_stored(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_stored=3)
    for n in range(3):
        await scene.acme.put([spec(str(n))])
        await scene.work(1)
        scene.clock.advance(1_000)
    with pytest.raises(QuotaExceeded, match="3 stored jobs, ended ones included"):
        await scene.acme.put([spec("4")])
    assert await scene.acme.alter([Rerun(job=JobKey(MAIL, "1"))]) == ["done"]
    await scene.raw.purge_ended(MAIL, State.COMPLETED, limit=1)
    scene.clock.advance(1_000)
    await scene.acme.put([spec("4")])


# ── active jobs ───────────────────────────────────────────────────────────────────────────────────


async def test_no_more_jobs_start_than_max_active_allows(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_active=3)
    await scene.acme.put([spec(str(n)) for n in range(10)])
    claim = Claim(queues=(MAIL,), limit=10, lease_ms=60_000)
    replies = await asyncio.gather(
        *(scene.acme.settle([], worker=f"w{n}", call="1", then=claim) for n in range(5))
    )
    leases = [lease for reply in replies for lease in reply.leases]
    assert len(leases) == 3
    empty = [reply for reply in replies if not reply.leases]
    assert all(reply.asleep and reply.next_due_ms for reply in empty), "they sleep, and ask again"
    # What ends in a call makes room in the same call.
    ends = [Complete(queue=MAIL, id=each.id, token=each.token) for each in leases[:2]]
    settled = await scene.acme.settle(ends, worker="w0", call="2", then=claim)
    assert len(settled.leases) == 2
    # The same outcomes again make none.
    for call in ("3", "4"):
        settled = await scene.acme.settle(ends, worker="w0", call=call, then=claim)
        assert settled.leases == ()
    assert await scene.count(State.ACTIVE) == 3


async def test_a_worker_that_waits_for_room_is_woken_when_a_job_ends(store: Store) -> None:
    acme = limited(store, time.monotonic, max_active=1)
    await acme.put([spec("1"), spec("2")])
    claim = Claim(queues=(MAIL,), limit=1, lease_ms=60_000)
    (lease,) = (await acme.settle([], worker="a", call="1", then=claim)).leases
    assert (await acme.settle([], worker="b", call="1", then=claim)).asleep
    asleep = asyncio.create_task(acme.sleep([MAIL], worker="b", slots=1, timeout_ms=600_000))
    await asyncio.sleep(0)
    await acme.settle([Complete(queue=MAIL, id=lease.id, token=lease.token)], worker="a", call="2")
    assert await asyncio.wait_for(asleep, 30)
    (lease,) = (await acme.settle([], worker="b", call="2", then=claim)).leases
    assert lease.id == "2"


async def test_a_lost_reply_is_repeated_whatever_the_room_is(
    clocked: Callable[..., Clocked],
) -> None:
    scene = clocked(max_active=2)
    await scene.acme.put([spec("1"), spec("2"), spec("3")])
    claim = Claim(queues=(MAIL,), limit=2, lease_ms=60_000)
    first = await scene.acme.settle([], worker="a", call="1", then=claim)
    again = await scene.acme.settle([], worker="a", call="1", then=claim)
    assert [lease.token for lease in again.leases] == [lease.token for lease in first.leases]
    assert len(again.leases) == 2


async def test_a_worker_of_several_tenants_claims_from_those_that_have_room(
    clocked: Callable[..., Clocked],
) -> None:
    scene, other = clocked(max_active=1), QueueName("other", "mail")
    await scene.raw.put([spec("1"), spec("2"), spec("3", other), spec("4", other)])
    claim = Claim(queues=(MAIL, other), limit=1, lease_ms=60_000)

    async def claimed(call: str) -> list[str]:
        settled = await scene.operator.settle([], worker="w", call=call, then=claim)
        return [lease.id for lease in settled.leases]

    assert await claimed("1") == ["1"]
    assert await claimed("1") == ["1"], "a repeated call finds its leases, although acme is full"
    assert await claimed("2") == ["3"]
    assert await claimed("3") == ["4"]
    assert await claimed("4") == []


async def test_jobs_that_come_back_count_and_are_not_refused(
    clocked: Callable[..., Clocked],
) -> None:
    scene = clocked(max_waiting=2, max_active=2)
    await scene.acme.put([spec("1"), spec("2")])
    claim = Claim(queues=(MAIL,), limit=2, lease_ms=60_000)
    leases = (await scene.acme.settle([], worker="w", call="1", then=claim)).leases
    scene.clock.advance(1_000)
    await scene.acme.put([spec("3"), spec("4")])
    back = [Release(queue=MAIL, id=each.id, token=each.token) for each in leases]
    assert (await scene.acme.settle(back, worker="w", call="2")).stale == ()
    assert await scene.count(State.WAITING) == 4
    scene.clock.advance(1_000)
    with pytest.raises(QuotaExceeded, match="4 waiting jobs"):
        await scene.acme.put([spec("5")])


async def test_jobs_that_another_server_started_count_as_unfinished(
    clocked: Callable[..., Clocked],
) -> None:
    """Two servers may start more than `max_active` within a second. Those jobs may come back."""
    scene = clocked(max_waiting=2, max_active=1)
    await scene.raw.put([spec("1"), spec("2"), spec("3")])
    claim = Claim(queues=(MAIL,), limit=3, lease_ms=60_000)
    assert len((await scene.raw.settle([], worker="w", call="1", then=claim)).leases) == 3
    with pytest.raises(QuotaExceeded, match="3 unfinished jobs and may have 3"):
        await scene.acme.put([spec("4")])


async def test_a_result_above_the_limit_fails_its_job(clocked: Callable[..., Clocked]) -> None:
    scene = clocked(max_payload=10)
    await scene.acme.put([spec("1"), spec("2")])
    claim = Claim(queues=(MAIL,), limit=2, lease_ms=60_000)
    leases = (await scene.acme.settle([], worker="w", call="1", then=claim)).leases
    ends = [
        Complete(queue=MAIL, id=each.id, token=each.token, result=b"x" * size)
        for each, size in zip(leases, (10, 11), strict=True)
    ]
    await scene.acme.settle(ends, worker="w", call="2")
    first, second = await scene.raw.get([JobKey(MAIL, "1"), JobKey(MAIL, "2")])
    assert first is not None
    assert second is not None
    assert first.result == b"x" * 10
    assert (second.state, second.failure and second.failure.type) == (
        State.FAILED,
        "PayloadTooLarge",
    )


async def test_the_queue_of_dead_letters_counts_before_it_is_made(store: Store) -> None:
    now = Now()
    acme = limited(store, now, max_queues=2)
    await acme.declare(MAIL, QueueConfig(dead_letters="dead"))
    now.s += 5
    with pytest.raises(QuotaExceeded, match="'third' cannot be made"):
        await acme.put([spec("1", QueueName("acme", "third"))])
    with pytest.raises(QuotaExceeded, match="'dead2' cannot be made"):
        await acme.declare(MAIL, QueueConfig(dead_letters="dead2"))
