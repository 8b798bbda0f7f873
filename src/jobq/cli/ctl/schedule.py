"""`jq-ctl schedule …`: schedules, which enqueue jobs at fixed times or intervals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import update_wrapper
from typing import Any, Literal

import click
from rich.console import RenderableType
from rich.text import Text

from jobq.api.queue import Queue
from jobq.api.schedule import ScheduleInfo, schedule_info
from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.job_view import job_table
from jobq.cli.ctl.submit import TIMES, argument_options, arguments
from jobq.cli.options import (
    DURATION,
    FAILED,
    Ctl,
    confirm,
    fail,
    noun,
    on_store,
    queue_option,
    yes_option,
)
from jobq.cli.output import Column, details, plain, table
from jobq.core.policies import Cron, Every
from jobq.core.records.queues import ScheduleRecord
from jobq.errors import ConfigError
from jobq.operations import schedules

schedule = noun("schedule", "List, create, pause, run and remove schedules.")
id_argument = click.argument("id")


@schedule.command("list", examples="jq-ctl schedule list\njq-ctl schedule list -q billing -o json")
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue. Repeat for several. Default: all queues.",
)
@on_store
async def list_(ctl: Ctl, queues: tuple[str, ...]) -> None:
    """List schedules with the time of their next job."""
    found = [schedule_info(record) for record in await _records(ctl, queues)]
    ctl.out.show([_document(info) for info in found], lambda: _table(found))
    if not found:
        ctl.out.note(
            "no schedules: declare one with @queue.task(schedule=…), or use jq-ctl schedule set"
        )


@schedule.command(examples="jq-ctl schedule show nightly")
@id_argument
@queue_option
@on_store
async def show(ctl: Ctl, id: str, queue: str | None) -> None:
    """Show everything about one schedule."""
    info = schedule_info(await _find(ctl, id, queue))
    ctl.out.show(_document(info), lambda: _details(info))


@schedule.command(
    "set",
    examples="""
    jq-ctl schedule set nightly report -q billing --cron '0 3 * * *' --tz Europe/Zurich
    jq-ctl schedule set poll fetch --every 5m --after-complete -a source=bank
    jq-ctl schedule set launch announce --cron '0 8 * * *' --start 2030-01-01T00:00Z --limit 3
    """,
)
@id_argument
@click.argument("name", metavar="TASK")
@click.option(
    "-q", "--queue", metavar="NAME", default="default", show_default=True, help="Queue of the jobs."
)
@click.option(
    "--cron", metavar="EXPR", help="Cron expression: five fields, or six with seconds first."
)
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Time zone of --cron.")
@click.option("--every", type=DURATION, metavar="TIME", help="Interval between jobs, e.g. 5m.")
@click.option(
    "--after-complete",
    is_flag=True,
    help="With --every: count the interval from the end of the last job, so jobs never overlap.",
)
@click.option(
    "--start",
    type=click.DateTime(TIMES),
    metavar="TIME",
    help="No jobs before this time, e.g. 2030-01-31T08:00Z.",
)
@click.option("--end", type=click.DateTime(TIMES), metavar="TIME", help="No jobs after this time.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N jobs. Default: no end.",
)
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="skip",
    show_default=True,
    help="For times missed while no worker ran: enqueue no job, one job, or a job for each.",
)
@argument_options
@click.option("--priority", type=int, metavar="N", help="Priority of the jobs. Default: 0.")
@click.option(
    "--max-retries",
    "retry",
    type=int,
    metavar="N",
    help="Maximum retries of each job. Default: as declared by the task.",
)
@click.option("--key", metavar="KEY", help="Key of the jobs, in a keyed queue.")
@on_store(create=True)
async def set_(
    ctl: Ctl,
    id: str,
    name: str,
    queue: str,
    cron: str | None,
    tz: str,
    every: float | None,
    after_complete: bool,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
    catch_up: Literal["skip", "one", "all"],
    payload: str | None,
    pairs: tuple[str, ...],
    **given: Any,
) -> None:
    """Create the schedule ID, which enqueues jobs of TASK. An existing one is replaced.

    Setting the same schedule again changes nothing."""
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    if cron is not None and after_complete:
        raise click.UsageError("--after-complete needs --every")
    span: dict[str, Any] = {
        "start": start and start.astimezone(),
        "end": end and end.astimezone(),
        "times": limit,
        "catch_up": catch_up,
    }
    try:
        when = (
            Cron(cron, tz=tz, **span)
            if cron is not None
            else Every(every or 0, after_complete=after_complete, **span)
        )
    except ConfigError as e:
        raise click.UsageError(str(e)) from e
    args, kwargs = arguments(payload, pairs)
    target = await ctl.backend.queue(queue)
    options = {option: value for option, value in given.items() if value is not None}
    await ctl.backend.within(
        target.schedule(id, when, target.task_by_name(name, **options), *args, **kwargs)
    )
    info = schedule_info(await _find(ctl, id, queue))
    ctl.out.show(_document(info), lambda: _details(info))


def on_schedule(function: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """Make a command that acts on the schedule ID and gets the queue that has it."""

    async def command(ctl: Ctl, /, id: str, queue: str | None, **given: Any) -> int | None:
        found = await _find(ctl, id, queue)
        return await function(ctl, id, await ctl.backend.queue(found.spec.queue.queue), **given)

    update_wrapper(command, function)
    return id_argument(queue_option(on_store(command)))


@schedule.command(examples="jq-ctl schedule pause nightly")
@on_schedule
async def pause(ctl: Ctl, id: str, home: Queue) -> int:
    """Stop enqueueing jobs until the schedule is resumed.

    It stays paused when a worker that declares it restarts."""
    return _say(ctl, home, id, "paused", applied=await ctl.backend.within(home.pause_schedule(id)))


@schedule.command(examples="jq-ctl schedule resume nightly")
@on_schedule
async def resume(ctl: Ctl, id: str, home: Queue) -> int:
    """Resume a paused schedule. Its catch-up policy applies to the times it missed."""
    return _say(
        ctl, home, id, "resumed", applied=await ctl.backend.within(home.resume_schedule(id))
    )


@schedule.command(examples="jq-ctl schedule run nightly")
@on_schedule
async def run(ctl: Ctl, id: str, home: Queue) -> None:
    """Enqueue its job now, in addition to its regular times."""
    job = await ctl.backend.within(home.run_schedule(id))
    (record,) = await ctl.backend.locate([job.id], home.name)
    ctl.out.show({**documents.job(record), "duplicate": job.duplicate}, lambda: job_table([record]))
    if job.duplicate:
        ctl.out.note(f"no job was enqueued: job {job.id} holds the unique lock")


@schedule.command(examples="jq-ctl schedule remove nightly --yes")
@yes_option
@on_schedule
async def remove(ctl: Ctl, id: str, home: Queue, yes: bool) -> int:
    """Remove a schedule. Jobs that it has enqueued stay.

    A worker whose task declares the schedule creates it again when it starts."""
    confirm(f"Remove schedule {id!r} of queue {home.name!r}?", yes=yes)
    return _say(ctl, home, id, "removed", applied=await ctl.backend.within(home.unschedule(id)))


# ── finding ───────────────────────────────────────────────────────────────────────────────────────


async def _records(ctl: Ctl, queues: Sequence[str]) -> list[ScheduleRecord]:
    names = [record.queue for record in await ctl.backend.known(queues)]
    return await schedules.of_queues(ctl.backend.store, names)


async def _find(ctl: Ctl, id: str, queue: str | None) -> ScheduleRecord:
    found = [
        record
        for record in await _records(ctl, [] if queue is None else [queue])
        if record.spec.id == id
    ]
    if not found:
        fail(
            f"no schedule {id} in {f'queue {queue!r}' if queue else 'any queue'}: "
            "jq-ctl schedule list shows all schedules"
        )
    if len(found) > 1:
        fail(
            f"schedule {id} is in several queues "
            f"({', '.join(r.spec.queue.queue for r in found)}): choose one with --queue"
        )
    return found[0]


def _say(ctl: Ctl, home: Queue, id: str, did: str, *, applied: bool) -> int:
    """Print the result. Returns exit code 1 if nothing changed."""
    outcome = {"queue": home.name, "id": id, "did": did, "applied": applied}
    ctl.out.show(
        outcome,
        lambda: Text(f"{id} {did}" if applied else f"{id} was not changed: it is {did} already"),
    )
    return 0 if applied else FAILED


# ── output ────────────────────────────────────────────────────────────────────────────────────────


def _document(info: ScheduleInfo) -> dict[str, Any]:
    names = zip(info.__struct_fields__, info.__struct_encode_fields__, strict=True)
    document = {shown: getattr(info, name) for name, shown in names if name != "every"}
    every_ms = None if info.every is None else round(info.every.total_seconds() * 1000)
    return {**{name: plain(value) for name, value in document.items()}, "every_ms": every_ms}


def _when(info: ScheduleInfo) -> str:
    if info.every is None:
        return f"{info.cron} ({info.tz})"
    span = text.duration(info.every.total_seconds() * 1000)
    return f"{span} after the last has ended" if info.after_complete else f"every {span}"


def _next(info: ScheduleInfo) -> Text:
    if info.paused:
        return Text("paused", style="yellow")
    if info.next_at is None:
        waits = info.after_complete and (info.times is None or info.fired < info.times)
        return Text("when its job has ended" if waits else "over", style="bright_black")
    return Text(text.relative(round(info.next_at.timestamp() * 1000), int(time.time() * 1000)))


def _table(found: Sequence[ScheduleInfo]) -> RenderableType:
    columns = (
        Column("ID"),
        Column("QUEUE"),
        Column("TASK"),
        Column("WHEN"),
        Column("NEXT"),
        Column("FIRED", right=True),
        Column("LAST"),
    )
    now = int(time.time() * 1000)
    return table(
        columns,
        [
            [
                info.id,
                info.queue,
                info.name,
                _when(info),
                _next(info),
                text.count(info.fired),
                None
                if info.last_at is None
                else text.relative(round(info.last_at.timestamp() * 1000), now),
            ]
            for info in found
        ],
    )


def _details(info: ScheduleInfo) -> RenderableType:
    call = ", ".join(
        [*map(repr, info.args), *(f"{name}={value!r}" for name, value in info.kwargs.items())]
    )
    return details(
        [
            ("Schedule", info.id),
            ("Queue", info.queue),
            ("Job", text.clean(f"{info.name}({call})")),
            ("When", _when(info)),
            ("Next", _next(info)),
            ("Next at", plain(info.next_at)),
            ("From", plain(info.start_at)),
            ("Until", plain(info.end_at)),
            ("Times", None if info.times is None else f"{info.fired:,} of {info.times:,}"),
            ("Fired", info.fired),
            ("Last at", plain(info.last_at)),
            ("Catch-up", info.catch_up),
            ("Stored at", plain(info.created_at)),
        ]
    )
