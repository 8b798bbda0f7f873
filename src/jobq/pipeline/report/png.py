"""Draw the main charts of the report as one picture, e.g. for a chat message."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobq.pipeline.report.charts import duration, number, percent
from jobq.pipeline.report.data import ReportData

_COLOURS = ("#2f6fde", "#1a9a6c", "#d9480f", "#8b5cf6", "#b7791f", "#64748b")


def picture(data: ReportData, title: str, path: Path) -> None:
    """Write a picture of 1600 × 1000 pixels with six charts. Needs matplotlib (jobq[report])."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 10), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(2, 3)
    figure.suptitle(
        f"{title} · {number(data.totals['accepted'])} jobs, {number(data.totals['failed'])} failed",
        fontsize=18,
    )
    times = [datetime.fromtimestamp(t / 1000, UTC) for t in data.times_ms]
    lines = data.lines
    _panel(
        panels[0][0],
        "throughput, jobs/min",
        times,
        {name: lines[name] for name in ("completed", "accepted", "failed")},
        number,
    )
    _panel(
        panels[0][1],
        "wait",
        times,
        {q: lines[f"wait_{q}"] for q in ("p50", "p95", "p99")},
        duration,
        log=True,
    )
    _panel(
        panels[0][2],
        "run",
        times,
        {q: lines[f"run_{q}"] for q in ("p50", "p95", "p99")},
        duration,
        log=True,
    )
    _panel(panels[1][0], "backlog, jobs waiting", times, data.backlog, number)
    _panel(
        panels[1][1],
        "retries, stalls, failures per minute",
        times,
        {name: lines[name] for name in ("retried", "stalled", "failed")},
        number,
    )
    _panel(
        panels[1][2], "worker utilisation", times, {"all workers": lines["utilisation"]}, percent
    )
    figure.savefig(path)


def _panel(
    axes: Any,
    title: str,
    times: list[datetime],
    series: dict[str, list[float | None]],
    format: Any,
    *,
    log: bool = False,
) -> None:
    from matplotlib import dates, ticker

    for n, (name, values) in enumerate(series.items()):
        axes.plot(
            times,
            [float("nan") if value is None else value for value in values],
            label=name,
            color=_COLOURS[n % 6],
            linewidth=1.6,
        )
    if log and any(value for line in series.values() for value in line):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: format(value)))
    when: Any = dates  # matplotlib annotates these two classes only in part
    locator = when.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(when.ConciseDateFormatter(locator, tz=UTC))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
