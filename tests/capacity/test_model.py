"""The capacity model: more load needs no less, and each bound decides where it should."""

from __future__ import annotations

import msgspec
import pytest

from jobq.core.records.jobs import QueueName
from jobq.engine.identity import WorkerSettings
from jobq.errors import ConfigError
from jobq.operations.capacity import Fleet, Load, Plan, default_measured, plan, use
from jobq.operations.capacity.use import (
    RENEW_S,
    SCHEDULES_S,
    TICK_S,
    asleep_share,
    exchanges,
    expected_batch,
    spread,
)
from jobq.stores.valkey.keys import Space, hash_slot_of

COSTS = default_measured()


def count(found: Plan, what: str) -> int:
    return next(need.count for need in found.needs if need.what == what)


@pytest.mark.parametrize("store", ["valkey", "postgres", "sqlite"])
def test_twice_the_jobs_need_no_less_of_anything(store: str) -> None:
    small = Load(jobs_per_s=100, store=store, queues=50)  # type: ignore[arg-type]
    large = msgspec.structs.replace(small, jobs_per_s=200.0)
    fewer, more = plan(small, COSTS), plan(large, COSTS)
    assert more.use.total_us > fewer.use.total_us
    assert more.use.store_bytes_per_s >= fewer.use.store_bytes_per_s
    for a, b in zip(fewer.needs, more.needs, strict=True):
        assert a.what == b.what
        assert a.count <= b.count


def test_workers_are_bound_by_slots_or_by_processor_time() -> None:
    by_slots = plan(Load(jobs_per_s=10, run_s=60, concurrency=10), COSTS)
    assert count(by_slots, "worker processes") == 120  # 600 jobs at once, half of the slots free
    by_cpu = plan(Load(jobs_per_s=10, run_s=1, cpu_s=1, concurrency=100), COSTS)
    assert 20 <= count(by_cpu, "worker processes") <= 21  # a core for each second, half of it free


def test_no_primary_of_a_plan_is_busier_than_the_headroom_allows() -> None:
    for headroom in (0.2, 0.5, 0.8):
        load = Load(jobs_per_s=20_000, queues=200, headroom=headroom, enqueue_batch=50)
        found = plan(load, COSTS)
        assert found.fits
        assert found.use.busiest_us <= 1e6 * (1 - headroom)


def test_a_single_queue_that_no_cluster_can_carry_is_reported() -> None:
    found = plan(Load(jobs_per_s=3e6), COSTS)
    assert not found.fits
    assert any("Divide the jobs among" in note for note in found.notes)


def test_one_relay_per_queue_is_a_bound_that_is_reported() -> None:
    one = plan(Load(jobs_per_s=200_000, queues=1, kafka=True, enqueue_batch=1000), COSTS)
    assert any("one relay ships a whole queue" in note for note in one.notes)
    many = plan(Load(jobs_per_s=200_000, queues=1000, kafka=True, enqueue_batch=1000), COSTS)
    assert not any("one relay ships a whole queue" in note for note in many.notes)


def test_partitions_are_placed_as_the_store_places_them() -> None:
    """The model calculates slots itself, because it may not import a store."""
    space, counts = Space(), [0, 0, 0]
    for p in range(12):
        key = space.partition_prefix(QueueName("tenant-0", "jobs"), p)
        counts[hash_slot_of(key) * 3 // 16_384] += 1
    assert spread(1, 12, 3) == tuple(n / 12 for n in counts)


def test_the_spread_of_a_hundred_million_queues_is_known_at_once() -> None:
    assert max(spread(100_000_000, 1, 10)) == pytest.approx(0.1, rel=0.1)
    assert max(spread(100_000_000, 100_000, 10)) == pytest.approx(0.1, rel=0.1)


def test_upkeep_and_renewals_are_as_frequent_as_the_workers_say() -> None:
    settings = WorkerSettings()
    assert (settings.tick_ms / 1000, settings.schedule_ms / 1000) == (TICK_S, SCHEDULES_S)
    assert settings.lease_ms / 3000 == RENEW_S


def test_jobs_that_come_together_or_quickly_share_calls() -> None:
    load, ten, one = Load(jobs_per_s=100), Fleet(workers=10), Fleet(workers=1)
    alone = exchanges(load, ten, exchange_ms=1)
    assert 0.9 < alone < 1
    many = msgspec.structs.replace(load, enqueue_batch=60)
    assert exchanges(many, ten, exchange_ms=1) == pytest.approx(1 / 60.03)
    apart = Fleet(workers=10, primaries=3, partitions=6)  # a group from each primary
    assert exchanges(many, apart, exchange_ms=1) == pytest.approx(1 / 20.03)
    assert exchanges(load, apart, exchange_ms=1) == alone
    assert exchanges(load, one, exchange_ms=10) < alone / 3


def test_the_primary_of_a_queues_name_has_more_to_do_than_its_share_of_partitions() -> None:
    found = use(Load(jobs_per_s=100), Fleet(workers=1, primaries=3, partitions=12), COSTS)
    assert found.waking.home_us > 0
    for each, total in (
        (found.primary_us, found.total_us + 2 * found.store_us["workers"]),
        (found.primary_waking_us, found.waking.store_us),
    ):
        home, *others = (each(1 / 3, part) for part in (1, 0, 0))
        assert home >= others[0]
        assert home + sum(others) == pytest.approx(total)


def test_every_further_primary_that_a_look_wakes_costs_more() -> None:
    load = Load(jobs_per_s=10)
    few, many = (
        use(load, Fleet(workers=1, primaries=n, partitions=16), COSTS).waking.store_us
        for n in (3, 12)
    )
    assert many - few == pytest.approx(9 * 10 * COSTS.partitions.primary_us, rel=0.2)


def test_a_batch_is_divided_among_partitions() -> None:
    assert expected_batch(100, 1) == 100
    assert expected_batch(1, 50) == pytest.approx(1)
    assert 1 < expected_batch(10, 10) < 2


def test_a_server_that_sleeps_less_pays_less_for_waking() -> None:
    assert asleep_share(0, 0, 1) == 1
    half = asleep_share(0.4e6, 0.2e6, 1)
    assert 0.4e6 + 0.2e6 * half == pytest.approx((1 - half) * 1e6)
    assert asleep_share(2e6, 1e6, 1) == 0


def test_more_partitions_cost_more_looks() -> None:
    load = Load(jobs_per_s=1000)
    few = use(load, Fleet(workers=100, primaries=10, partitions=10), COSTS)
    many = use(load, Fleet(workers=100, primaries=10, partitions=100), COSTS)
    assert many.store_us["looks"] > few.store_us["looks"]
    assert "looks" not in use(load, Fleet(workers=100), COSTS).store_us


@pytest.mark.parametrize(
    "wrong", [{"jobs_per_s": 0}, {"headroom": 1.0}, {"cpu_s": 2.0}, {"payload": -1}]
)
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Load(**{"jobs_per_s": 1, **wrong})  # type: ignore[arg-type]
