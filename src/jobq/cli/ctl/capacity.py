"""`jq-ctl capacity`: how many servers and workers a load needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli.options import DURATION, FAILED, Command, Format, Size, guarded
from jobq.cli.output import Column, Output, details, table
from jobq.core.values import units
from jobq.core.values.units import shown_size
from jobq.operations.capacity import Load, Plan, default_measured, plan, read_measured

if TYPE_CHECKING:
    _Share = click.ParamType[float]
else:  # generic since click 8.2 only
    _Share = click.ParamType


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


SIZE = Size(zero=True)
AT_LEAST_0, AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Load)}


def _figure(
    flag: str, kind: click.ParamType[Any], metavar: str, help: str, name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for the field `name` of Load, with its default. Default: the flag's own name."""
    name = name or flag.removeprefix("--").replace("-", "_")
    default = _DEFAULTS[name]
    if kind is DURATION:
        shown = units.duration_text(default * 1000)
    else:
        shown = f"{default:.0%}" if isinstance(kind, Share) else f"{default}"
    return click.option(
        flag, name, type=kind, default=default, metavar=metavar, help=f"{help} Default: {shown}."
    )


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
@_figure("--payload", SIZE, "SIZE", "Arguments.")
@_figure("--result", SIZE, "SIZE", "Result.")
@_figure("--run-time", DURATION, "TIME", "From a job's start to its end.", "run_s")
@_figure("--cpu-time", DURATION, "TIME", "Processor time of the handler per job.", "cpu_s")
@_figure("--concurrency", AT_LEAST_1, "N", "Slots of each worker process.")
@_figure("--enqueue-batch", AT_LEAST_1, "N", "Jobs that producers enqueue together.")
@_figure("--idle-workers", AT_LEAST_0, "N", "Worker processes that have nothing to do.")
@_figure("--queues", AT_LEAST_1, "N", "Queues, with equal shares of the jobs.")
@_figure("--tenants", AT_LEAST_1, "N", "Tenants; each has at least one queue.")
@_figure(
    "--backlog",
    DURATION,
    "TIME",
    "How long jobs may pile up before the store is full.",
    "backlog_s",
)
@_figure("--keep-events", DURATION, "TIME", "How long the lake keeps events.", "kept_s")
@click.option(
    "--store",
    type=click.Choice(["valkey", "postgres", "sqlite"]),
    default="valkey",
    help="Kind of store. Default: valkey.",
)
@click.option("--jq-server", "server", is_flag=True, help="Clients and workers use jq-servers.")
@click.option("--kafka", is_flag=True, help="A relay ships events to Kafka.")
@click.option("--lake", is_flag=True, help="Spark writes events to a lake.")
@_figure("--cores", AT_LEAST_1, "N", "Cores of a PostgreSQL machine.")
@_figure("--headroom", Share(), "SHARE", "Part of every processor that stays free.")
@click.option(
    "--measured",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Costs measured on your machine by bench.capacity. Default: those that come with jobq.",
)
@click.pass_context
def capacity(ctx: click.Context, /, measured: Path | None, **given: Any) -> None:
    """Estimate the servers and workers that a load needs.

    The answer is calculated from measured costs; no store is opened. docs/scale.md explains the
    model, and how far it was from what was measured. The exit code is 1 if the load does not fit
    into one store of this kind."""
    out = Output(cast(Format, ctx.meta.get("jobq.output") or "table"))

    def run() -> int:
        costs = default_measured() if measured is None else read_measured(measured)
        found = plan(Load(**given), costs)
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
        (kept, f"{shown_size(found.store_bytes)}, most of it {most}"),
        ("network of the store", f"{shown_size(found.network_bytes_per_s)}/s"),
    ]
    if load.store == "valkey":
        pairs.append(("connections per primary", f"{cost.connections:,}"))
    if cost.log_bytes_per_s:
        pairs.append(("write-ahead log", f"{shown_size(cost.log_bytes_per_s)}/s"))
    if load.server:
        pairs.append(("network of jq-servers", f"{shown_size(cost.server_bytes_per_s)}/s"))
    if found.lake_bytes:
        pairs.append(("disk of the lake", shown_size(found.lake_bytes)))
    notes = [Text("! ", style="yellow") + Text(note) for note in found.notes]
    return Group(needs, Text(), details(pairs), *notes)
