"""The HTML report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from jobq.errors import ConfigError
from jobq.pipeline import synthetic
from jobq.pipeline.audit import audit
from jobq.pipeline.cli import main
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.report import write_report
from jobq.pipeline.report.charts import bars, duration, line_chart, number, percent
from jobq.pipeline.slo import DEFAULTS
from jobq.pipeline.tables import TABLES
from tests.pipeline.conftest import take_in


def test_the_page_has_all_sections_and_no_external_resources(lake: Lake, tmp_path: Path) -> None:
    take_in(lake, list(synthetic.lines(synthetic.Plan(jobs=300, hours=1))))
    derive(lake, DEFAULTS)
    audit(lake)
    png = tmp_path / "out" / "report.png"
    write_report(lake, tmp_path / "out" / "report.html", png=png, title="Tom & <Jerry>")
    page = (tmp_path / "out" / "report.html").read_text()
    for part in (
        "Throughput",
        "Wait",
        "Run",
        "Backlog",
        "Failures by kind",
        "Worker utilisation",
        "Slowest tasks",
        "Service levels",
        "proved",
    ):
        assert part in page
    assert "Tom &amp; &lt;Jerry&gt;" in page
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page
    for outside in ("http:", "https:", "src=", "<script", "@import", "url("):
        assert outside not in page
    assert page.count("<svg") == 6
    assert png.read_bytes().startswith(b"\x89PNG")
    write_report(lake, tmp_path / "acme.html", tenant="acme")
    assert "globex" not in (tmp_path / "acme.html").read_text().split("Busiest workers")[0]


def test_an_empty_lake_has_no_report(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no events in this period"):
        write_report(lake, tmp_path / "report.html")


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


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [None, None], [None, 3.0, None], [9.4, 0.01], [1e9, 1.0]]
)
@pytest.mark.parametrize("log", [False, True])
def test_any_values_can_be_drawn(values: list[float | None], log: bool) -> None:
    chart = line_chart([60_000 * n for n in range(len(values))], {"a & b": values}, log=log)
    assert "nan" not in chart
    assert ElementTree.fromstring(chart).tag == "svg"
    assert "<li>" not in bars([])


def test_the_guide_documents_every_table() -> None:
    printed = CliRunner().invoke(main, ["tables"]).output
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "pipeline.md").read_text()
    for table in TABLES:
        assert f"### `{table.name}`" in printed
    assert printed.strip() in guide
