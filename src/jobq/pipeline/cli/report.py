"""`jq-pipeline report` and `jq-pipeline tables`: what the lake holds, for people."""

from __future__ import annotations

from pathlib import Path

import click

from jobq.pipeline.cli.group import lake_option, open_existing_lake, parse_day, spark_options
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
@click.option("--tenant", metavar="NAME", help="Only this tenant. Default: all.")
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
    title: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Write a self-contained HTML report.

    It shows throughput, latency, errors and service levels."""
    from jobq.pipeline.report import write_report

    if png:
        require("matplotlib", "report")
    opened = open_existing_lake(lake, master, conf)
    write_report(
        opened,
        Path(out),
        png=Path(png) if png else None,
        since=since,
        until=until,
        tenant=tenant,
        title=title,
    )
    opened.spark.stop()
    click.echo(f"report: {out}" + (f", {png}" if png else ""))


@click.command()
def tables() -> None:
    """Print the tables of the lake and their columns as Markdown."""
    from jobq.pipeline.tables import TABLES, as_markdown

    click.echo("\n".join(as_markdown(table) for table in TABLES))
