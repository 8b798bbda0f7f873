"""How queues are printed: a table of queues, everything about one, and the table of `watch`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.output import Cell, Column, details, table
from jobq.core.records.queues import (
    JobDefaults,
    Limits,
    MinuteRecord,
    QueueRecord,
    RateData,
    StatsRecord,
    Window,
)
from jobq.core.records.states import SHOWN, State

_WATCHED = (State.WAITING, State.ACTIVE, State.DELAYED, State.COMPLETED, State.FAILED)

# Columns to leave out on a narrow terminal, the highest number first.
_SPARE = {State.CANCELLED: 4, State.BLOCKED: 3, State.COMPLETED: 2, State.DELAYED: 1}


class QueueSummary(NamedTuple):
    """A queue's settings and counts at one moment (`at`, in seconds of the monotonic clock)."""

    record: QueueRecord
    stats: StatsRecord
    at: float

    @property
    def document(self) -> documents.Document:
        """The document for -o json and yaml."""
        return documents.queue(self.record, self.stats)


def summarize(record: QueueRecord, stats: StatsRecord) -> QueueSummary:
    """Combine a queue's record and stats, as of now."""
    return QueueSummary(record, stats, time.monotonic())


def _count_column(state: State) -> Column:
    return Column(state.value.upper(), right=True, spare=_SPARE.get(state, 0))


def queue_table(queues: Sequence[QueueSummary]) -> RenderableType:
    """A table with one row per queue."""
    columns = [
        Column("QUEUE"),
        Column("STATUS"),
        *(_count_column(s) for s in SHOWN),
        Column("OLDEST", right=True),
        Column("WORKERS", right=True),
    ]
    return table(
        columns,
        [
            [
                g.record.queue.queue,
                queue_status(g),
                *_counts(g, SHOWN),
                text.duration(g.stats.oldest_waiting_ms),
                text.count(g.stats.workers),
            ]
            for g in queues
        ],
    )


def watch_table(
    before: Sequence[QueueSummary] | None, now: Sequence[QueueSummary]
) -> RenderableType:
    """A table with one row per queue, and the jobs ended per second since `before`."""
    past = {g.record.queue: g for g in before or ()}
    columns = [
        Column("QUEUE"),
        Column("STATUS"),
        *(_count_column(s) for s in _WATCHED),
        Column("ENDED/S", right=True),
        Column("OLDEST", right=True),
        Column("WORKERS", right=True),
    ]
    return table(
        columns,
        [
            [
                g.record.queue.queue,
                queue_status(g),
                *_counts(g, _WATCHED),
                _rate(past.get(g.record.queue), g),
                text.duration(g.stats.oldest_waiting_ms),
                text.count(g.stats.workers),
            ]
            for g in now
        ],
    )


def queue_details(
    seen: QueueSummary, metrics: Sequence[MinuteRecord], minutes: int
) -> RenderableType:
    """Everything about a queue, with its rates of the last minutes."""
    record, stats = seen.record, seen.stats
    retention = record.retention
    keep = (
        ("completed", retention.completed_ms),
        ("failed", retention.failed_ms),
        ("cancelled", retention.cancelled_ms),
    )
    kept = ", ".join(
        f"{name} {'forever' if ms is None else text.duration(ms)}" for name, ms in keep
    )
    parts: list[RenderableType] = [
        details(
            [
                ("Queue", record.queue.queue),
                ("Status", queue_status(seen)),
                ("Mode", record.mode or "not fixed yet"),
                ("Workers", stats.workers),
                *(
                    (
                        state.value.capitalize(),
                        text.count(stats.counts.get(state, 0), text.STATE_STYLES[state]),
                    )
                    for state in SHOWN
                ),
                (
                    "Oldest waiting",
                    None
                    if stats.oldest_waiting_ms is None
                    else text.duration(stats.oldest_waiting_ms),
                ),
                (
                    "Next due",
                    None if stats.next_due_ms is None else f"in {text.duration(stats.next_due_ms)}",
                ),
                ("Held until", text.iso(stats.held_until_ms)),
                ("Limits", _limits(record.limits.effective)),
                (
                    "Keeps",
                    kept
                    + ("" if retention.count is None else f"; at most {retention.count:,} of each"),
                ),
                ("Dead letters to", record.dead_letters),
                ("Defaults", _defaults(record.defaults)),
            ]
        )
    ]
    if metrics:
        parts += [Text(), _minutes(metrics, minutes)]
    return Group(*parts)


def _minutes(metrics: Sequence[MinuteRecord], minutes: int) -> RenderableType:
    by_minute = {m.minute_ms: m for m in metrics}
    last = max(int(time.time() // 60) * 60_000, max(by_minute))
    window = [by_minute.get(last - 60_000 * n) for n in reversed(range(minutes))][-60:]
    started, ended = sum(m.started for m in metrics), sum(m.completed + m.failed for m in metrics)
    runs = ended + sum(m.retried for m in metrics)

    def line(name: str, values: list[int], style: str) -> list[Cell]:
        return [name, text.count(sum(values)), Text(text.sparkline(values), style=style)]

    rows = [
        line("accepted", [m.accepted if m else 0 for m in window], "cyan"),
        line("completed", [m.completed if m else 0 for m in window], "green"),
        line("retried", [m.retried if m else 0 for m in window], "yellow"),
        line("failed", [m.failed if m else 0 for m in window], "red"),
        line("stalled", [m.stalled if m else 0 for m in window], "magenta"),
    ]
    averages = details(
        [
            (
                "Waited",
                f"{text.duration(sum(m.wait_ms for m in metrics) / started)} on average"
                if started
                else None,
            ),
            (
                "Ran",
                f"{text.duration(sum(m.run_ms for m in metrics) / runs)} on average"
                if runs
                else None,
            ),
        ]
    )
    heading = (Column(f"LAST {len(window)} MIN"), Column("JOBS", right=True), Column("PER MINUTE"))
    return Group(table(heading, rows), averages)


def queue_status(g: QueueSummary) -> Text:
    """What a queue is doing, in one word or two."""
    if g.stats.paused:
        return Text("paused", style="yellow")
    if g.stats.held_until_ms is not None:
        return Text("held", style="yellow")
    if g.stats.counts.get(State.WAITING) and not g.stats.workers:
        return Text("no worker", style="red")
    return Text(
        "running" if g.stats.workers else "idle",
        style="green" if g.stats.workers else "bright_black",
    )


def _counts(g: QueueSummary, states: Sequence[State]) -> list[Text]:
    return [text.count(g.stats.counts.get(state, 0), text.STATE_STYLES[state]) for state in states]


def _rate(before: QueueSummary | None, now: QueueSummary) -> str:
    if before is None:
        return "-"
    ended = sum(
        now.stats.counts.get(s, 0) - before.stats.counts.get(s, 0) for s in State if s.ended
    )
    return f"{max(0, ended) / max(1e-3, now.at - before.at):,.0f}"


def _defaults(defaults: JobDefaults) -> str | None:
    """The defaults of jobs in words; None if there are none."""
    found = [
        None
        if (n := defaults.max_retries) is None
        else f"{n:,} {'retry' if n == 1 else 'retries'}",
        None if (ms := defaults.ttl_ms) is None else f"start within {text.duration(ms)}",
    ]
    return ", ".join(filter(None, found)) or None


def _limits(limits: Limits) -> str | None:
    found = [
        f"{limits.limit:,} at a time" if limits.limit is not None else None,
        f"{limits.key_limit:,} at a time per key" if limits.key_limit is not None else None,
        _starts(limits.rate, ""),
        _starts(limits.key_rate, " per key"),
        f"at most {limits.max_waiting:,} waiting" if limits.max_waiting is not None else None,
    ]
    return ", ".join(part for part in found if part) or None


def _starts(rate: RateData | None, whose: str) -> str | None:
    if rate is None:
        return None
    if isinstance(rate, Window):
        return f"{rate.limit:,} starts per {text.duration(rate.per_ms)}{whose}"
    return f"a bucket of {rate.capacity:,} refilled at {rate.refill:g}/s{whose}"
