"""`jq-pipeline report`: one HTML page that needs nothing else, and a summary as a picture.

data.py    what is shown, asked of the lake: a few hundred numbers
charts.py  numbers into SVG      page.py  charts and tables into HTML      png.py  the picture
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
    """Write the page (and the picture) about these days (YYYY-MM-DD, both included; None: all) and this tenant (None: all)."""
    story = gather(lake, since=since, until=until, tenant=tenant)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(story, title), encoding="utf-8")
    if png is not None:
        from jobq.pipeline.report.png import picture

        picture(story, title, png)
