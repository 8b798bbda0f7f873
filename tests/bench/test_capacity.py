"""The benchmarks of capacity measure real servers, write a file, and see a wrong prediction."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.capacity import measure, places
from bench.capacity.__main__ import as_toml, checked
from bench.capacity.check import Compared
from bench.capacity.measure import Sizes
from bench.capacity.program import Settings, started
from bench.scale.plot import svg
from bench.scale.run import SUPERLINEAR, exponents, simulate
from jobq.operations.capacity import default_measured
from jobq.operations.capacity.constants import parse_measured
from tests.stores.valkey.servers import valkey_or_skip

COSTS = default_measured()


def test_puts_on_a_real_server_cost_processor_time_and_bytes() -> None:
    valkey_or_skip()
    with places.valkey() as target, started(Settings(url=target.url)) as producer:
        found = measure.puts(target, producer, Sizes(single=30, batched=300, big=100))
    assert found.call.cpu_us + found.job.cpu_us > 0
    assert 20 < found.job.bytes < 200  # besides the payload


def test_the_file_of_costs_is_read_as_it_was_written() -> None:
    again = parse_measured(as_toml(COSTS), "again")
    assert again.about == COSTS.about
    assert again.valkey.sparse_us == pytest.approx(COSTS.valkey.sparse_us, rel=1e-3)
    assert as_toml(again) == as_toml(COSTS)


def test_a_prediction_that_is_a_third_off_is_seen_in_both_directions() -> None:
    ratios = {2 / 3: False, 0.76: True, 1.0: True, 1.24: True, 1.3: False}
    for ratio, within in ratios.items():
        assert Compared("load", "figure", 100 * ratio, 100).within is within


def test_a_load_that_does_not_exist_is_not_a_check_that_holds() -> None:
    with pytest.raises(SystemExit, match="no load has 'typo' in its name"):
        checked(COSTS, "typo")


def test_a_simulation_is_repeated_exactly() -> None:
    runs = [simulate(3, COSTS, shared=True, seconds=0.2, seed=7) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != simulate(3, COSTS, shared=True, seconds=0.2, seed=8)


def test_reads_per_job_grow_with_the_partitions_of_one_queue_only() -> None:
    sizes = (3, 12)
    shared = [simulate(n, COSTS, shared=True, seconds=0.3) for n in sizes]
    apart = [simulate(n, COSTS, shared=False, seconds=0.3) for n in sizes]
    assert exponents(shared, "looks") > 0.7
    assert exponents(apart, "calls") < SUPERLINEAR
    assert all(found.done > 0.8 for found in (*shared, *apart))
    assert ET.fromstring(svg({"one": shared, "many": apart})).tag.endswith("svg")


def test_a_lost_primary_stops_its_own_queues_and_partitions_only() -> None:
    for shared in (True, False):
        found = simulate(6, COSTS, shared=shared, lost=True, rate=5)
        assert 0.4 < found.done < 0.95
