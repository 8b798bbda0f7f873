"""The benchmarks take measurements, save them and show them. The values are not tested."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import backlog, idle
from bench.adapter import Counter, _parts, chunks
from bench.drive import Failed
from bench.measures import MEASURES, percentiles, values
from bench.page import page, plot
from bench.report import table
from bench.results import Results, load
from bench.roster import CONTENDERS, Contender


@pytest.fixture
def results() -> Results:
    made = Results(
        suite="sqlite",
        loop="asyncio",
        seconds=1,
        contenders=["huey", "jobq-sqlite"],
        baseline="huey",
    )
    for row, unit, theirs, ours in (
        ("drain, concurrency 100", "/s", [4000.0, 5000.0, 9000.0], [30000.0, 40000.0, 50000.0]),
        ("request/response p50", "ms", [4.0], [2.0]),
    ):
        made.cell(row, unit, "huey").values = theirs
        made.cell(row, unit, "jobq-sqlite").values = ours
    made.cell("enqueue in bulk", "/s", "huey").note = "unsupported: no bulk enqueue"
    made.cell("enqueue in bulk", "/s", "jobq-sqlite").note = "failed: it fell over"
    return made


def test_the_table_has_medians(results: Results) -> None:
    assert results.median("drain, concurrency 100", "huey") == 5000


def test_a_ratio_above_one_is_better_for_every_unit(results: Results) -> None:
    assert results.ratio("drain, concurrency 100", "jobq-sqlite") == 8
    assert results.ratio("request/response p50", "jobq-sqlite") == 2


def test_a_value_that_was_not_measured_has_no_ratio(results: Results) -> None:
    assert results.ratio("enqueue in bulk", "jobq-sqlite") is None


def test_a_saved_run_is_loaded_unchanged(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "deep" / "run.json")
    assert load(tmp_path / "deep" / "run.json") == results


def test_the_table_and_the_page_show_every_row(results: Results) -> None:
    assert table(results).row_count == 3
    written = page([results])
    assert "| drain, concurrency 100 | 5,000/s | 40,000/s ×8 |" in written
    assert "| enqueue in bulk | – | failed |" in written
    assert f"Measured on commit `{results.commit}` ({results.suite}, jobq " in written


def test_the_plot_is_well_formed_and_has_a_bar_per_contender(results: Results) -> None:
    svg = ET.fromstring(plot(results))
    assert len(svg.findall("{http://www.w3.org/2000/svg}rect")) == 2


def test_percentiles_of_one_value_are_that_value() -> None:
    assert percentiles([7.0]) == (7.0, 7.0)


def test_percentiles_are_of_the_sorted_values() -> None:
    assert percentiles([float(n) for n in range(100, 0, -1)]) == (51.0, 100.0)


@pytest.mark.parametrize(("n", "parts"), [(100, 100), (101, 100), (7, 100), (0, 3)])
def test_the_parts_add_up_to_the_whole(n: int, parts: int) -> None:
    assert sum(_parts(n, parts)) == n
    assert sum(chunks(n, 10)) == n


def test_the_counter_replies_once_when_the_target_is_reached(
    capfd: pytest.CaptureFixture[str],
) -> None:
    counter = Counter()
    counter.target = 3
    for _ in range(5):
        counter.tick()
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith('BENCH {"n": 2, ')


@pytest.mark.parametrize("contender", ["jobq-sqlite", "jobq-memory", "huey"])
@pytest.mark.parametrize("key", ["one", "concurrent", "drain10", "request"])
def test_a_measurement_works_end_to_end(key: str, contender: str) -> None:
    versions: dict[str, str] = {}
    taken = list(
        values(MEASURES[key], CONTENDERS[contender], n=20, loop="asyncio", versions=versions)
    )
    assert [value > 0 for _, _, value in taken] == [True] * len(MEASURES[key].rows)


def test_a_program_that_crashes_is_reported_with_the_end_of_its_stderr() -> None:
    broken = Contender(name="broken", module="no_such_peer", place="memory", url="memory://")
    with pytest.raises(Failed, match=r"broken enqueue: ended without a reply\n.*no_such_peer"):
        list(values(MEASURES["one"], broken, n=1, loop="asyncio", versions={}))


def test_the_idle_bench_checks_both_bounds() -> None:
    assert idle.report(10, 40, {"all": 0.7, "fcall": 0.1}, [1, 2]) == 0
    assert idle.report(10, 40, {"all": 1.1, "fcall": 0.1}, [1, 1]) == 1
    assert idle.report(10, 40, {"all": 0.7, "fcall": 0.1}, [1, 3]) == 1


def test_the_backlog_bench_compares_the_medians_of_elapsed_time() -> None:
    pair = backlog.Pair
    even, slow = [pair(1.0, 1.0), pair(1.0, 9.0), pair(1.0, 1.0)], [pair(1.0, 1.3)] * 3
    assert backlog.report(1, 2, [("drain", 0.1, even), ("CPU", None, slow)]) == 0
    assert backlog.report(1, 2, [("drain", 0.1, slow)]) == 1
