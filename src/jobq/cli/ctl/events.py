"""`jq-ctl events`: print the event log, or follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import chain, groupby
from operator import attrgetter

import click
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.options import Command, Ctl, on_store
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import Kind, QueueKind
from jobq.operations.log import LogFollower

_KIND_STYLES = {
    "accepted": "cyan",
    "started": "yellow",
    "completed": "green",
    "failed": "bold red",
    "retried": "red",
    "stalled": "magenta",
    "cancelled": "bright_black",
    "gap": "bold red",
}
_KINDS = [*(kind.value for kind in Kind), *(kind.value for kind in QueueKind), "gap"]
Entries = AsyncIterator[list[EventRecord]]
Wanted = Callable[[EventRecord], bool]
_POLL = (
    1.0  # seconds: --follow also polls, because signals can be lost and a new queue sends none yet
)


@click.command(
    cls=Command,
    examples="""
    jq-ctl events                             # the last 50
    jq-ctl events --follow -q billing         # as they happen
    jq-ctl events --job inv-8 --all           # the complete history of one job
    jq-ctl events -q billing --after 1042 -o json
    """,
)
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue. Repeat for several. Default: all queues.",
)
@click.option(
    "-f",
    "--follow/--no-follow",
    help="Print new events until interrupted, or until --limit are printed. "
    "Default: print past events and exit.",
)
@click.option("--job", "job", metavar="ID", help="Only events of this job.")
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(_KINDS),
    multiple=True,
    help="Only events of this kind. Repeat for several.",
)
@click.option(
    "--after",
    metavar="POSITION",
    help="Only events after this position in the log, oldest first. Needs one --queue.",
)
@click.option("--all", "everything", is_flag=True, help="All events that the store still has.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print the last N events (default: 50). With --after or --follow: stop after about N.",
)
@on_store
async def events(
    ctl: Ctl,
    queues: tuple[str, ...],
    follow: bool,
    job: str | None,
    kinds: tuple[str, ...],
    after: str | None,
    everything: bool,
    limit: int | None,
) -> None:
    """Print events: the latest, all, or new ones as they happen."""
    if after is not None and len(queues) != 1:
        raise click.UsageError("--after is a position in the log of one queue: add --queue")
    if after is not None:
        await _check_position(ctl, queues[0], after)
    wanted = partial(_wanted, job=job, kinds=frozenset(kinds))
    async with aclosing(
        _entries(ctl, queues, follow=follow, after=after, everything=everything)
    ) as entries:
        if follow:
            await _print_as_they_come(ctl, entries, wanted, limit)
            return
        if after is not None or everything:
            kept = await _first(entries, wanted, limit)
        else:
            kept = await _last(entries, wanted, limit or 50)
    ctl.out.show(
        [documents.event(e) for e in kept],
        lambda: Text("\n").join(line(e) for e in kept) if kept else None,
    )
    if not kept:
        ctl.out.note("no such events")


async def _check_position(ctl: Ctl, queue: str, position: str) -> None:
    """Raise UsageError for an invalid position. Only the store knows its format."""
    try:
        await ctl.backend.store.read_events(ctl.backend.name(queue), after=position, limit=1)
    except ValueError as e:
        raise click.UsageError(
            f"--after {position}: not a valid position; use the position of an event, or 0 for the "
            "oldest event"
        ) from e


def _wanted(event: EventRecord, *, job: str | None, kinds: frozenset[str]) -> bool:
    return (job is None or event.job == job) and (not kinds or str(event.kind) in kinds)


async def _print_as_they_come(
    ctl: Ctl, entries: Entries, wanted: Wanted, limit: int | None
) -> None:
    printed = 0
    async for entry in entries:
        for event in filter(wanted, entry):
            ctl.out.stream(documents.event(event), partial(line, event))
            printed += 1
        if limit is not None and printed >= limit:
            return


async def _first(entries: Entries, wanted: Wanted, limit: int | None) -> list[EventRecord]:
    """About `limit` events, sorted by time.

    Events that were written together share a position, so they are never split."""
    kept: list[EventRecord] = []
    async for entry in entries:
        kept += filter(wanted, entry)
        if limit is not None and len(kept) >= limit:
            break
    return _by_time(kept)


async def _last(entries: Entries, wanted: Wanted, limit: int) -> list[EventRecord]:
    """The last `limit` events of all queues, sorted by time.

    The logs are read one after the other, so the last `limit` events of each are kept."""
    kept: dict[QueueName, deque[EventRecord]] = {}
    async for entry in entries:
        kept.setdefault(entry[0].queue, deque(maxlen=limit)).extend(filter(wanted, entry))
    return _by_time(chain.from_iterable(kept.values()))[-limit:]


def _by_time(events: Iterable[EventRecord]) -> list[EventRecord]:
    # The sort is stable, so events of one queue stay in the order of its log.
    return sorted(events, key=lambda e: e.at_ms)


async def _entries(
    ctl: Ctl, queues: Sequence[str], *, follow: bool, after: str | None, everything: bool
) -> AsyncGenerator[list[EventRecord], None]:
    """Read the queues' logs, one log entry (a list of events) at a time.

    Without `follow`, stop at the current end of each log."""
    start = after if after is not None else (None if follow and not everything else "0")
    log = LogFollower(ctl.backend.store)
    for record in await ctl.backend.known(queues):
        await log.begin(record.queue, start, until_now=not follow)
    while True:
        async with log.listening() as grown:
            for queue in log.positions:
                async for page in log.kept(queue):
                    for _, entry in groupby(page.events, key=attrgetter("position")):
                        yield list(entry)
            if not follow:
                return
            await grown.next(_POLL)
        for record in [] if queues else await ctl.backend.queues():
            if record.queue not in log.positions:  # it is new, so it is read from its beginning
                await log.begin(record.queue, "0")


def line(event: EventRecord) -> Text:
    """`12:30:01.250  billing  started    inv-8  charge  run 1 on web-3-4711-96f22d`."""
    kind = str(event.kind)
    parts = [
        Text(text.clock(event.at_ms), style="bright_black"),
        Text(event.queue.queue),
        Text(f"{kind:<9}", style=_KIND_STYLES.get(kind, "")),
        Text(f"{event.job:<26}" if event.job else ""),
        Text(text.clean(event.name)),
        Text(_about(event), style="bright_black"),
    ]
    return Text("  ").join(part for part in parts if part.plain)


def _about(event: EventRecord) -> str:
    parts = []
    if event.kind == Kind.STARTED:
        parts.append(f"run {event.attempt} on {event.worker}")
    if event.kind in (Kind.COMPLETED, Kind.FAILED, Kind.RETRIED) and event.started_ms is not None:
        parts.append(f"after {text.duration(max(0, event.at_ms - event.started_ms))}")
    if event.due_ms is not None and event.due_ms > event.at_ms:
        parts.append(f"due in {text.duration(event.due_ms - event.at_ms)}")
    if event.reason and event.reason not in (str(event.kind), "error"):
        parts.append(text.clean(event.reason))
    if event.error:
        parts.append(text.clean(event.error))
    if event.actor:
        parts.append(f"by {text.clean(event.actor)}")
    return " · ".join(parts)
