"""Assemble charts and tables into one HTML page, without scripts or external resources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from jobq.pipeline.report.charts import bars, duration, legend, line_chart, number, percent
from jobq.pipeline.report.data import ReportData, Row

_STYLE = files("jobq.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")


def page(data: ReportData, title: str) -> str:
    """The whole page."""
    body = "".join(
        (
            _head(data, title),
            _tiles(data),
            '<div class="cards">',
            *_charts(data),
            *_tables(data),
            "</div>",
            _foot(data),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(data: ReportData, title: str) -> str:
    first, last = (
        datetime.fromtimestamp(t / 1000, UTC)
        for t in (data.times_ms[0], data.times_ms[-1] + data.step_minutes * 60_000)
    )
    whose = f", tenant {escape(data.lake['tenant'])}" if data.lake.get("tenant") else ""
    span = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
    span += f", one point per {duration(data.step_minutes * 60_000)}{whose}"
    return f'<h1>{escape(title)}</h1><p class="sub">{span}</p>'


def _tiles(data: ReportData) -> str:
    t = data.totals
    ended = t["completed"] + t["failed"]
    tiles = [
        (number(t["accepted"]), "jobs accepted"),
        (number(t["completed"]), "completed"),
        (number(t["failed"]), "failed for good"),
        (percent(t["completed"] / ended) if ended else "–", "of ended jobs completed"),
        (number(t["retried"]), "retries"),
        (number(t["stalled"]), "stalls"),
        (duration(t["wait_p95"] or 0), "wait, 95th percentile"),
        (duration(t["run_p95"] or 0), "run, 95th percentile"),
    ]
    if data.audit:
        good = data.audit["verdict"] == "proved"
        tiles.append(
            (
                f'<span class="{"good" if good else "bad"}" style="font-size:inherit">'
                f"{escape(data.audit['verdict'])}</span>",
                "audit",
            )
        )
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles
        )
        + "</div>"
    )


def _charts(data: ReportData) -> list[str]:
    x, lines = data.times_ms, data.lines
    rates = {name: lines[name] for name in ("completed", "accepted", "failed")}
    waits = {q: lines[f"wait_{q}"] for q in ("p50", "p95", "p99")}
    runs = {q: lines[f"run_{q}"] for q in ("p50", "p95", "p99")}
    trouble = {name: lines[name] for name in ("retried", "stalled", "failed")}
    used = {"utilisation": lines["utilisation"]}
    return [
        _card(
            "Throughput", "jobs per minute", line_chart(x, rates) + legend(list(rates)), wide=True
        ),
        _card(
            "Wait",
            "time from due to start (logarithmic)",
            line_chart(x, waits, format=duration, log=True) + legend(list(waits)),
        ),
        _card(
            "Run",
            "time from start to end (logarithmic)",
            line_chart(x, runs, format=duration, log=True) + legend(list(runs)),
        ),
        _card(
            "Backlog",
            "jobs waiting",
            line_chart(x, data.backlog) + legend(list(data.backlog)),
        ),
        _card(
            "Retries, stalls, failures",
            "per minute",
            line_chart(x, trouble) + legend(list(trouble)),
        ),
        _card(
            "Worker utilisation",
            "share of time with at least one running job, over all workers",
            line_chart(x, used, format=percent, top=1.0),
        ),
        _card(
            "Failures by kind",
            "failed runs and jobs",
            bars([(row["reason"] or "unknown", row["count"]) for row in data.reasons]) or "none",
        ),
    ]


def _tables(data: ReportData) -> list[str]:
    return [
        _card(
            "Service levels",
            "attainment of each target over the whole period",
            _slo_table(data.slo),
            wide=True,
        ),
        _card(
            "Slowest tasks",
            "by the 95th percentile of their runs",
            _task_table(data.tasks),
            wide=True,
        ),
        _card(
            "Errors",
            "most frequent causes, with the latest example",
            _error_table(data.errors),
            wide=True,
        ),
        _card(
            "Busiest workers",
            "",
            bars([(row["worker"], row["utilisation"]) for row in data.workers], format=percent),
        ),
        _card("Tenants", "usage", _tenant_table(data.tenants)),
    ]


def _card(title: str, note: str, body: str, *, wide: bool = False) -> str:
    kind = "card wide" if wide else "card"
    head = f'<h2>{title}</h2><p class="note">{note}</p>'
    return f'<section class="{kind}">{head}{body}</section>'


def _table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return '<p class="note">nothing to show</p>'
    kinds = [' class="r"' if right else "" for _, right in head]
    top = "".join(f"<th{kind}>{name}</th>" for (name, _), kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _slo_table(rows: Sequence[Row]) -> str:
    head = [
        ("target", False),
        ("queue", False),
        ("attained", True),
        ("objective", True),
        ("of", True),
        ("", False),
    ]
    cells = [
        (
            escape(row["target"]),
            _queue(row),
            percent(row["attainment"]),
            percent(row["objective"]),
            number(row["total"]),
            '<span class="good">met</span>' if row["met"] else '<span class="bad">missed</span>',
        )
        for row in rows
    ]
    return _table(head, cells)


def _task_table(rows: Sequence[Row]) -> str:
    head = [
        ("task", False),
        ("queue", False),
        ("runs", True),
        ("p50", True),
        ("p95", True),
        ("p99", True),
        ("longest", True),
        ("total", True),
    ]
    cells = [
        (
            escape(row["name"]),
            _queue(row),
            number(row["runs"]),
            *(duration(row[name] or 0) for name in ("p50", "p95", "p99", "max", "total_ms")),
        )
        for row in rows
    ]
    return _table(head, cells)


def _error_table(rows: Sequence[Row]) -> str:
    head = [
        ("error", False),
        ("task", False),
        ("queue", False),
        ("count", True),
        ("final", True),
        ("example job", False),
    ]
    cells = [
        (
            f"<code>{escape(_short(row['example'] or row['reason'] or 'unknown'))}</code>",
            escape(row["name"] or ""),
            _queue(row),
            number(row["count"]),
            number(row["final"]),
            f"<code>{escape(row['example_job'] or '')}</code>",
        )
        for row in rows
    ]
    return _table(head, cells)


def _tenant_table(rows: Sequence[Row]) -> str:
    head = [
        ("tenant", False),
        ("accepted", True),
        ("completed", True),
        ("failed", True),
        ("run time", True),
    ]
    return _table(
        head,
        [
            (
                escape(r["tenant"]),
                *(number(r[n]) for n in ("accepted", "completed", "failed")),
                duration(r["run_ms"]),
            )
            for r in rows
        ],
    )


def _queue(row: Row) -> str:
    return escape(f"{row['tenant']}/{row['queue']}")


def _short(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
    return f'<p class="note" style="margin-top:16px">{", ".join(parts)}.</p>'
