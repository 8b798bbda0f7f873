"""bench.growth measures at every size, compares, and says which bounds are exceeded."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from bench.growth import __main__ as program
from bench.growth.figures import Bound, Figure, Run, flat, most, plateau, unbounded
from bench.growth.page import page, plot
from bench.growth.report import report

TINY = {
    "waiting": (100, 200),
    "queues": (20, 40),
    "schedules": (20, 40),
    "keys": (100, 200),
    "submits": (20, 600),
    "flows": (20, 40),
    "payloads": (1_024, 4_096),
    "week": (4,),
}


def figure(bound: Bound, *values: float) -> Figure:
    return Figure(
        store="sqlite",
        dimension="waiting",
        what="claim",
        unit="ms",
        sizes=tuple(range(1, len(values) + 1)),
        values=values,
        bound=bound,
    )


def test_a_ratio_compares_the_largest_size_with_the_smallest() -> None:
    assert figure(flat(2), 1.0, 9.0, 2.0).kept
    assert not figure(flat(2), 1.0, 1.0, 2.1).kept
    assert figure(flat(2, floor=3), 1.0, 3.9).kept
    assert not figure(flat(1.0), 0.0, 1.0).kept


def test_one_size_is_compared_with_nothing_and_keeps_no_ratio() -> None:
    assert not figure(flat(2), 1.0).kept


def test_no_value_may_be_above_the_most() -> None:
    assert figure(most(4), 4, 1).kept
    assert not figure(most(4), 5, 1).kept


def test_a_plateau_compares_the_last_quarter_with_the_one_before() -> None:
    assert figure(plateau(1.1), *[1.0, 2.0, 3.0, 4.0] * 2, *[5.0] * 8).kept
    assert not figure(plateau(1.1), *map(float, range(1, 17))).kept


def test_the_report_names_each_exceeded_bound_and_fails() -> None:
    console = Console(record=True, width=200)
    run = Run.new(quick=True, began="2026-01-01T00:00:00+00:00")
    run.add([figure(flat(2), 1.0, 1.5), figure(unbounded("it carries them"), 1.0, 99.0)])
    assert report(run, console) == 0
    run.add([figure(flat(2), 1.0, 9.0)])
    assert report(run, console) == 1
    assert "exceeded: sqlite, waiting, claim: ×9.00" in console.export_text()


def test_a_run_that_checked_nothing_fails() -> None:
    run = Run.new(quick=True, began="2026-01-01T00:00:00+00:00")
    assert report(run, Console(record=True)) == 1


def test_figures_replace_earlier_ones_of_their_store_and_dimension(tmp_path: Path) -> None:
    run = Run.new(quick=True, began="2026-01-01T00:00:00+00:00")
    run.add([figure(flat(2), 1.0, 9.0)])
    run.add([figure(flat(2), 1.0, 1.0)])
    run.save(tmp_path / "deep" / "run.json")
    assert Run.load(tmp_path / "deep" / "run.json") == run
    assert len(run.figures) == 1
    assert not run.exceeded


@pytest.mark.parametrize("name", TINY)
def test_a_dimension_is_measured_at_every_size(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dimension = program.DIMENSIONS[name]
    monkeypatch.setattr(dimension, "quick", TINY[name], raising=False)
    rounds = "100" if name == "week" else "1"
    out = tmp_path / "run.json"
    arguments = ["--quick", "--store", "sqlite", "--only", name, "--rounds", rounds]
    program.main([*arguments, "--out", str(out)])  # at these sizes, bounds mean nothing
    run = Run.load(out)
    count = TINY[name][-1] if name == "week" else len(TINY[name])
    assert {len(each.values) for each in run.figures} == {count}
    # What is not a time does not depend on how busy the machine is.
    assert [each.what for each in run.exceeded if each.bound.kind == "most"] == []
    if name == "keys":
        (left,) = (each for each in run.figures if each.what == "left of drained keys")
        assert left.values == (0, 0)
    assert f"images/growth-{name}.svg" in page(run)
    assert f"\nMeasured on commit `{run.commit}`, " in page(run)
    svg = ET.fromstring(plot(dimension, run.figures))
    lines = svg.findall("{http://www.w3.org/2000/svg}path[@class='line c0']")
    assert len(lines) == len(run.figures) + 1  # and one in the legend
