"""Charts and tables into one HTML page: no script, nothing fetched, light or dark as the reader has it, narrow or wide."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from jobq.pipeline.report.charts import bars, duration, legend, line_chart, number, percent
from jobq.pipeline.report.data import Row, Story

_STYLE = files("jobq.pipeline.report").joinpath("style.css").read_text(encoding="utf-8")


def page(story: Story, title: str) -> str:
    """The whole page."""
    body = "".join(
        (
            _head(story, title),
            _tiles(story),
            '<div class="cards">',
            *_charts(story),
            *_tables(story),
            "</div>",
            _foot(story),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(story: Story, title: str) -> str:
    first, last = (
        datetime.fromtimestamp(t / 1000, UTC)
        for t in (story.times_ms[0], story.times_ms[-1] + story.step_minutes * 60_000)
    )
    whose = f", tenant {escape(story.lake['tenant'])}" if story.lake.get("tenant") else ""
    span = f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC, a point every {duration(story.step_minutes * 60_000)}{whose}"
    return f'<h1>{escape(title)}</h1><p class="sub">{span}</p>'


def _tiles(story: Story) -> str:
    t = story.totals
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
    if story.audit:
        good = story.audit["verdict"] == "proved"
        tiles.append(
            (
                f'<span class="{"good" if good else "bad"}" style="font-size:inherit">{escape(story.audit["verdict"])}</span>',
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


def _charts(story: Story) -> list[str]:
    x, lines = story.times_ms, story.lines
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
            "from due to start; logarithmic",
            line_chart(x, waits, format=duration, log=True) + legend(list(waits)),
        ),
        _card(
            "Run",
            "from start to end; logarithmic",
            line_chart(x, runs, format=duration, log=True) + legend(list(runs)),
        ),
        _card(
            "Backlog",
            "jobs waiting, at the end of each point",
            line_chart(x, story.backlog) + legend(list(story.backlog)),
        ),
        _card("Trouble", "per minute", line_chart(x, trouble) + legend(list(trouble))),
        _card(
            "Worker utilisation",
            "share of the time with a job under way, over all workers",
            line_chart(x, used, format=percent, top=1.0),
        ),
        _card(
            "Failures by kind",
            "failed runs and jobs",
            bars([(row["reason"] or "unknown", row["count"]) for row in story.reasons]) or "none",
        ),
    ]


def _tables(story: Story) -> list[str]:
    return [
        _card(
            "Service levels",
            "attainment of each target over the whole time",
            _slo_table(story.slo),
            wide=True,
        ),
        _card(
            "Slowest tasks",
            "by the 95th percentile of their runs",
            _task_table(story.tasks),
            wide=True,
        ),
        _card(
            "Errors",
            "most frequent causes, with the latest example",
            _error_table(story.errors),
            wide=True,
        ),
        _card(
            "Busiest workers",
            "",
            bars([(row["worker"], row["utilisation"]) for row in story.workers], format=percent),
        ),
        _card("Tenants", "usage", _tenant_table(story.tenants)),
    ]


def _card(title: str, note: str, body: str, *, wide: bool = False) -> str:
    return f'<section class="card{" wide" if wide else ""}"><h2>{title}</h2><p class="note">{note}</p>{body}</section>'


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
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _slo_table(rows: Sequence[Row]) -> str:
    head = [
        ("target", False),
        ("queue", False),
        ("attained", True),
        ("wanted", True),
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
        ("in all", True),
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
        ("time run", True),
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


def _foot(story: Story) -> str:
    counts = story.lake
    parts = [f"{counts['events']:,} events in the lake"]
    parts += [
        f"{counts[name]:,} {word}"
        for name, word in (
            ("duplicates", "copies dropped"),
            ("late", "late"),
            ("quarantined", "quarantined"),
        )
        if counts[name]
    ]
    return f'<p class="note" style="margin-top:16px">{", ".join(parts)}.</p>'
