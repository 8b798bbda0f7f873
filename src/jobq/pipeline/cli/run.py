"""`jq-pipeline run`: read events into the lake."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobq.console.probes import Probes
from jobq.pipeline.cli.audit import run_audit
from jobq.pipeline.cli.group import lake_option, open_lake, say, slo_option, spark_options
from jobq.pipeline.session import FORMATS, Format, require

if TYPE_CHECKING:
    from jobq.pipeline.jobs.run import PipelineRun
    from jobq.pipeline.metrics import RunMetrics


@click.command()
@click.option(
    "--source",
    required=True,
    metavar="URL",
    help="Where to read events: kafka://host:9092/topic, a folder of JSON lines (files:///folder), "
    "or the URL of a store.",
)
@lake_option
@click.option("--once", is_flag=True, help="Read what is there now, then exit.")
@click.option(
    "--audit",
    "audit_too",
    is_flag=True,
    help="With --once: audit the lake afterwards. If the source is a store, compare with it.",
)
@click.option(
    "--report",
    "page",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="With --once: write the HTML report to this file afterwards.",
)
@click.option(
    "--format",
    "format",
    type=click.Choice(FORMATS),
    help="File format of a new lake. Default: parquet, on a local disk. Elsewhere, choose delta or "
    "iceberg.",
)
@click.option(
    "--catalog",
    metavar="CATALOG.SCHEMA",
    envvar="JQ_LAKE_CATALOG",
    help="Register the tables of a new Delta or Iceberg lake there, e.g. spark_catalog.jobs. "
    "Configure the catalog with --conf.",
)
@slo_option
@click.option(
    "--every", default=10.0, show_default=True, metavar="SECONDS", help="Interval between batches."
)
@click.option(
    "--derive-every",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval between updates of the derived tables.",
)
@click.option(
    "--max-events",
    type=int,
    metavar="N",
    help="Maximum events per batch, from Kafka or a store. Default: no limit for Kafka, 1,000,000 "
    "for a store.",
)
@click.option(
    "--max-files",
    type=int,
    metavar="N",
    help="Maximum files per batch, from a folder. Default: no limit.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /metrics for Prometheus and /healthz on this port. Needs jobq[prometheus]. "
    "Default: off.",
)
@click.option(
    "--probe-host",
    default="0.0.0.0",
    show_default=True,
    metavar="ADDRESS",
    help="Address on which --metrics-port listens.",
)
@spark_options
def run(
    source: str,
    lake: str,
    once: bool,
    audit_too: bool,
    page: str | None,
    format: Format | None,
    catalog: str | None,
    slo_file: str | None,
    every: float,
    derive_every: float,
    max_events: int | None,
    max_files: int | None,
    metrics_port: int | None,
    probe_host: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Read events into the lake and keep its tables up to date.

    You can stop or kill it at any time: the next run continues where this one stopped."""
    from jobq.pipeline.jobs.run import PipelineRun, describe
    from jobq.pipeline.report import write_report
    from jobq.pipeline.slo import load_targets
    from jobq.pipeline.sources import open_source

    opened = open_source(source, max_events=max_events, max_files=max_files)
    targets = load_targets(slo_file)
    started: list[PipelineRun] = []
    with ExitStack() as stack:
        metrics = None
        if metrics_port is not None:  # before Spark, so that a port in use is reported at once
            metrics, probes = _probes(
                metrics_port, probe_host, lambda: all(job.alive for job in started)
            )
            stack.enter_context(probes)
        opened_lake = open_lake(
            lake, master, conf, format=format, kafka=opened.kafka, catalog=catalog
        )
        job = PipelineRun(
            opened_lake,
            opened,
            targets,
            every=every,
            derive_every=derive_every,
            report=say,
            metrics=metrics,
        )
        stack.enter_context(_signals_stop(job))
        job.start(opened_lake.spark, once=once)
        started.append(job)
        job.wait()
    total = opened_lake.state.totals.events
    click.echo(f"{describe(job.brought)}; the lake now has {total:,} events")
    code = 0
    if once and audit_too:
        code = run_audit(opened_lake, source if opened.store else None, None)
    if once and page:
        write_report(opened_lake, Path(page))
        click.echo(f"report: {page}")
    opened_lake.spark.stop()
    sys.exit(code)


@contextmanager
def _signals_stop(job: PipelineRun) -> Iterator[None]:
    """SIGTERM and SIGINT stop the run after its batch. The old handlers are restored afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: job.stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _probes(port: int, host: str, alive: Callable[[], bool]) -> tuple[RunMetrics, Probes]:
    """The metrics of a run, and the server that shows them."""
    require("prometheus_client", "prometheus")
    from jobq.pipeline.metrics import RunMetrics, routes

    metrics = RunMetrics()
    return metrics, Probes({port: routes(metrics, alive)}, host=host)
