"""Draw the main charts of the report as one picture, e.g. for a chat message."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobq.pipeline.report.data import ReportData
from jobq.pipeline.report.page import unit
from jobq.pipeline.report.series import COUNTED, percentile
from jobq.pipeline.report.text import duration, number, percent

_COLOURS = ("#2f6fde", "#1a9a6c", "#d9480f", "#8b5cf6", "#b7791f", "#64748b")


def picture(data: ReportData, title: str, path: Path) -> None:
    """Write a picture of 1600 × 1000 pixels with six charts. Needs matplotlib (jobq[report])."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 10), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(2, 3)
    grid, per = data.grid, unit(data)
    assert grid is not None
    lines = _lines(data)
    accepted, failed = (
        sum(sum(queue.counts[name]) for queue in data.now.queues) for name in ("accepted", "failed")
    )
    # Text between dollar signs would be drawn as a formula, or be an error.
    figure.suptitle(
        f"{title} · {number(accepted)} jobs, {number(failed)} failed".replace("$", r"\$"),
        fontsize=18,
    )
    times = [
        datetime.fromtimestamp((grid.start_ms + (n + 0.5) * grid.step_ms) / 1000, UTC)
        for n in range(grid.points)
    ]
    _panel(
        panels[0][0],
        f"throughput, jobs per {per}",
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
    _panel(panels[1][0], "backlog, jobs waiting", times, {"all queues": lines["waiting"]}, number)
    _panel(
        panels[1][1],
        f"retries, stalls, failures per {per}",
        times,
        {name: lines[name] for name in ("retried", "stalled", "failed")},
        number,
    )
    _panel(
        panels[1][2], "worker utilisation", times, {"all workers": lines["utilisation"]}, percent
    )
    figure.savefig(path)


def _lines(data: ReportData) -> dict[str, list[float | None]]:
    """The lines of everything together."""
    assert data.grid is not None
    points, queues, tasks = range(data.grid.points), data.now.queues, data.now.tasks
    per = data.grid.step_ms / (1000 if unit(data) == "second" else 60_000)
    lines: dict[str, list[float | None]] = {
        name: [sum(queue.counts[name][i] for queue in queues) / per for i in points]
        for name in COUNTED
    }
    lines["waiting"] = [sum(queue.waiting[i] for queue in queues) for i in points]
    for q, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        lines[f"wait_{q}"] = [percentile([task.wait[i] for task in tasks], rank) for i in points]
        lines[f"run_{q}"] = [percentile([task.run[i] for task in tasks], rank) for i in points]
    used = zip(data.workers.covered_ms, data.workers.present_ms, strict=True)
    lines["utilisation"] = [busy / present if present else None for busy, present in used]
    return lines


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
