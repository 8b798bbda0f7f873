"""Templates, their filters, and addresses.

Templates are escaped always. They know these names:

- `url(name, **query)`: the address of a page, e.g. `url("job", tenant=t, queue=q, id=i)`
- `api(path, **query)`: the address of a call of the API, e.g. `api("queue/pause")`
- `live(**query)`: the address of a stream of server-sent events, see feeds.py
- `static(path)`: the address of a file below static/
- `may(action)`: whether the caller may do an action of `data.actions.ACTIONS`, e.g. `queue.pause`
- `view`: the View of the request, with `principal`, `read_only` and `hide_payloads`
- `csrf_token`: for a hidden field `csrf_token` of a form, or the header `X-CSRF-Token`
- `page_name`: the name of the page, for the navigation
- `path`: the path and query of the request, for the field `next` of a form without JavaScript
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobq.core.values import printable, units
from jobq.core.values.checks import MAX_EPOCH_MS
from jobq.core.values.units import shown_size
from jobq.web.data.actions import ACTIONS
from jobq.web.data.jobs import JobRow
from jobq.web.data.queues import Minute, QueueRow, Spread
from jobq.web.data.view import View
from jobq.web.data.workers import WorkerRow
from jobq.web.pages import PAGES

# How figures, times and users' texts look on a page: the filters of the templates.
#
# Every filter returns text, which the templates escape.

MAX_NAME = 120
"""Characters of a name in a table. Names have up to 256; the title of the cell has all of them."""


def number(value: int) -> str:
    """A count with thousands separators."""
    return f"{value:,}"


def rate(value: float) -> str:
    """A rate: with one decimal below 10, without above."""
    if not value:
        return "0"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"


def plural(n: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def duration(ms: float | None) -> str:
    """A rounded duration in at most two units, or a dash."""
    return "–" if ms is None else units.duration_text(ms)


def ago(at_ms: int | None, now_ms: int) -> str:
    """A time relative to now: `3m12s ago`, `in 20s`. Below a minute in whole seconds."""
    if at_ms is None:
        return "–"
    gap = abs(now_ms - at_ms)
    if gap < 60_000:
        gap = (gap + 500) // 1000 * 1000
    if gap < 1000:
        return "now"
    text = f"{gap // 1000}s" if gap < 60_000 else units.duration_text(gap)
    return f"{text} ago" if at_ms <= now_ms else f"in {text}"


def _utc(at_ms: int) -> datetime:
    """A time. Workers send some of them, so one beyond what a calendar has is cut."""
    return datetime.fromtimestamp(max(0, min(at_ms, MAX_EPOCH_MS)) / 1000, UTC)


def iso(at_ms: int) -> str:
    """A time in ISO 8601, in UTC, with milliseconds: for the attribute `datetime`."""
    return _utc(at_ms).isoformat(timespec="milliseconds")


def clock(at_ms: int) -> str:
    """The time of day in UTC, with milliseconds."""
    return _utc(at_ms).strftime("%H:%M:%S.%f")[:-3]


def field_time(at_ms: int | None) -> str:
    """A time as the value of a field of type datetime-local, in UTC."""
    if at_ms is None:
        return ""
    return _utc(at_ms).strftime("%Y-%m-%dT%H:%M")


def line(text: object) -> str:
    """A user's text on one line, with control characters and marks that reorder text escaped."""
    return printable.one_line(str(text))


def lines(text: object) -> str:
    """A user's text with its line breaks, and every other control character escaped."""
    return printable.lines(str(text))


def squeezed(text: object) -> str:
    """Indented JSON on one line."""
    return " ".join(str(text).split())


def short(text: object, longest: int = MAX_NAME) -> str:
    """A user's text on one line, cut in its middle if it is long: ids often differ at their end."""
    found = line(text)
    if len(found) <= longest:
        return found
    tail = longest // 3
    return f"{found[: longest - tail - 1]}…{found[-tail:]}"


def status(row: QueueRow) -> str:
    """What a queue is doing, in one word or two."""
    if row.paused:
        return "paused"
    if row.held_until_ms is not None:
        return "held"
    if row.counts.get("waiting") and not row.workers:
        return "no worker"
    return "running" if row.workers else "idle"


def worker_status(row: WorkerRow) -> str:
    """What a worker is doing."""
    return "draining" if row.draining else "paused" if row.paused else "running"


def moment(row: JobRow) -> int:
    """The time that matters in the job's state: due, started or finished."""
    if row.finished_ms is not None and row.state in ("completed", "failed", "cancelled"):
        return row.finished_ms
    if row.state == "active":
        return row.started_ms or row.created_ms
    return row.due_ms or row.created_ms


def spread(value: Spread | None) -> str:
    """Percentiles in words, as the title of a cell."""
    if value is None:
        return "no run has ended recently"
    found = (("p50", value.p50_ms), ("p95", value.p95_ms), ("p99", value.p99_ms))
    words = ", ".join(f"{name} {units.duration_text(ms)}" for name, ms in found)
    return f"{words}, over the last {plural(value.of, 'run')}"


# ── small charts that need no script ──────────────────────────────────────────────────────────────

WIDTH, HEIGHT = 120, 24
"""Of a sparkline, in units of its viewBox. HEIGHT is that of a row of text."""


def spark_line(values: Sequence[float], top: float | None = None) -> str:
    """The points of a line over the width of a sparkline, scaled to its highest value."""
    highest = max(max(values, default=0), top or 0)
    if not highest or len(values) < 2:
        return ""
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{HEIGHT - 1 - value / highest * (HEIGHT - 3):.1f}"
        for place, value in enumerate(values)
    )


def spark_bars(values: Sequence[float], top: float | None = None) -> list[dict[str, str]]:
    """The bars of the values that are not zero: each is at least 2 units high, so it is seen."""
    highest = max(max(values, default=0), top or 0)
    step = WIDTH / max(1, len(values) - 1)
    found = []
    for place, value in enumerate(values):
        if value:
            height = max(2.0, value / highest * (HEIGHT - 3))
            left = max(0.0, min(WIDTH - 1.6, place * step - 0.8))
            found.append(
                {"x": f"{left:.1f}", "y": f"{HEIGHT - 1 - height:.1f}", "height": f"{height:.1f}"}
            )
    return found


def trend(done: Sequence[int], bad: Sequence[int]) -> str:
    """A sparkline in words, for readers who do not see it."""
    total, failed = sum(done), sum(bad)
    half = len(done) // 2
    before, after = sum(done[:half]), sum(done[half:])
    way = "steady"
    if after > before * 1.25:
        way = "rising"
    elif before > after * 1.25:
        way = "falling"
    if not total and not failed:
        return "nothing ended in the last hour"
    return f"{total:,} completed and {failed:,} failed in the last hour, {way}"


# ── charts that charts.js draws ───────────────────────────────────────────────────────────────────


def chart(at_s: Sequence[int], **series: Sequence[float | None]) -> str:
    """The document that charts.js draws."""
    return msgspec.json.encode({"at": at_s, "series": series}).decode()


_ENOUGH_MS = 15_000
"""Age from which a minute tells its rate. Of a younger one, a single job would look like four."""


def per_minute(values: Sequence[int], age_ms: int) -> list[float | None]:
    """Counts per minute, as rates. The last minute is `age_ms` old and may not be over.

    Without this, every live chart would end with a fall that has not happened.
    """
    found: list[float | None] = list(values)
    if found and age_ms < 60_000:
        found[-1] = None if age_ms < _ENOUGH_MS else round(values[-1] * 60_000 / age_ms, 1)
    return found


def minutes_chart(minutes: Sequence[Minute], now_ms: int, *names: str) -> str:
    """A chart of what happened per minute: `accepted`, `completed`, …"""
    age_ms = now_ms - minutes[-1].minute_ms if minutes else 0
    return chart(
        [minute.minute_ms // 1000 for minute in minutes],
        **{
            name: per_minute([getattr(minute, name) for minute in minutes], age_ms)
            for name in names
        },
    )


def times_chart(minutes: Sequence[Minute]) -> str:
    """A chart of how long jobs waited and ran, on average per minute. Gaps where none did."""
    return chart(
        [minute.minute_ms // 1000 for minute in minutes],
        wait=[minute.wait_ms if minute.started else None for minute in minutes],
        run=[
            minute.run_ms if minute.completed + minute.failed + minute.retried else None
            for minute in minutes
        ],
    )


def hour_chart(now_ms: int, completed: Sequence[int], failed: Sequence[int]) -> str:
    """A chart of the last minutes of several queues. The last value is the minute of `now_ms`."""
    last, age_ms = now_ms // 60_000 * 60, now_ms % 60_000
    at = [last - 60 * (len(completed) - 1 - place) for place in range(len(completed))]
    return chart(at, completed=per_minute(completed, age_ms), failed=per_minute(failed, age_ms))


FILTERS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        number,
        rate,
        plural,
        duration,
        ago,
        iso,
        clock,
        field_time,
        shown_size,
        line,
        lines,
        squeezed,
        short,
        status,
        worker_status,
        moment,
        spread,
        spark_line,
        spark_bars,
        trend,
        minutes_chart,
        times_chart,
        hour_chart,
    )
}
"""The filters by the names that templates use."""


_PATHS = {page.name: page.path for page in PAGES} | {
    "sign_in": "/sign-in",
    "sign_out": "/sign-out",
    "payload": "/payload",  # tenant, queue, id, part: the download of a value
}

templates = Environment(
    loader=PackageLoader("jobq.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(FILTERS)


def view_of(request: Request) -> View:
    """What this request may see."""
    view: View = request.state.view
    return view


def url(request: Request, name: str, /, **query: object) -> str:
    """The address of a page. Values are percent-encoded once; None and "" are left out."""
    return _address(request, _PATHS[name], query)


def _address(request: Request, path: str, query: dict[str, object]) -> str:
    given = {key: _text(value) for key, value in query.items() if value not in (None, "", False)}
    prefix = request.scope.get("root_path", "").rstrip("/")
    return f"{prefix}{path}" + (f"?{urlencode(given)}" if given else "")


def _text(value: object) -> str:
    return "true" if value is True else str(value)


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page or a part of one, from a template."""
    view = getattr(request.state, "view", None)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = templates.get_template(template).render(
        url=lambda name, /, **query: url(request, name, **query),
        api=lambda path, /, **query: _address(request, f"/api/v1/{path}", query),
        live=lambda **query: _address(request, "/live", query),
        static=lambda path, /: _address(request, f"/static/{path}", {}),
        may=lambda action: view is not None and ACTIONS[action].allowed(view),
        view=view,
        csrf_token=getattr(request.state, "csrf_token", ""),
        page_name=getattr(request.state, "page_name", ""),
        path=path,
        **context,
    )
    return HTMLResponse(text, status_code=status)
