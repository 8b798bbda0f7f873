"""The report: one self-contained HTML page, and a summary as a PNG picture.

data.py     query the lake for the numbers to show
charts.py   draw numbers as SVG
page.py     assemble charts and tables into HTML
png.py      draw the picture
"""

from __future__ import annotations

from pathlib import Path

from jobq.pipeline.lake import Lake
from jobq.pipeline.report.data import gather
from jobq.pipeline.report.page import page


def write_report(
    lake: Lake,
    out: Path,
    *,
    png: Path | None = None,
    since: str | None = None,
    until: str | None = None,
    tenant: str | None = None,
    title: str = "jobq",
) -> None:
    """Write the page, and the picture if `png` is given.

    `since` and `until` are the first and the last day (YYYY-MM-DD). Default: all days, all
    tenants."""
    data = gather(lake, since=since, until=until, tenant=tenant)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(data, title), encoding="utf-8")
    if png is not None:
        from jobq.pipeline.report.png import picture

        picture(data, title, png)
