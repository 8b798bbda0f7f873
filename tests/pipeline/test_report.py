"""What the report shows, from a lake with a few seconds of jobs, computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.pipeline.audit.audit import audit
from jobq.pipeline.cli import main
from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.report import series, write_report
from jobq.pipeline.report.data import ReportData, gather, grid_over
from jobq.pipeline.report.series import Grid, middle_ms, percentile, queue_series, task_series
from jobq.pipeline.report.text import duration, number, percent
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.tables import TABLES
from tests.pipeline.conftest import History, take_in

START = History.START


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three jobs within 15 seconds."""
    h = History()
    h.life("a", at=10, wait=1, run=2)
    h.life("b", at=12, wait=3, run=10, queue="bills", name="charge")
    broken = {"reason": "error", "error": "KeyError: 'x'", "fingerprint": "f1"}
    h.life("c", at=20, wait=1, run=1, end="failed", **broken)
    lake = Lake(spark, str(tmp_path_factory.mktemp("report") / "lake"))
    take_in(lake, h.lines)
    derive(lake, DEFAULTS)
    audit(lake)
    return lake


@pytest.fixture(scope="module")
def data(lake: Lake) -> ReportData:
    return gather(lake, Scope())


def at(seconds: dict[int, int], points: int = 16) -> list[int]:
    """A line that is 0 except in these seconds after the grid's start."""
    return [seconds.get(n, 0) for n in range(points)]


def test_a_few_seconds_of_jobs_are_drawn_in_seconds(data: ReportData) -> None:
    assert data.grid == Grid(START + 10_000, 1000, 16)
    mail, bills = sorted(data.now.queues, key=lambda one: one.queue, reverse=True)
    assert mail.counts["accepted"] == at({0: 1, 10: 1})
    assert mail.counts["completed"] == at({3: 1})
    assert mail.counts["failed"] == at({12: 1})
    assert mail.waiting == at({0: 1, 10: 1})
    assert bills.waiting == at({2: 1, 3: 1, 4: 1})


def test_runs_are_counted_per_task_with_histograms(data: ReportData) -> None:
    by_name = {one.name: one for one in data.now.tasks}
    assert by_name["charge"].counts["completed"] == at({15: 1})
    assert by_name["send"].counts["failed"] == at({12: 1})
    (_, n) = by_name["charge"].run[15]
    assert n == 1
    assert percentile(by_name["charge"].run, 0.5) == pytest.approx(10_000, rel=0.1)
    assert percentile(by_name["send"].run, 0.99) == pytest.approx(2000, rel=0.1)


def test_the_chart_and_the_table_of_workers_have_one_denominator(data: ReportData) -> None:
    # w-1 ran from 11 to 13 and from 15 to 25; the run from 21 to 22 was parallel.
    assert sum(data.workers.covered_ms) == 12_000
    assert sum(data.workers.busy_ms) == 13_000
    (use,) = data.used
    assert use.present_ms == sum(data.workers.present_ms) == 15_000
    assert use.utilisation == pytest.approx(12 / 15)


def test_the_tables_are_those_of_the_views(data: ReportData) -> None:
    assert [(cause.fingerprint, cause.dead) for cause in data.dead] == [("f1", 1)]
    assert [cause.fingerprint for cause in data.new] == ["f1"]
    assert [(cost.name, cost.run_ms, cost.lost_ms) for cost in data.costs] == [
        ("charge", 10_000, 0),
        ("send", 3000, 1000),
    ]
    assert data.then is None
    assert data.audit is not None
    assert data.audit["verdict"] == "proved"


def test_minutes_and_seconds_agree(lake: Lake, data: ReportData) -> None:
    minutes = Grid(START, 60_000, 12)
    for by_second in data.now.queues:
        scope = Scope(since="2025-11-15", until="2025-11-15", queue=by_second.queue)
        (by_minute,) = queue_series(lake, scope, minutes)
        assert by_minute.waiting == [0] * 12
        for name, line in by_second.counts.items():
            assert by_minute.counts[name] == [sum(line), *[0] * 11]


def test_tasks_beyond_the_limit_are_one_line(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_SERIES", 1)
    (other,) = task_series(lake, Scope(), Grid(START, 60_000, 12))
    assert (other.tenant, other.name) == (series.OTHER, series.OTHER)
    assert other.counts["completed"][0] == 2


def test_the_report_is_one_file_and_a_picture(lake: Lake, tmp_path: Path) -> None:
    page, png = tmp_path / "out" / "report.html", tmp_path / "out" / "report.png"
    assert write_report(lake, page, png=png, title="Tom & <Jerry> $5$")
    text = page.read_text()
    assert "Tom &amp; &lt;Jerry&gt; $5$" in text
    assert "jq-ctl --tenant acme job rerun -q mail --where error=f1" in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_an_empty_lake_has_a_page_that_says_so(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert not write_report(Lake(spark, str(tmp_path / "lake")), out)
    assert "No events yet" in out.read_text()


# ── without Spark ─────────────────────────────────────────────────────────────────────────────────

HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("first", "end", "shortest", "expected"),
    [
        (START + 10_400, START + 10_401, 1, Grid(START + 10_000, 1000, 12)),  # at least 12 points
        (START + 10_400, START + 70_000, 1, Grid(START + 10_000, 1000, 60)),
        (START + 61_000, START + 25 * 60_000, 1, Grid(START + 60_000, 15_000, 96)),
        (START, START + DAY, 60, Grid(START, 900_000, 96)),
        (START, START + 90 * DAY, 60, Grid(START, DAY, 90)),
        (START, START + 365 * DAY, 60, Grid(START // (4 * DAY) * 4 * DAY, 4 * DAY, 92)),
    ],
)
def test_points_are_at_round_times_and_neither_too_many_nor_too_few(
    first: int, end: int, shortest: int, expected: Grid
) -> None:
    assert grid_over(first, end, shortest) == expected


def test_a_percentile_of_a_histogram_is_off_by_nine_percent_at_most() -> None:
    import math

    for ms in (1, 2, 7, 50, 333, 12_345, 3_600_000):
        bucket = math.ceil(math.log2(ms + 1) * series.PER_DOUBLING)
        assert middle_ms(bucket) + 1 == pytest.approx(ms + 1, rel=0.0906)
    assert percentile([[4, 1], [8, 98], [40, 1]], 0.5) == middle_ms(8)
    assert percentile([[4, 1], [8, 98], [40, 1]], 1.0) == middle_ms(40)
    assert percentile([[]], 0.5) is None


def test_numbers_are_shortened() -> None:
    assert [number(n) for n in (0, 7, 999, 12_345, 2_500_000)] == ["0", "7", "999", "12.3k", "2.5M"]
    assert [duration(ms) for ms in (5, 1500, 100_000, 600_000, 10_800_000)] == [
        "5 ms",
        "1.5 s",
        "100 s",
        "10 min",
        "3 h",
    ]
    assert percent(0.98765) == "98.77 %"


def test_the_guide_documents_every_table() -> None:
    printed = CliRunner().invoke(main, ["tables"]).output
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "lake-tables.md").read_text()
    for table in TABLES:
        assert f"### `{table.name}`" in printed
    assert printed.strip() in guide
