"""The tables of the page, as HTML. Every row names its tenant, queue and tasks, so that the page's
filters can hide it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jobq.pipeline.insight.burn import BURNING, Burn
from jobq.pipeline.insight.causes import Cause
from jobq.pipeline.insight.cost import Cost
from jobq.pipeline.insight.standouts import Standout
from jobq.pipeline.insight.views import utc
from jobq.pipeline.insight.workers import Trouble, WorkerUse
from jobq.pipeline.report.data import Row
from jobq.pipeline.report.text import duration, number, percent, safe

_KINDS = {">": ' class="r"', "@": ' class="t"'}


class TableRow(NamedTuple):
    """A row: what it is about (None: about everything), and its cells as HTML."""

    tenant: str | None
    queue: str | None
    tasks: Sequence[str] | None
    cells: Sequence[str]


def table(head: str, rows: Iterable[TableRow], *, empty: str) -> str:
    """A table. `head` names the columns, separated by bars; a name that ends with > is a number,
    and one that ends with @ a time."""
    names = head.split("|")
    kinds = [_KINDS.get(name[-1:], "") for name in names]
    shown = [name.rstrip(">@") for name in names]
    body = "".join(_row(row, kinds, shown) for row in rows)
    if not body:
        return f'<p class="empty">{empty}</p>'
    top = "".join(f"<th{k}>{name}</th>" for name, k in zip(shown, kinds, strict=True))
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        '<button type="button" class="more" hidden></button>'
        '<p class="empty" hidden>Nothing matches.</p>'
    )


def _row(row: TableRow, kinds: Sequence[str], names: Sequence[str]) -> str:
    about = [
        f' data-{what}="{safe(value)}"'
        for what, value in (("tenant", row.tenant), ("queue", row.queue))
        if value is not None
    ]
    if row.tasks is not None:
        # Each name is on a line of its own: `safe` leaves no line breaks within a name.
        about.append(' data-tasks="' + "\n".join(map(safe, row.tasks)) + '"')
    cells = "".join(
        f'<td{kind} data-label="{name}">{cell}</td>'
        for cell, kind, name in zip(row.cells, kinds, names, strict=True)
    )
    return f"<tr{''.join(about)}>{cells}</tr>"


def bar(share: float, lost: float = 0.0) -> str:
    """A horizontal bar. The shares are of its whole length; the lost part has another colour."""
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/>'
        f'<rect class="fill" width="{100 * share:.2f}" height="10"/>'
        f'<rect class="lost" width="{100 * lost:.2f}" height="10"/></svg>'
    )


def _where(row: Row | Cause | Cost | Standout | Trouble | Burn) -> str:
    tenant, queue = (
        (row["tenant"], row["queue"]) if isinstance(row, dict) else (row.tenant, row.queue)
    )
    return safe(f"{tenant}/{queue}")


def _code(text: object) -> str:
    return f"<code>{safe(text)}</code>"


def _colored(good: bool, text: str) -> str:
    return f'<span class="{"good" if good else "bad"}">{text}</span>'


# ── the tables ────────────────────────────────────────────────────────────────────────────────────


def cause_table(causes: Sequence[Cause], empty: str) -> str:
    """Failures by cause, each with the command that reruns its dead letters."""
    head = "cause|tasks|queue|dead>|failures>|first seen (UTC)@|last seen (UTC)@"
    table_rows = [
        TableRow(
            cause.tenant,
            cause.queue,
            cause.tasks,
            (
                f"{_code(cause.example or cause.reason or 'unknown error')}"
                f'<details><summary>run again</summary><code class="command">'
                f"{safe(cause.command)}</code>"
                f"<p>e.g. job {_code(cause.example_job or 'unknown')}</p></details>",
                safe(", ".join(name or "" for name in cause.tasks)),
                _where(cause),
                number(cause.dead),
                number(cause.failures),
                utc(cause.first_ms),
                utc(cause.last_ms),
            ),
        )
        for cause in causes
    ]
    return table(head, table_rows, empty=empty)


def standout_table(found: Sequence[Standout], empty: str) -> str:
    """What changed, with both values."""
    table_rows = [
        TableRow(
            one.tenant,
            one.queue,
            (one.name,),
            (
                safe(one.name),
                _where(one),
                _colored(not one.worse, one.what) if one.worse else one.what,
                _amount(one, one.then),
                _amount(one, one.now),
                f"× {one.factor:.3g}" if one.factor else "–",
            ),
        )
        for one in found
    ]
    return table("task|queue|what|before>|now>|factor>", table_rows, empty=empty)


def _amount(one: Standout, value: float) -> str:
    if one.what == "failing":
        return percent(value)
    return duration(value) if one.what in ("run time", "wait") else number(value)


def cost_table(costs: Sequence[Cost]) -> str:
    """Run time per task, with bars."""
    longest = max((cost.run_ms for cost in costs), default=0) or 1
    table_rows = [
        TableRow(
            cost.tenant,
            cost.queue,
            (cost.name,),
            (
                safe(cost.name),
                _where(cost),
                bar(cost.run_ms / longest, cost.lost_ms / longest),
                duration(cost.run_ms),
                percent(round(cost.share, 3)),
                duration(cost.lost_ms) if cost.lost_ms else "–",
                number(cost.runs),
            ),
        )
        for cost in costs
    ]
    return table("task|queue||run time>|share>|lost>|runs>", table_rows, empty="No run has ended.")


def burn_table(latest: Sequence[Burn], slo: Sequence[Row]) -> str:
    """Attainment over the period, and the latest burn rates."""
    rates = {(b.tenant, b.queue, b.target): b for b in latest}
    table_rows = []
    for row in slo:
        burn = rates.get((row["tenant"], row["queue"], row["target"]))
        cells = (
            safe(row["target"]),
            _where(row),
            _colored(row["met"], percent(row["attainment"])),
            percent(row["objective"]),
            number(row["total"]),
            _rate(None if burn is None else burn.short),
            _rate(None if burn is None else burn.long),
        )
        table_rows.append(TableRow(row["tenant"], row["queue"], None, cells))
    head = "target|queue|attained>|objective>|of>|burn 1 h>|burn 6 h>"
    return table(head, table_rows, empty="No target applies to a queue of this period.")


def _rate(rate: float | None) -> str:
    if rate is None:
        return "–"
    return _colored(False, number(rate)) if rate >= BURNING else number(rate)


def task_table(rows: Sequence[Row]) -> str:
    """The slowest tasks."""
    table_rows = [
        TableRow(
            row["tenant"],
            row["queue"],
            (row["name"],),
            (
                safe(row["name"]),
                _where(row),
                number(row["runs"]),
                *(duration(row[name] or 0) for name in ("p50", "p95", "p99", "max")),
            ),
        )
        for row in rows
    ]
    return table("task|queue|runs>|p50>|p95>|p99>|longest>", table_rows, empty="No run has ended.")


def reason_table(rows: Sequence[Row]) -> str:
    """Failures by kind and task, with bars."""
    most = max((row["count"] for row in rows), default=0) or 1
    table_rows = [
        TableRow(
            row["tenant"],
            row["queue"],
            (row["name"] or "",),
            (
                safe(row["reason"] or "unknown"),
                safe(row["name"] or ""),
                bar(row["count"] / most),
                number(row["count"]),
            ),
        )
        for row in rows
    ]
    return table("kind|task||failures>", table_rows, empty="Nothing has failed.")


def worker_table(used: Sequence[WorkerUse], bad: Sequence[Trouble]) -> str:
    """Utilisation per worker, and its retries and stalls."""
    known = {one.worker: one for one in bad}
    table_rows = []
    for use in used:
        one = known.get(use.worker)
        cells = (
            safe(use.worker),
            bar(min(use.utilisation, 1.0)),
            percent(round(use.utilisation, 3)),
            number(use.concurrency),
            duration(use.present_ms),
            *(number(n) for n in ((one.retried, one.stalled) if one else (0, 0))),
        )
        table_rows.append(TableRow(None, None, None, cells))
    head = "worker||busy>|parallel runs>|present>|retries>|stalls>"
    return table(head, table_rows, empty="No worker has ended a run.")


def trouble_table(found: Sequence[Trouble]) -> str:
    """Retries, failures and stalls per task."""
    table_rows = [
        TableRow(
            one.tenant,
            one.queue,
            (one.name or "",),
            (
                safe(one.name or ""),
                _where(one),
                bar(one.share),
                percent(round(one.share, 4)),
                *(number(n) for n in (one.retried, one.failed, one.stalled, one.runs)),
            ),
        )
        for one in found
    ]
    head = "task|queue||of its runs>|retries>|failed>|stalls>|runs>"
    return table(head, table_rows, empty="Every run went well.")
