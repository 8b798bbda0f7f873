"""`jq-pipeline audit`: run the audit, print its result and tell others about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobq.console.safe_errors import safe_message
from jobq.errors import JobqError
from jobq.pipeline.cli.group import lake_option, open_existing_lake, say, spark_options

if TYPE_CHECKING:
    from jobq.pipeline.audit.verdict import Audit

COULD_NOT_RUN = 3

Output = Literal["text", "json"]


class AuditCommand(click.Command):
    """A command whose wrong options end with exit code 3, because 2 means `unprovable`."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options."""
        try:
            return super().make_context(*args, **kwargs)
        except click.ClickException as e:
            raise _exits_with_3(e)  # noqa: B904 - it is the same exception


def _exits_with_3(error: click.ClickException) -> click.ClickException:
    vars(error)["exit_code"] = COULD_NOT_RUN
    return error


@click.command(cls=AuditCommand)
@lake_option
@click.option(
    "--store",
    "store",
    metavar="URL",
    help="URL of the store. The lake must have everything up to the end of its logs, and its jobs "
    "must agree with the lake. Without it, the audit goes up to the last event in the lake.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Read the whole lake, and compare all jobs with the store. Finds events that were changed "
    "after they had been audited. Default: read what arrived since the last audit, and compare a "
    "sample.",
)
@click.option(
    "--examples",
    metavar="FOLDER",
    help="Folder for counterexamples. Default: LAKE/_jobq/audit/examples.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print a table, or one JSON object.",
)
@click.option(
    "--alert",
    metavar="URL",
    help="POST the JSON summary to this URL if the verdict differs from the last audit's.",
)
@click.option(
    "--metrics",
    "metrics",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the verdict as Prometheus metrics to this file, for the textfile collector.",
)
@spark_options
def audit(
    lake: str,
    store: str | None,
    full: bool,
    examples: str | None,
    output: Output,
    alert: str | None,
    metrics: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Prove from the lake that no event and no job was lost.

    Exit codes: 0 proved, 1 violated, 2 unprovable (the lake is behind the store, records are in
    quarantine, or events have no numbers), 3 the audit could not run."""
    try:
        opened = open_existing_lake(lake, master, conf)
        code = run_audit(opened, store, examples, full=full, output=output, alert=alert)
        if metrics:
            write_metrics(opened, Path(metrics))
        opened.spark.stop()
    except click.ClickException as e:
        raise _exits_with_3(e)  # noqa: B904 - it is the same exception
    except Exception as e:
        raise _exits_with_3(click.ClickException(safe_message(_message(e)))) from e
    sys.exit(code)


def _message(error: Exception) -> str | JobqError:
    if isinstance(error, JobqError):
        return error
    from pyspark.errors import PySparkException

    from jobq.pipeline.spark_errors import jobq_message

    known = jobq_message(error) if isinstance(error, PySparkException) else None
    return known or f"the audit could not run: {error}"


def run_audit(
    lake: Any,
    store: str | None,
    examples: str | None,
    *,
    full: bool = False,
    output: Output = "text",
    alert: str | None = None,
) -> int:
    """Audit the lake, print the result, and return the exit code."""
    from jobq.pipeline.audit.audit import audit as audit_lake
    from jobq.pipeline.audit.verdict import post

    folder = examples or f"{lake.root}/_jobq/audit/examples"
    found = audit_lake(lake, store=store, examples=folder, full=full)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found.summary())).decode())
    else:
        Console(highlight=False).print(audit_table(found))
        for line in remarks(found):
            click.echo(line)
        if found.verdict == "violated":
            click.echo(f"counterexamples are in {folder}")
        click.echo(f"verdict: {found.verdict}")
    if alert and found.verdict != found.previous and (problem := post(alert, found.summary())):
        say(f"could not send the alert: {problem}")
    return found.exit_code


def write_metrics(lake: Any, path: Path) -> None:
    """Write the last audit's verdict in Prometheus' text format, atomically."""
    from jobq.pipeline.audit.verdict import prometheus

    note = msgspec.json.decode(lake.files.read(f"{lake.root}/_jobq/audit.json"))
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(prometheus(note))
    temporary.replace(path)


def audit_table(found: Audit) -> Table:
    """The counts of each queue, one row per queue. Fits into 80 columns."""
    title = "accepted + rerun = completed + failed + cancelled + held"
    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column("tenant/queue", overflow="fold", min_width=12)
    for name in ("accepted", "rerun", "completed", "failed", "cancelled", "held"):
        grid.add_column(name, justify="right", no_wrap=True)
    for queue in found.queues:
        totals = queue.totals
        numbers = (
            totals.accepted + totals.carried,
            totals.rerun,
            totals.completed,
            totals.failed,
            totals.cancelled,
            queue.held,
        )
        grid.add_row(f"{queue.tenant}/{queue.queue}", *(f"{n:,}" for n in numbers))
    return grid


def remarks(found: Audit) -> list[str]:
    """One line per queue that is not simply proved, then how many queues are, and what was read."""
    if not found.queues:
        return ["no queue to audit: no event has reached the lake"]
    lines = [
        f"{queue.tenant}/{queue.queue}: "
        + "; ".join([queue.verdict, *queue.problems, *queue.doubts, *queue.exceptions])
        for queue in found.queues
        if queue.verdict != "proved" or queue.exceptions
    ]
    if found.stray:
        lines.append(f"{found.stray:,} records in quarantine name no queue")
    proved = sum(queue.verdict == "proved" for queue in found.queues)
    how = "all events" if found.full else "new events"
    return [
        *lines,
        f"{proved} of {len(found.queues)} queues proved; read {found.events:,} events ({how})",
    ]
