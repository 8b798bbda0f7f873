"""`jq-pipeline`: the pipeline's commands. Each opens a session, does one job, and says what came of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid

from jobq.console.discreet import DiscreetGroup, said
from jobq.core.version import __version__
from jobq.errors import JobqError
from jobq.pipeline.session import Format, open_session, require

F = TypeVar("F", bound=Callable[..., Any])

console = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Progress, on standard error: standard output is for results."""
    console.print(line, markup=False, soft_wrap=True)


class Commands(DiscreetGroup):
    """Errors of ours are one line, not a traceback, also those that come through Spark."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except JobqError as e:
            raise click.ClickException(said(e)) from e
        except Exception as e:
            if words := _said_in_spark(e):
                raise click.ClickException(said(words)) from e
            raise


def _said_in_spark(error: Exception) -> str | None:
    from pyspark.errors import PySparkException

    from jobq.pipeline.failures import our_words

    return our_words(error) if isinstance(error, PySparkException) else None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="jq-pipeline")
def main() -> None:
    """Lifecycle events into a lake, an audit over it, and reports: on Spark."""
    require("pyspark", "spark")


def _spark_options(command: F) -> F:
    for option in (
        click.option(
            "--conf",
            "conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A Spark setting; may be repeated.",
        ),
        click.option(
            "--master",
            envvar="JQ_SPARK_MASTER",
            help="Spark master. Default: what spark-submit says, else local[*].",
        ),
    ):
        command = option(command)
    return command


def _lake_option(command: F) -> F:
    return click.option(
        "--lake",
        required=True,
        envvar="JQ_LAKE",
        help="Folder of the lake: a path, or hdfs://, s3a://, …",
    )(command)


def _day(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A day as tables are partitioned by it."""
    try:
        return None if value is None else date.fromisoformat(value).isoformat()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a day: YYYY-MM-DD", param=option) from None


def _settings(conf: tuple[str, ...], option: str = "--conf") -> dict[str, str]:
    for setting in conf:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint=option)
    return dict(setting.split("=", 1) for setting in conf)


def _stored_format(lake: str) -> Format:
    """How a local lake is kept, so that commands on it need not be told. Elsewhere: JQ_LAKE_FORMAT or Parquet."""
    import os

    state = Path(lake.removeprefix("file://")) / "_jobq" / "state.json"
    given = os.environ.get("JQ_LAKE_FORMAT", "parquet")
    text = state.read_text() if state.exists() else given
    return "delta" if '"delta"' in text or text == "delta" else "parquet"


def _open(
    lake: str,
    master: str | None,
    conf: tuple[str, ...],
    *,
    format: Format | None = None,
    kafka: bool = False,
) -> Any:
    from jobq.pipeline.lake import Lake

    wanted = format or _stored_format(lake)
    spark = open_session(
        "jq-pipeline", master=master, format=wanted, kafka=kafka, conf=_settings(conf)
    )
    return Lake(spark, lake, format=format)


def _open_existing(lake: str, master: str | None, conf: tuple[str, ...]) -> Any:
    """A lake that is there: ConfigError for a folder that is none, and nothing is made in it."""
    return _open(lake, master, conf).require()


@main.command()
@click.option(
    "--source",
    required=True,
    help="kafka://host:9092/topic, a folder of JSON lines (files:///…), or the URL of a store.",
)
@_lake_option
@click.option("--once", is_flag=True, help="Take what is there now, and end.")
@click.option(
    "--audit",
    "audit_too",
    is_flag=True,
    help="With --once: then audit, against the source if it is a store.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(dir_okay=False),
    help="With --once: then write the report to this file.",
)
@click.option(
    "--format",
    "format",
    type=click.Choice(["parquet", "delta"]),
    help="How a new lake is kept. Default: parquet.",
)
@click.option(
    "--slo",
    "slo_file",
    type=click.Path(exists=True, dir_okay=False),
    help="YAML file with targets.",
)
@click.option("--every", default=10.0, show_default=True, help="Seconds between batches.")
@click.option(
    "--derive-every",
    default=60.0,
    show_default=True,
    help="Seconds between updates of the derived tables.",
)
@click.option("--max-events", type=int, help="Most events per batch (Kafka and stores).")
@click.option("--max-files", type=int, help="Most files per batch.")
@_spark_options
def run(
    source: str,
    lake: str,
    once: bool,
    audit_too: bool,
    page: str | None,
    format: Format | None,
    slo_file: str | None,
    every: float,
    derive_every: float,
    max_events: int | None,
    max_files: int | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Read events into the lake and keep its tables up to date. Stop it at any point; it goes on where it was."""
    from jobq.pipeline.jobs.run import PipelineRun, describe
    from jobq.pipeline.report import write_report
    from jobq.pipeline.slo import load_targets
    from jobq.pipeline.sources import open_source

    opened = open_source(source, max_events=max_events, max_files=max_files)
    targets = load_targets(slo_file)
    where = _open(lake, master, conf, format=format, kafka=opened.kafka)
    job = PipelineRun(where, opened, targets, every=every, derive_every=derive_every, report=say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: job.stop())
    job.start(where.spark, once=once)
    job.wait()
    click.echo(f"{describe(job.brought)}; the lake now has {where.state.totals.events:,} events")
    code = _audit(where, source if opened.store else None, None) if once and audit_too else 0
    if once and page:
        write_report(where, Path(page))
        click.echo(f"report: {page}")
    where.spark.stop()
    sys.exit(code)


@main.command()
@_lake_option
@click.option("--store", "store", help="URL of the store: its counts must agree.")
@click.option("--examples", help="Folder for the events at fault. Default: LAKE/_jobq/audit.")
@_spark_options
def audit(
    lake: str, store: str | None, examples: str | None, master: str | None, conf: tuple[str, ...]
) -> None:
    """Prove from the lake that nothing was lost. Exit 0: proved. 1: violated. 2: unprovable (a gap in the store's log)."""
    where = _open_existing(lake, master, conf)
    code = _audit(where, store, examples)
    where.spark.stop()
    sys.exit(code)


def _audit(where: Any, store: str | None, examples: str | None) -> int:
    """Audit and print; the exit code."""
    from jobq.pipeline.audit import audit as audited

    folder = examples or f"{where.root}/_jobq/audit"
    found = audited(where, store=store, examples=folder)
    Console(highlight=False).print(_audit_grid(found))
    for line in _remarks(found):
        click.echo(line)
    if any(sum(queue.faults.values()) for queue in found.queues):
        click.echo(f"the events at fault are in {folder}")
    click.echo(f"verdict: {found.verdict}")
    return found.exit_code


def _audit_grid(found: Any) -> Grid:
    """One line of numbers per queue, and under it what is not in order: readable at 80 columns."""
    title = "accepted + rerun = completed + failed + cancelled + held"
    grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
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


def _remarks(found: Any) -> list[str]:
    """A line for each queue that is not proved, and how many are."""
    lines = [
        f"{queue.tenant}/{queue.queue}: {'; '.join([queue.verdict, *queue.problems, *_doubts(queue)])}"
        for queue in found.queues
        if queue.verdict != "proved"
    ]
    if not found.queues:
        return ["there is no queue to audit: nothing has reached the lake"]
    return [*lines, f"{len(found.queues) - len(lines)} of {len(found.queues)} queues proved"]


def _doubts(queue: Any) -> list[str]:
    doubts = []
    if queue.gaps:
        doubts.append(
            f"the store's log lost entries {queue.gaps}×, from {_utc(queue.gap_from_ms)} to {_utc(queue.gap_to_ms)}"
        )
    if queue.behind:
        doubts.append("the lake has not caught up with the store: run the pipeline and audit again")
    return doubts


def _utc(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@main.command()
@_lake_option
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False), help="The HTML file to write."
)
@click.option(
    "--png",
    type=click.Path(dir_okay=False),
    help="Also a summary as a picture (needs jobq[report]).",
)
@click.option("--since", callback=_day, help="First day (YYYY-MM-DD).")
@click.option("--until", callback=_day, help="Last day (YYYY-MM-DD).")
@click.option("--tenant", help="Only this tenant.")
@click.option("--title", default="jobq", show_default=True)
@_spark_options
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
    """Write one self-contained HTML page about what happened."""
    from jobq.pipeline.report import write_report

    if png:
        require("matplotlib", "report")
    where = _open_existing(lake, master, conf)
    write_report(
        where,
        Path(out),
        png=Path(png) if png else None,
        since=since,
        until=until,
        tenant=tenant,
        title=title,
    )
    where.spark.stop()
    click.echo(f"report: {out}" + (f", {png}" if png else ""))


@main.command()
@_lake_option
@click.option(
    "--slo",
    "slo_file",
    type=click.Path(exists=True, dir_okay=False),
    help="YAML file with targets.",
)
@click.option("--since", callback=_day, help="First day (YYYY-MM-DD). Default: all.")
@_spark_options
def rebuild(
    lake: str, slo_file: str | None, since: str | None, master: str | None, conf: tuple[str, ...]
) -> None:
    """Make the derived tables anew from `events`: after a change of the SLO targets."""
    from jobq.pipeline.jobs.upkeep import rebuild as rebuilt
    from jobq.pipeline.slo import load_targets

    targets = load_targets(slo_file)
    where = _open_existing(lake, master, conf)
    with where.writing("rebuild"):
        where.reload()
        click.echo(f"derived {len(rebuilt(where, targets, since=since))} hours anew")
    where.spark.stop()


@main.command()
@_lake_option
@click.option("--target-mb", default=128, show_default=True, help="Size of the files to make.")
@_spark_options
def compact(lake: str, target_mb: int, master: str | None, conf: tuple[str, ...]) -> None:
    """Make few large files of many small ones. Not while `run` is at work on the same Parquet lake."""
    from jobq.pipeline.jobs.upkeep import compact as compacted

    where = _open_existing(lake, master, conf)
    with nullcontext() if where.state.format == "delta" else where.writing("compact"):
        where.reload()
        changed = compacted(where, target=target_mb * 1024 * 1024)
    for name, (before, after) in changed.items():
        click.echo(f"{name}: {before} files → {after}")
    where.spark.stop()


@main.command()
@_lake_option
@click.option(
    "--keep-days", required=True, type=click.IntRange(min=1), help="Remove what is older."
)
@click.option(
    "--all-tables",
    is_flag=True,
    help="Also the derived tables, not only events, attempts and quarantine.",
)
@_spark_options
def retention(
    lake: str, keep_days: int, all_tables: bool, master: str | None, conf: tuple[str, ...]
) -> None:
    """Remove old days."""
    from jobq.pipeline.jobs.upkeep import retain

    where = _open_existing(lake, master, conf)
    with where.writing("retention"):
        where.reload()
        removed = retain(where, keep_days=keep_days, all_tables=all_tables)
    for name, count in removed.items():
        click.echo(f"{name}: {count} partitions removed")
    if not removed:
        click.echo("nothing is that old")
    where.spark.stop()


@main.command()
@click.argument("path")
@click.option(
    "--format",
    "format",
    default="parquet",
    show_default=True,
    help="What Spark calls it: parquet, json, csv, delta, …",
)
@click.option(
    "--option",
    "reading",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the reader, e.g. header=true; may be repeated.",
)
@click.option("--sql", help="A query over the table `input`, e.g. to choose and rename columns.")
@click.option("--url", required=True, envvar="JQ_URL", help="The store.")
@click.option("--queue", required=True)
@click.option("--tenant", help="Default: JQ_TENANT, else default.")
@click.option("--task", help="Name of the task; or give a column _task.")
@click.option(
    "--id",
    "id_columns",
    help="Columns whose values make the job's id. Default: column _id, else a hash of the row.",
)
@click.option("--prefix", help="Put before ids, so that the same rows again are other jobs.")
@click.option("--rejected", help="Folder for rows that are no valid jobs.")
@_spark_options
def load(
    path: str,
    format: str,
    reading: tuple[str, ...],
    sql: str | None,
    url: str,
    queue: str,
    tenant: str | None,
    task: str | None,
    id_columns: str | None,
    prefix: str | None,
    rejected: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Enqueue a job for each row of PATH. Columns are arguments; _priority, _delay, _key, … are options. Again: adds nothing."""
    from jobq.pipeline.failures import asked_for
    from jobq.pipeline.jobs.load import ask
    from jobq.pipeline.jobs.load import load as loaded

    ask(url, queue, tenant)
    spark = open_session("jq-pipeline load", master=master, conf=_settings(conf))
    with asked_for(f"{path} cannot be read as {format}"):
        rows = spark.read.format(format).options(**_settings(reading, "--option")).load(path)
    if sql:
        rows.createOrReplaceTempView("input")
        with asked_for("--sql"):
            rows = spark.sql(sql)
    given = {
        "url": url,
        "queue": queue,
        "tenant": tenant,
        "task": task,
        "id": id_columns,
        "prefix": prefix,
        "rejected": rejected,
    }
    found = loaded(spark, rows, {name: value for name, value in given.items() if value}, report=say)
    spark.stop()
    click.echo(
        f"{found['accepted']:,} jobs accepted, {found['duplicates']:,} were there already, {found['rejected']:,} rows rejected"
    )
    for example in found["examples"][:3]:
        click.echo(f"  {example}")
    sys.exit(1 if found["rejected"] else 0)


@main.command()
def tables() -> None:
    """Print what each table of the lake holds, as Markdown."""
    from jobq.pipeline.tables import TABLES, as_markdown

    click.echo("\n".join(as_markdown(table) for table in TABLES))


@main.command()
@click.option("--events", default=1_000_000, show_default=True, help="About how many.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False), help="Folder for the JSON lines."
)
@click.option("--hours", default=24.0, show_default=True, help="The time they span.")
@click.option("--files", default=8, show_default=True)
@click.option("--seed", default=7, show_default=True)
def synth(events: int, out: str, hours: float, files: int, seed: int) -> None:
    """Make events of jobs that never were, for trying things out and for sizing a cluster."""
    from jobq.pipeline.synthetic import EVENTS_PER_JOB, Plan, write

    plan = Plan(jobs=max(1, int(events / EVENTS_PER_JOB)), hours=hours, seed=seed)
    click.echo(f"{write(plan, Path(out), files=files):,} events in {out}")
