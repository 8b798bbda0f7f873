"""`jq-pipeline rebuild`, `compact` and `retention`: maintenance of a lake."""

from __future__ import annotations

import click

from jobq.pipeline.cli.group import (
    lake_option,
    open_existing_lake,
    parse_day,
    slo_option,
    spark_options,
)

free_option = click.option(
    "--free-after",
    default=24.0,
    show_default=True,
    metavar="HOURS",
    type=click.FloatRange(min=0),
    help="Delete files that no table has used for this long (Delta and Iceberg). Queries that take "
    "longer, and reads of older versions, then fail. 0 deletes them at once.",
)


@click.command()
@lake_option
@slo_option
@click.option(
    "--since",
    callback=parse_day,
    metavar="YYYY-MM-DD",
    help="First day to rebuild (UTC). Default: all days.",
)
@spark_options
def rebuild(
    lake: str, slo_file: str | None, since: str | None, master: str | None, conf: tuple[str, ...]
) -> None:
    """Rebuild the derived tables from `events`.

    Do this after the SLO targets have changed."""
    from jobq.pipeline.jobs.upkeep import rebuild as rebuild_lake
    from jobq.pipeline.slo import load_targets

    targets = load_targets(slo_file)
    opened = open_existing_lake(lake, master, conf)
    with opened.writing("rebuild"):
        opened.begin()
        click.echo(f"rebuilt {len(rebuild_lake(opened, targets, since=since))} hours")
    opened.spark.stop()


@click.command()
@lake_option
@click.option(
    "--target-mb",
    default=128,
    show_default=True,
    metavar="MB",
    type=click.IntRange(min=1),
    help="Size of the files to write, in MB.",
)
@free_option
@spark_options
def compact(
    lake: str, target_mb: int, free_after: float, master: str | None, conf: tuple[str, ...]
) -> None:
    """Merge many small files into few large ones.

    Refused while `run` is writing to the same lake, except to a Delta lake. In Delta and Iceberg
    lakes, files that are not part of a table any more are deleted after --free-after hours."""
    from jobq.pipeline.jobs.upkeep import compact as compact_lake
    from jobq.pipeline.jobs.upkeep import free

    opened = open_existing_lake(lake, master, conf)
    if opened.state.format == "delta":  # each change is a transaction, also beside a `run`
        changed = compact_lake(opened, target=target_mb * 1024 * 1024)
        free(opened, hours=free_after)
    else:
        with opened.writing("compact"):
            opened.begin()
            changed = compact_lake(opened, target=target_mb * 1024 * 1024)
            free(opened, hours=free_after)
    for name, (before, after) in changed.items():
        click.echo(f"{name}: {before} files → {after}")
    opened.spark.stop()


@click.command()
@lake_option
@click.option(
    "--keep-days",
    required=True,
    metavar="DAYS",
    type=click.IntRange(min=1),
    help="Remove days that are older than this many days.",
)
@click.option(
    "--all-tables",
    is_flag=True,
    help="Remove them from all tables. Default: only from events, attempts, marks and quarantine.",
)
@free_option
@spark_options
def retention(
    lake: str,
    keep_days: int,
    all_tables: bool,
    free_after: float,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Remove old days from the lake.

    In Delta and Iceberg lakes, the files of removed days are deleted after --free-after hours, by
    this command or by the next `retention` or `compact`."""
    from jobq.pipeline.jobs.upkeep import free, retain

    opened = open_existing_lake(lake, master, conf)
    with opened.writing("retention"):
        opened.begin()
        removed = retain(opened, keep_days=keep_days, all_tables=all_tables)
        free(opened, hours=free_after)
    for name, count in removed.items():
        click.echo(f"{name}: {count} partitions removed")
    if not removed:
        click.echo(f"nothing is older than {keep_days} days")
    opened.spark.stop()
