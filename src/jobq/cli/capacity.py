"""`jq-ctl capacity`: how many servers and workers a load needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.capacity import Load, Plan, default_measured, plan, read_measured
from jobq.cli.options import DURATION, FAILED, Command, guarded
from jobq.cli.output import Column, Format, Output, details, table
from jobq.core.sizes import parse_size

if TYPE_CHECKING:
    _Bytes = click.ParamType[int]
    _Share = click.ParamType[float]
else:  # generic since click 8.2 only
    _Bytes = _Share = click.ParamType


class Size(_Bytes):
    """Bytes, or 2kb, 1.5M."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number of bytes, which may be 0."""
        if isinstance(value, int) or value == "0":
            return int(value)
        try:
            return parse_size(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


class Share(_Share):
    """A part of something: 50% or 0.5."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a share from 0 to below 1."""
        text = str(value).strip()
        try:
            found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            found = -1.0
        if not 0 <= found < 1:
            self.fail(f"{text!r} is not a share: use 0% to 99%, or 0 to 0.99", param, ctx)
        return found


@click.command(
    cls=Command,
    examples="""
    jq-ctl capacity --jobs-per-second 5000 --payload 2kb --run-time 0.2s
    jq-ctl capacity --jobs-per-second 300 --store postgres --cores 8 --concurrency 20
    jq-ctl capacity --jobs-per-second 100000 --tenants 1000 --kafka --lake --keep-events 90d
    jq-ctl capacity --jobs-per-second 2000 --jq-server --measured our-machine.toml -o json
    """,
)
@click.option(
    "--jobs-per-second",
    "jobs_per_s",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    metavar="N",
    help="Jobs that are enqueued and run per second.",
)
@click.option(
    "--payload", type=Size(), default=200, metavar="SIZE", help="Arguments. Default: 200."
)
@click.option("--result", type=Size(), default=100, metavar="SIZE", help="Result. Default: 100.")
@click.option(
    "--run-time",
    "run_s",
    type=DURATION,
    default=0.1,
    metavar="TIME",
    help="From a job's start to its end. Default: 0.1s.",
)
@click.option(
    "--cpu-time",
    "cpu_s",
    type=DURATION,
    default=0.0,
    metavar="TIME",
    help="Processor time of the handler per job. Default: 0.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="Slots of each worker process. Default: 100.",
)
@click.option(
    "--enqueue-batch",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Jobs that producers enqueue together. Default: 1.",
)
@click.option(
    "--idle-workers",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Worker processes that have nothing to do. Default: 0.",
)
@click.option(
    "--queues",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Queues, with equal shares of the jobs. Default: 1.",
)
@click.option(
    "--tenants",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Tenants; each has at least one queue. Default: 1.",
)
@click.option(
    "--backlog",
    "backlog_s",
    type=DURATION,
    default=600.0,
    metavar="TIME",
    help="How long jobs may pile up before the store is full. Default: 10m.",
)
@click.option(
    "--keep-events",
    "kept_s",
    type=DURATION,
    default=30 * 86_400.0,
    metavar="TIME",
    help="How long the lake keeps events. Default: 30d.",
)
@click.option(
    "--store",
    type=click.Choice(["valkey", "postgres", "sqlite"]),
    default="valkey",
    help="Kind of store. Default: valkey.",
)
@click.option("--jq-server", "server", is_flag=True, help="Clients and workers use jq-servers.")
@click.option("--kafka", is_flag=True, help="A relay ships events to Kafka.")
@click.option("--lake", is_flag=True, help="Spark writes events to a lake.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    default=8,
    metavar="N",
    help="Cores of a PostgreSQL machine. Default: 8.",
)
@click.option(
    "--headroom",
    type=Share(),
    default=0.5,
    metavar="SHARE",
    help="Part of every processor that stays free. Default: 50%.",
)
@click.option(
    "--measured",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Costs measured on your machine by bench.capacity. Default: those that come with jobq.",
)
@click.pass_context
def capacity(ctx: click.Context, /, measured: Path | None, kept_s: float, **given: Any) -> None:
    """Estimate the servers and workers that a load needs.

    The answer is calculated from measured costs; no store is opened. docs/scale.md explains the
    model, and how far it was from what was measured. The exit code is 1 if the load does not fit
    into one store of this kind."""
    out = Output(cast(Format, ctx.meta.get("jobq.output") or "table"))

    def run() -> int:
        costs = default_measured() if measured is None else read_measured(measured)
        found = plan(Load(kept_days=kept_s / 86_400, **given), costs)
        out.show(document(found), lambda: view(found))
        out.note(f"costs measured on {costs.about.measured}: {costs.about.machine}")
        return 0 if found.fits else FAILED

    ctx.exit(guarded(run))


def document(found: Plan) -> dict[str, Any]:
    """The whole answer, for programs."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    made["use"]["total_us"] = found.use.total_us
    return made


def view(found: Plan) -> RenderableType:
    """The answer for people: what is needed, what that costs, and what to know about it."""
    load, cost = found.load, found.use
    columns = [Column("NEED"), Column("COUNT", right=True), Column("BECAUSE OF")]
    needs = table(columns, [(need.what, need.count, need.why) for need in found.needs])
    kept = "memory of each primary" if load.store == "valkey" else "disk of the store"
    most = max(cost.memory, key=lambda what: cost.memory[what])
    pairs: list[tuple[str, str]] = [
        (kept, f"{size(found.store_bytes)}, most of it {most}"),
        ("network of the store", f"{size(found.network_bytes_per_s)}/s"),
    ]
    if load.store == "valkey":
        pairs.append(("connections per primary", f"{cost.connections:,}"))
    if cost.log_bytes_per_s:
        pairs.append(("write-ahead log", f"{size(cost.log_bytes_per_s)}/s"))
    if load.server:
        pairs.append(("network of jq-servers", f"{size(cost.server_bytes_per_s)}/s"))
    if found.lake_bytes:
        pairs.append(("disk of the lake", size(found.lake_bytes)))
    notes = [Text("! ", style="yellow") + Text(note) for note in found.notes]
    return Group(needs, Text(), details(pairs), *notes)


def size(value: float) -> str:
    """A size with three digits: 1.23 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
