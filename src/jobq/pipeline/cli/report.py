"""`jq-pipeline report` and `jq-pipeline tables`: what the lake holds, for people."""

from __future__ import annotations

from pathlib import Path

import click

from jobq.pipeline.cli.group import (
    lake_option,
    open_existing_lake,
    parse_day,
    parse_time,
    spark_options,
)
from jobq.pipeline.session import require


@click.command()
@lake_option
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The HTML file to write.",
)
@click.option(
    "--png",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also write a summary as a PNG picture. Needs jobq[report].",
)
@click.option(
    "--since",
    callback=parse_day,
    metavar="YYYY-MM-DD",
    help="First day (UTC). Default: the oldest in the lake.",
)
@click.option(
    "--until",
    callback=parse_day,
    metavar="YYYY-MM-DD",
    help="Last day (UTC), included. Default: the latest in the lake.",
)
@click.option(
    "--tenant",
    metavar="NAME",
    help="Only this tenant. Default: all; the page itself can be filtered.",
)
@click.option("--queue", metavar="NAME", help="Only this queue. Default: all.")
@click.option("--task", metavar="NAME", help="Only this task. Default: all.")
@click.option(
    "--compare-days",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    metavar="N",
    help="Compare with the period N days before. 0 compares with none.",
)
@click.option(
    "--new-since",
    callback=parse_time,
    metavar="TIME",
    help="Failures first seen from this time (UTC) on are new, e.g. the time of a deploy. Default: "
    "24 hours before the latest event.",
)
@click.option(
    "--title", metavar="TEXT", default="jobq", show_default=True, help="Title of the page."
)
@spark_options
def report(
    lake: str,
    out: str,
    png: str | None,
    since: str | None,
    until: str | None,
    tenant: str | None,
    queue: str | None,
    task: str | None,
    compare_days: int,
    new_since: int | None,
    title: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Write a report: one HTML file with charts and tables.

    It shows throughput, latency, backlog, failures, service levels, cost and workers, and needs no
    external resources. The page
    can be filtered by tenant, queue and task, and compared with an earlier period."""
    from jobq.pipeline.insight.scope import Scope
    from jobq.pipeline.report import write_report

    if png:
        require("matplotlib", "report")
    opened = open_existing_lake(lake, master, conf)
    filled = write_report(
        opened,
        Path(out),
        png=Path(png) if png else None,
        scope=Scope(since=since, until=until, tenant=tenant, queue=queue, task=task),
        days_back=compare_days,
        new_since_ms=new_since,
        title=title,
    )
    opened.spark.stop()
    if filled:
        click.echo(f"report: {out}" + (f", {png}" if png else ""))
    else:
        click.echo(f"report: {out} (there are no events in this period)")


@click.command()
def tables() -> None:
    """Print the tables of the lake and their columns as Markdown."""
    from jobq.pipeline.tables import TABLES, as_markdown

    click.echo("\n".join(as_markdown(table) for table in TABLES))
