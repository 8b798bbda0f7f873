"""`jq-ctl schedule …`: jobs that come by the clock."""

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
from jobq.api.schedule import MOST, ScheduleInfo, schedule_info
from jobq.cli import documents, text
from jobq.cli.job_view import job_table
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
from jobq.cli.submit import TIMES, arguments
from jobq.core.policies import Cron, Every
from jobq.core.queues import ScheduleRecord
from jobq.errors import ConfigError

schedule = noun("schedule", "Look at schedules, make them, hold them, and run them now.")
id_argument = click.argument("id")


@schedule.command("list", examples="jq-ctl schedule list\njq-ctl schedule list -q billing -o json")
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue (may be given several times).",
)
@on_store
async def list_(ctl: Ctl, queues: tuple[str, ...]) -> None:
    """List schedules with their next times."""
    found = [schedule_info(record) for record in await _records(ctl, queues)]
    ctl.out.show([_document(info) for info in found], lambda: _table(found))
    if not found:
        ctl.out.note(
            "no schedules: @queue.task(schedule=…) has workers store one, and so does jq-ctl schedule set"
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
    "-q", "--queue", metavar="NAME", default="default", show_default=True, help="The queue."
)
@click.option("--cron", metavar="EXPR", help="Five fields, or six with seconds first.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of --cron.")
@click.option("--every", type=DURATION, metavar="TIME", help="At this distance.")
@click.option(
    "--after-complete",
    is_flag=True,
    help="With --every: from the end of the last job, so that runs never overlap.",
)
@click.option("--start", type=click.DateTime(TIMES), metavar="WHEN", help="Not before.")
@click.option("--end", type=click.DateTime(TIMES), metavar="WHEN", help="Not after.")
@click.option("--limit", type=click.IntRange(min=1), help="So many times.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "one", "all"]),
    default="skip",
    show_default=True,
    help="What becomes of times that passed while nothing ran.",
)
@click.option(
    "--payload",
    metavar="JSON|@FILE|-",
    help="The arguments: an array for positional ones, an object for named ones.",
)
@click.option(
    "-a",
    "--arg",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A named argument; VALUE is JSON, or else text.",
)
@click.option("--priority", type=int, help="Of its jobs. Default: 0")
@click.option("--max-retries", "retry", type=int, help="Of its jobs. Default: the task's own")
@click.option("--key", help="Of its jobs, in a keyed queue.")
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
    """Make jobs of TASK by the clock. The same schedule again changes nothing; another one under ID starts anew."""
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    if cron is not None and after_complete:
        raise click.UsageError("--after-complete goes with --every")
    span: dict[str, Any] = {
        "start": start and start.astimezone(),
        "end": end and end.astimezone(),
        "limit": limit,
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
        target.schedule(id, when, target.named(name, **options), *args, **kwargs)
    )
    info = schedule_info(await _find(ctl, id, queue))
    ctl.out.show(_document(info), lambda: _details(info))


def on_schedule(function: Callable[..., Awaitable[int | None]]) -> Callable[..., None]:
    """A command on the schedule ID: its queue is found, and the command gets that."""

    async def command(ctl: Ctl, /, id: str, queue: str | None, **given: Any) -> int | None:
        found = await _find(ctl, id, queue)
        return await function(ctl, id, await ctl.backend.queue(found.spec.queue.queue), **given)

    update_wrapper(command, function)
    return id_argument(queue_option(on_store(command)))


@schedule.command(examples="jq-ctl schedule pause nightly")
@on_schedule
async def pause(ctl: Ctl, id: str, home: Queue) -> int:
    """Make no more jobs until it is resumed. The same schedule stored again by a worker stays paused."""
    return _say(ctl, home, id, "paused", applied=await ctl.backend.within(home.pause_schedule(id)))


@schedule.command(examples="jq-ctl schedule resume nightly")
@on_schedule
async def resume(ctl: Ctl, id: str, home: Queue) -> int:
    """Go on. Its catch-up policy says what becomes of the times that passed."""
    return _say(
        ctl, home, id, "resumed", applied=await ctl.backend.within(home.resume_schedule(id))
    )


@schedule.command(examples="jq-ctl schedule run nightly")
@on_schedule
async def run(ctl: Ctl, id: str, home: Queue) -> None:
    """Make its job now, beside its times."""
    job = await ctl.backend.within(home.run_schedule(id))
    (record,) = await ctl.backend.locate([job.id], home.name)
    ctl.out.show({**documents.job(record), "duplicate": job.duplicate}, lambda: job_table([record]))
    if job.duplicate:
        ctl.out.note(f"job {job.id} holds the unique lock: nothing was made")


@schedule.command(examples="jq-ctl schedule remove nightly --yes")
@yes_option
@on_schedule
async def remove(ctl: Ctl, id: str, home: Queue, yes: bool) -> int:
    """Forget a schedule; the jobs it made stay. (A worker whose task declares it stores it again when it starts.)"""
    confirm(f"Remove schedule {id!r} of queue {home.name!r}?", yes=yes)
    return _say(ctl, home, id, "removed", applied=await ctl.backend.within(home.unschedule(id)))


# ── finding ───────────────────────────────────────────────────────────────────────────────────────


async def _records(ctl: Ctl, queues: Sequence[str]) -> list[ScheduleRecord]:
    found: list[ScheduleRecord] = []
    for record in await ctl.backend.known(queues):
        found += await ctl.backend.within(
            ctl.backend.store.list_schedules(record.queue, limit=MOST)
        )
    return found


async def _find(ctl: Ctl, id: str, queue: str | None) -> ScheduleRecord:
    found = [
        record
        for record in await _records(ctl, [] if queue is None else [queue])
        if record.spec.id == id
    ]
    if not found:
        fail(
            f"no schedule {id} in {f'queue {queue!r}' if queue else 'any queue'}: jq-ctl schedule list shows those there are"
        )
    if len(found) > 1:
        fail(
            f"schedule {id} is in several queues ({', '.join(r.spec.queue.queue for r in found)}): say which with --queue"
        )
    return found[0]


def _say(ctl: Ctl, home: Queue, id: str, did: str, *, applied: bool) -> int:
    """What became of it; exit code 1 if nothing changed."""
    outcome = {"queue": home.name, "id": id, "did": did, "applied": applied}
    ctl.out.show(
        outcome,
        lambda: Text(
            f"{id} {did}" if applied else f"{id} was not changed: it had been {did} before"
        ),
    )
    return 0 if applied else FAILED


# ── how it looks ──────────────────────────────────────────────────────────────────────────────────


def _document(info: ScheduleInfo) -> dict[str, Any]:
    document = {name: getattr(info, name) for name in info.__struct_fields__ if name != "every"}
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
        waits = info.after_complete and (info.limit is None or info.fired < info.limit)
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
            ("Times", None if info.limit is None else f"{info.fired:,} of {info.limit:,}"),
            ("Fired", info.fired),
            ("Last at", plain(info.last_at)),
            ("Catch-up", info.catch_up),
            ("Stored at", plain(info.created_at)),
        ]
    )
