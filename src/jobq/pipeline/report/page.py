"""Assemble the page: tables as HTML, and the data of the charts as JSON that report.js draws.

Nothing in a job's name, error or arguments can break out of the page: text is escaped, the JSON has
no character that ends a script block, and the page's policy allows only this style and this
script."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import msgspec

from jobq.pipeline.insight.burn import BURNING
from jobq.pipeline.insight.views import utc
from jobq.pipeline.report import tables
from jobq.pipeline.report.data import Period, ReportData
from jobq.pipeline.report.series import PER_DOUBLING, QueueSeries, TaskSeries
from jobq.pipeline.report.text import plain, safe

_FOLDER = files("jobq.pipeline.report")
_STYLE = _FOLDER.joinpath("style.css").read_text(encoding="utf-8")
_SCRIPT = _FOLDER.joinpath("report.js").read_text(encoding="utf-8")

_CHARTS = {
    "throughput": ("Throughput", "jobs per {unit}"),
    "wait": ("Wait", "time from due to start, logarithmic"),
    "run": ("Run", "time from start to end, logarithmic"),
    "backlog": ("Backlog", "jobs waiting"),
    "trouble": ("Retries, stalls, failures", "per {unit}"),
    "workers": ("Workers", "share of their time with at least one running job; all tenants"),
    "burn": (
        "Burn rate",
        "how fast the error budget is used up: 1 lasts for the period, 6 needs attention",
    ),
}


def page(data: ReportData, title: str) -> str:
    """The whole page."""
    body = _body(data) if data.grid is not None else _nothing(data)
    policy = (
        f"default-src 'none'; style-src '{_digest(_STYLE)}'; script-src '{_digest(_SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{safe(title)}</title>'
        f"<style>{_STYLE}</style></head><body><main>"
        f"<header><div><h1>{safe(title)}</h1>{_subtitle(data)}</div>"
        '<button id="theme" type="button" hidden>Theme</button></header>'
        f'{body}{_foot(data)}</main><div id="tip" hidden></div>'
        f'<script type="application/json" id="data">{embedded(_payload(data))}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def embedded(value: Any) -> str:
    """JSON that is safe inside a script block: no character of it can end or open a tag."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────


def _subtitle(data: ReportData) -> str:
    scope = data.scope
    chosen = (("tenant", scope.tenant), ("queue", scope.queue), ("task", scope.task))
    only = "".join(f", {what} {safe(name)}" for what, name in chosen if name is not None)
    if data.grid is None:
        days = " to ".join(filter(None, (scope.since, scope.until)))
        return f'<p class="sub">{days or "the whole lake"}{only}</p>'
    first, end = (
        datetime.fromtimestamp(ms / 1000, UTC) for ms in (data.grid.start_ms, data.grid.end_ms)
    )
    clock = "%H:%M:%S" if data.grid.step_ms < 60_000 else "%H:%M"
    until = end.strftime(clock if first.date() == end.date() else f"%-d %B %Y, {clock}")
    return f'<p class="sub">{first.strftime(f"%-d %B %Y, {clock}")} to {until} UTC{only}</p>'


def _nothing(data: ReportData) -> str:
    narrowed = any(msgspec.structs.astuple(data.scope))
    hint = (
        "Choose other days, or another tenant, queue or task."
        if narrowed
        else "Run some jobs, then <code>jq-pipeline run</code>, then this report again."
    )
    return f'<section class="card nothing"><h2>No events yet</h2><p>{hint}</p></section>'


def _body(data: ReportData) -> str:
    latest = max((burn.hour for burn in data.burn), default=0)
    burns = [burn for burn in data.burn if burn.hour == latest]
    since = f"since {utc(data.new_since_ms)} UTC"
    back = f"{data.days_back} days before" if data.days_back != 7 else "a week before"
    missing = f"There is nothing from {back} to compare with."
    parts = [
        _filters(data),
        '<div class="tiles" id="tiles"></div><noscript><p class="empty">The charts and filters '
        "need JavaScript. The tables below do not.</p></noscript>",
        '<div class="cards">',
        _card(
            "What stands out",
            f"compared with the same hours {back}",
            tables.standout_table(data.standouts, "Nothing stands out." if data.then else missing),
            wide=True,
        )
        if data.days_back
        else "",
        _chart("throughput", data, wide=True),
        _chart("wait", data),
        _chart("run", data),
        _chart("backlog", data),
        _chart("trouble", data),
        _card(
            "New failures",
            f"causes first seen {since}",
            tables.cause_table(data.new, f"No cause is new {since}."),
            wide=True,
        ),
        _card(
            "Dead letters",
            "jobs that failed for good, by cause; some may have been rerun since",
            tables.cause_table(data.dead, "No job has failed for good."),
            wide=True,
        ),
        _card(
            "Failures by kind",
            "failed runs and jobs",
            tables.reason_table(data.reasons),
            wide=True,
        ),
        _card(
            "Trouble per task",
            "runs that did not go well",
            tables.trouble_table(data.trouble),
            wide=True,
        ),
        _chart("burn", data, tables.burn_table(burns, data.slo), title="Service levels", wide=True),
        _card(
            "Cost",
            "run time per task; the red part went to runs that were retried, failed or stalled",
            tables.cost_table(data.costs),
            wide=True,
        ),
        _card(
            "Slowest tasks",
            "by the 95th percentile of their runs",
            tables.task_table(data.tasks),
            wide=True,
        ),
        _chart("workers", data, tables.worker_table(data.used, data.trouble_by_worker), wide=True),
        "</div>",
    ]
    return "".join(parts)


def _filters(data: ReportData) -> str:
    selects = "".join(
        f'<label>{name}<select id="{name}"><option value="">all</option></select></label>'
        for name in ("tenant", "queue", "task")
    )
    back = "a week" if data.days_back == 7 else f"{data.days_back} days"
    compare = (
        f'<label class="check"><input type="checkbox" id="compare" checked> {back} before</label>'
        if data.then is not None
        else ""
    )
    return f'<form id="filters" hidden>{selects}{compare}</form>'


def _card(title: str, note: str, body: str, *, wide: bool = False) -> str:
    kind = "card wide" if wide else "card"
    head = f'<h2>{title}</h2><p class="note">{note}</p>'
    return f'<section class="{kind}">{head}{body}</section>'


def _chart(
    name: str, data: ReportData, more: str = "", *, title: str | None = None, wide: bool = False
) -> str:
    head, note = _CHARTS[name]
    note = note.format(unit=unit(data))
    box = f'<div class="chart" id="chart-{name}"></div><p class="legend" id="legend-{name}"></p>'
    return _card(title or head, f"{head.lower()}: {note}" if title else note, box + more, wide=wide)


def unit(data: ReportData) -> str:
    """The unit of rates: a short period is counted in seconds."""
    return "second" if data.grid is not None and data.grid.step_ms < 60_000 else "minute"


def _foot(data: ReportData) -> str:
    counts = data.lake
    parts = [f"{counts['events']:,} events in the lake"]
    parts += [
        f"{counts[name]:,} {word}"
        for name, word in (
            ("duplicates", "duplicates dropped"),
            ("late", "late"),
            ("quarantined", "quarantined"),
        )
        if counts[name]
    ]
    text = f"{', '.join(parts)}."
    if data.grid is not None:
        text += " Percentiles in charts are off by 9 % at most. All times are UTC."
    return f'<p class="foot">{text}</p>'


# ── the data of the charts ────────────────────────────────────────────────────────────────────────


def _payload(data: ReportData) -> dict[str, Any] | None:
    if data.grid is None:
        return None
    return {
        "start": data.grid.start_ms,
        "step": data.grid.step_ms,
        "count": data.grid.points,
        "unit": unit(data),
        "perDoubling": PER_DOUBLING,
        "burning": BURNING,
        "back": data.days_back,
        "now": _period(data.now),
        "then": None if data.then is None else _period(data.then),
        "workers": msgspec.to_builtins(data.workers),
        "burn": _burn(data),
        "audit": None if data.audit is None else data.audit["verdict"],
    }


def _period(period: Period) -> dict[str, Any]:
    return {
        "queues": [_series(series) for series in period.queues],
        "tasks": [_series(series) for series in period.tasks],
    }


def _series(series: QueueSeries | TaskSeries) -> dict[str, Any]:
    """A series with its names as the tables show them, because the filters compare the two."""
    made: dict[str, Any] = msgspec.to_builtins(series)
    return made | {name: plain(made[name]) for name in ("tenant", "queue", "name") if name in made}


def _burn(data: ReportData) -> list[dict[str, Any]]:
    """One entry per target and queue, with its rates by hour."""
    made: dict[tuple[str, str, str], dict[str, Any]] = {}
    for burn in data.burn:
        entry = made.setdefault(
            (burn.tenant, burn.queue, burn.target),
            {
                "tenant": plain(burn.tenant),
                "queue": plain(burn.queue),
                "target": plain(burn.target),
                "first": burn.hour * 3_600_000,
                "short": [],
                "long": [],
            },
        )
        entry["short"].append(_rounded(burn.short))
        entry["long"].append(_rounded(burn.long))
    return list(made.values())


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
