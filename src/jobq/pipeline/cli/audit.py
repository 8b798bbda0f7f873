"""`jq-pipeline audit`: run the audit and print its result."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobq.pipeline.cli.group import lake_option, open_existing_lake, spark_options

if TYPE_CHECKING:
    from jobq.pipeline.audit import Audit, QueueAudit


@click.command()
@lake_option
@click.option(
    "--store",
    "store",
    metavar="URL",
    help="URL of the store. Its counts must agree with the lake. Without it, an event that never "
    "reached the lake looks like a job that is still held.",
)
@click.option(
    "--examples",
    metavar="FOLDER",
    help="Folder for the faulty events. Default: LAKE/_jobq/audit.",
)
@spark_options
def audit(
    lake: str, store: str | None, examples: str | None, master: str | None, conf: tuple[str, ...]
) -> None:
    """Check from the lake that no job was lost.

    Exit codes: 0 proved, 1 violated, 2 unprovable (the store's log has a gap, or the lake is
    behind the store)."""
    opened = open_existing_lake(lake, master, conf)
    code = run_audit(opened, store, examples)
    opened.spark.stop()
    sys.exit(code)


def run_audit(lake: Any, store: str | None, examples: str | None) -> int:
    """Audit the lake, print the result, and return the exit code."""
    from jobq.pipeline.audit import audit as audit_lake

    folder = examples or f"{lake.root}/_jobq/audit"
    found = audit_lake(lake, store=store, examples=folder)
    Console(highlight=False).print(audit_table(found))
    for line in remarks(found):
        click.echo(line)
    if any(sum(queue.faults.values()) for queue in found.queues):
        click.echo(f"the faulty events are in {folder}")
    click.echo(f"verdict: {found.verdict}")
    return found.exit_code


def audit_table(found: Audit) -> Table:
    """The counts of each queue, one row per queue. Fits into 80 columns."""
    title = "accepted + rerun = completed + failed + cancelled + held"
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column("tenant/queue", overflow="fold", min_width=12)
    for name in ("accepted", "rerun", "completed", "failed", "cancelled", "held"):
        grid.add_column(name, justify="right", no_wrap=True)
    for queue in found.queues:
        numbers = (
            queue.accepted + queue.carried,
            queue.rerun,
            queue.completed,
            queue.failed,
            queue.cancelled,
            queue.held,
        )
        grid.add_row(f"{queue.tenant}/{queue.queue}", *(f"{n:,}" for n in numbers))
    return grid


def remarks(found: Audit) -> list[str]:
    """One line per queue that is not proved, then how many queues are."""
    lines = [
        f"{queue.tenant}/{queue.queue}: "
        + "; ".join([queue.verdict, *queue.problems, *_doubts(queue)])
        for queue in found.queues
        if queue.verdict != "proved"
    ]
    if not found.queues:
        return ["no queue to audit: no event has reached the lake"]
    return [*lines, f"{len(found.queues) - len(lines)} of {len(found.queues)} queues proved"]


def _doubts(queue: QueueAudit) -> list[str]:
    """Why faults of this queue may have an innocent explanation."""
    doubts = []
    if queue.gaps and queue.gap_from_ms is not None and queue.gap_to_ms is not None:
        times = "once" if queue.gaps == 1 else f"{queue.gaps:,} times"
        first, last = _utc(queue.gap_from_ms), _utc(queue.gap_to_ms)
        doubts.append(f"the store's log lost entries {times}, from {first} to {last}")
    if queue.behind:
        doubts.append("the lake is behind the store: run the pipeline and audit again")
    return doubts


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
