"""`jq-pipeline erase`: remove one subject's jobs."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import Progress

from jobq.pipeline.cli.group import (
    lake_option,
    open_existing_lake,
    parse_settings,
    say,
    slo_option,
    spark_options,
)

_SHOWN = 5  # jobs that the preview names


@click.command()
@lake_option
@click.option("--id", "ids", multiple=True, metavar="JOB", help="A job's id. Repeat for several.")
@click.option(
    "--meta",
    "meta",
    multiple=True,
    metavar="NAME=VALUE",
    help="Jobs whose meta has this value. Repeat for several, which must then all match.",
)
@click.option("--tenant", metavar="NAME", help="Only jobs of this tenant. Default: all.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue. Default: all.")
@click.option(
    "--store",
    metavar="URL",
    help="URL of the store: also remove the jobs from there. Default: only from the lake.",
)
@click.option("--preview", is_flag=True, help="Show what would be erased, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@slo_option
@spark_options
def erase(
    lake: str,
    ids: tuple[str, ...],
    meta: tuple[str, ...],
    tenant: str | None,
    queue: str | None,
    store: str | None,
    preview: bool,
    yes: bool,
    slo_file: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Erase one subject's jobs.

    They are removed from the lake, and with --store from the store. Every event of the jobs
    becomes a tombstone: it keeps its number, its time and its queue, and nothing else. The audit
    accepts tombstones. The derived tables are computed again without the jobs. It is safe to run
    the command again after a crash. Exit code 1 if the store keeps jobs that are running: run the
    command again when they have ended."""
    if not ids and not meta:
        raise click.UsageError("say which jobs: give --id or --meta")
    from jobq.pipeline.jobs.erase import Subject, find
    from jobq.pipeline.jobs.erase import erase as erase_jobs
    from jobq.pipeline.slo import load_targets

    subject = Subject(ids, parse_settings(meta, "--meta"), tenant, queue)
    targets = load_targets(slo_file)
    opened = open_existing_lake(lake, master, conf)
    with opened.writing("erase"):
        opened.begin()
        found = find(opened, subject, store=store)
        click.echo(
            f"{len(found.in_lake):,} jobs with {found.events:,} events in the lake"
            + (f", {len(found.in_store):,} jobs in the store" if store else "")
        )
        for job in sorted(found.jobs)[:_SHOWN]:
            click.echo(f"  {job.tenant}/{job.queue} {job.id}")
        if found.unfinished:
            click.echo(f"{found.unfinished:,} jobs of an interrupted erasure will be finished too")
        if preview or not (found.jobs or found.unfinished):
            opened.spark.stop()
            return
        if not yes:
            click.confirm("Erase them for good?", abort=True)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("Hours rewritten", total=None)
            done = erase_jobs(
                opened,
                found,
                targets,
                store=store,
                report=lambda n, of: bar.update(task, completed=n, total=of),
            )
    opened.spark.stop()
    click.echo(
        f"{done.jobs:,} jobs erased: {done.events:,} events are tombstones"
        + (f", {done.removed:,} jobs removed from the store" if store else "")
    )
    for job in done.running:
        say(f"{job.tenant}/{job.queue} {job.id} is running: the store still has it")
    sys.exit(1 if done.running else 0)
