"""`jq-pipeline show`: answers from the lake, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobq.core.values.printable import one_line
from jobq.pipeline.cli.group import (
    lake_option,
    open_existing_lake,
    parse_day,
    parse_time,
    spark_options,
)

NAMES = ("dead-letters", "new-failures", "cost", "burn", "standouts", "workers", "trouble")
"""The views, here without an import of Spark. A test compares them with `insight.views`."""


@click.command()
@click.argument("view", type=click.Choice(NAMES))
@lake_option
@click.option("--since", callback=parse_day, metavar="YYYY-MM-DD", help="First day (UTC).")
@click.option("--until", callback=parse_day, metavar="YYYY-MM-DD", help="Last day, included.")
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--task", metavar="NAME", help="Only this task.")
@click.option(
    "--after",
    callback=parse_time,
    metavar="TIME",
    help="For new-failures: the time (UTC) of the deploy. Default: 24 hours before the latest "
    "event.",
)
@click.option(
    "--days-back",
    type=click.IntRange(min=1),
    default=7,
    show_default=True,
    metavar="N",
    help="For standouts: compare with the same hours N days before.",
)
@click.option(
    "--per-hour",
    type=click.FloatRange(min=0),
    metavar="PRICE",
    help="For cost: the price of one hour of run time.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum rows.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format. Durations are milliseconds in json and csv.",
)
@spark_options
def show(
    view: str,
    lake: str,
    since: str | None,
    until: str | None,
    tenant: str | None,
    queue: str | None,
    task: str | None,
    after: int | None,
    days_back: int,
    per_hour: float | None,
    limit: int,
    output: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Answer a question from the lake.

    \b
    dead-letters  failed jobs by cause, with the command that reruns them
    new-failures  causes first seen since a time, e.g. a deploy
    cost          run time per tenant and task, and how much of it was lost
    burn          how fast queues use up the error budgets of their targets
    standouts     what differs from the same hours a week before
    workers       utilisation per worker
    trouble       retries, failures and stalls per task and worker

    \b
    Examples:
      jq-pipeline show new-failures --lake ./lake --after 2026-11-16T14:30
      jq-pipeline show cost --lake ./lake --since 2026-11-01 --per-hour 0.04 -o csv
    """
    from jobq.pipeline.insight.scope import Scope
    from jobq.pipeline.insight.views import BY_NAME, Question, answer

    opened = open_existing_lake(lake, master, conf)
    scope = Scope(since=since, until=until, tenant=tenant, queue=queue, task=task)
    asked = Question(scope, limit, after, days_back, per_hour)
    rows = answer(opened, view, asked)
    opened.spark.stop()
    write_rows(BY_NAME[view].columns, rows, output)


def write_rows(columns: tuple[str, ...], rows: list[dict[str, Any]], output: str) -> None:
    """Print rows to standard output."""
    if output == "json":
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
    elif output == "csv":
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(rows)
    elif not rows:
        click.echo("nothing to show")
    elif "command" in columns:
        click.echo("\n\n".join(map(_block, rows)))
    else:
        Console(highlight=False).print(_grid(columns, rows))


def _block(row: dict[str, Any]) -> str:
    """A cause of failures on four lines. A table of so many columns would fit no terminal."""
    example = one_line(row["example"] or row["reason"] or "unknown error")
    where = one_line(f"{row['tenant']}/{row['queue']}: {row['tasks']}")
    return "\n".join(
        (
            example,
            f"  {row['dead']:,} dead, {row['failures']:,} failures, {where}",
            f"  first {row['first_at']}, last {row['last_at']} UTC, "
            f"e.g. job {one_line(row['example_job'] or 'unknown')}",
            f"  {one_line(row['command'])}",
        )
    )


def _grid(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Table:
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in columns:
        right = any(isinstance(row[name], int | float) for row in rows)
        grid.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(name, row[name]) for name in columns))
    return grid


def _cell(name: str, value: Any) -> str:
    """A value for people. Text from jobs cannot contain control characters or markup."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("share", "utilisation"):
        return f"{value:.1%}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return escape(one_line(str(value)))
