"""`jq-pipeline synth`: write synthetic events."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--events",
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Approximate number of events.",
)
@click.option(
    "--out",
    required=True,
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Folder for the files of JSON lines.",
)
@click.option(
    "--hours",
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Length of the period that the events cover, in hours.",
)
@click.option("--files", default=8, show_default=True, metavar="N", help="Number of files.")
@click.option(
    "--seed",
    default=7,
    show_default=True,
    metavar="N",
    help="Random seed: the same seed writes the same events.",
)
def synth(events: int, out: str, hours: float, files: int, seed: int) -> None:
    """Write synthetic job events.

    Use them to try things out and to size a cluster."""
    from jobq.pipeline.synthetic import EVENTS_PER_JOB, Plan, write

    plan = Plan(jobs=max(1, int(events / EVENTS_PER_JOB)), hours=hours, seed=seed)
    click.echo(f"{write(plan, Path(out), files=files):,} events in {out}")
