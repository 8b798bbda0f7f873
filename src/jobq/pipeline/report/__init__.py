"""The report: one self-contained HTML page, and a summary as a PNG picture.

data.py     query the lake for everything to show
series.py   the lines: counts, backlog, histograms of durations
page.py     the HTML: tables, and the data of the charts as JSON
tables.py   the tables of the page
report.js   draws the charts and filters the page; style.css
png.py      draw the picture
"""

from __future__ import annotations

from pathlib import Path

from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.lake import Lake
from jobq.pipeline.report.data import gather
from jobq.pipeline.report.page import page


def write_report(
    lake: Lake,
    out: Path,
    *,
    png: Path | None = None,
    scope: Scope | None = None,
    days_back: int = 7,
    new_since_ms: int | None = None,
    title: str = "jobq",
) -> bool:
    """Write the page, and the picture if `png` is given. Returns whether there were any events.

    `days_back` is the distance in days to the period to compare with; 0 compares with none. Causes
    of failures first seen from `new_since_ms` on are shown as new (default: the last 24 hours)."""
    data = gather(lake, scope or Scope(), days_back=days_back, new_since_ms=new_since_ms)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(data, title), encoding="utf-8")
    if png is not None and data.grid is not None:
        from jobq.pipeline.report.png import picture

        picture(data, title, png)
    return data.grid is not None
