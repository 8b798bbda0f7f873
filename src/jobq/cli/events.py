"""`jq-ctl events`: what happened, and what is happening."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

import click
from rich.text import Text

from jobq.cli import documents, text
from jobq.cli.options import Command, Ctl, on_store
from jobq.core.records import EventRecord, QueueName, Topic
from jobq.core.states import Kind

_KIND_STYLES = {
    "accepted": "cyan", "started": "yellow", "completed": "green", "failed": "bold red", "retried": "red", "stalled": "magenta",
    "cancelled": "bright_black", "gap": "bold red",
}  # fmt: skip
_LOOK = 1.0  # signals can be lost, and new queues have none yet: look this often as well


@click.command(
    cls=Command,
    examples="""
    jq-ctl events                             # the last 50
    jq-ctl events --follow -q billing         # as they happen
    jq-ctl events --job inv-8 --all           # one job's whole story
    jq-ctl events -q billing --after 1042 -o json
    """,
)
@click.option("-q", "--queue", "queues", metavar="NAME", multiple=True, help="Only this queue (may be given several times).")
@click.option("-f", "--follow", is_flag=True, help="From now on, until interrupted (or --limit are printed).")
@click.option("--job", "job", metavar="ID", help="Only this job.")
@click.option("--kind", "kinds", type=click.Choice([*(k.value for k in Kind), "gap"]), multiple=True, help="Only these kinds.")
@click.option("--after", metavar="POSITION", help="Those after this position of a queue's log, oldest first.")
@click.option("--all", "everything", is_flag=True, help="All that are kept.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many. Default: the last 50; with --follow, no end")
@on_store
async def events(
    ctl: Ctl, queues: tuple[str, ...], follow: bool, job: str | None, kinds: tuple[str, ...], after: str | None, everything: bool,
    limit: int | None,
) -> None:  # fmt: skip
    """Print lifecycle events: the latest, all that are kept, or those that come."""
    if after is not None and len(queues) != 1:
        raise click.UsageError("--after is a position in one queue's log: give that --queue too")
    found = _events(ctl, queues, follow=follow, after=after, everything=everything)
    wanted = (e async for e in found if (job is None or e.job == job) and (not kinds or str(e.kind) in kinds))
    if follow:
        printed = 0
        async for event in wanted:
            _print(ctl, event)
            if (printed := printed + 1) == limit:
                return
        return
    if after is not None and limit is not None:
        kept = deque([e async for e in _first(wanted, limit)])
    else:
        kept = deque([e async for e in wanted], maxlen=None if everything or after is not None else limit or 50)
    ordered = sorted(kept, key=lambda e: e.at_ms)  # stable: within one queue the log's own order stays
    ctl.out.show([documents.event(e) for e in ordered], lambda: Text("\n").join(line(e) for e in ordered) if ordered else None)
    if not ordered:
        ctl.out.note("no such events")


def _print(ctl: Ctl, event: EventRecord) -> None:
    ctl.out.stream(documents.event(event), lambda: line(event))


async def _first(events: AsyncIterator[EventRecord], limit: int) -> AsyncIterator[EventRecord]:
    n = 0
    async for event in events:
        yield event
        if (n := n + 1) == limit:
            return


async def _events(
    ctl: Ctl, queues: Sequence[str], *, follow: bool, after: str | None, everything: bool
) -> AsyncIterator[EventRecord]:
    """Events of the queues, in each one's order. Ends at the present unless it follows."""
    start = after if after is not None else (None if follow and not everything else "0")
    positions: dict[QueueName, str | None] = {}
    # A queue that appears while following is read from its beginning: it was made after we began to look.
    for record in await ctl.backend.known(queues):
        positions[record.queue] = start
        if start is None:
            positions[record.queue] = (await ctl.backend.within(ctl.backend.store.read_events(record.queue))).position
    while True:
        topics = [Topic("log", queue, None) for queue in positions]
        async with ctl.backend.store.listen(topics) as signals:
            async for event in _drain(ctl, positions):
                yield event
            if not follow:
                return
            await _heard(signals)
        if not queues:
            for record in await ctl.backend.queues():
                positions.setdefault(record.queue, "0")


async def _drain(ctl: Ctl, positions: dict[QueueName, str | None]) -> AsyncIterator[EventRecord]:
    for queue in positions:
        while True:
            page = await ctl.backend.within(ctl.backend.store.read_events(queue, after=positions[queue] or "0"))
            for event in page.events:
                yield event
            if page.position == positions[queue]:
                break
            positions[queue] = page.position


async def _heard(signals: AsyncIterator[object]) -> None:
    try:
        async with asyncio.timeout(_LOOK):
            await anext(signals, None)
    except TimeoutError:
        pass


def line(event: EventRecord) -> Text:
    """`12:30:01.250  billing  started    inv-8  charge  run 1 on web-3:4711`."""
    kind = str(event.kind)
    parts = [
        Text(text.clock(event.at_ms), style="bright_black"),
        Text(event.queue.queue),
        Text(f"{kind:<9}", style=_KIND_STYLES.get(kind, "")),
        Text(f"{event.job:<26}"),
        Text(text.clean(event.name)),
        Text(_about(event), style="bright_black"),
    ]
    return Text("  ").join(part for part in parts if part.plain)


def _about(event: EventRecord) -> str:
    said = []
    if event.kind == Kind.STARTED:
        said.append(f"run {event.attempt} on {event.worker}")
    if event.kind in (Kind.COMPLETED, Kind.FAILED, Kind.RETRIED) and event.started_ms is not None:
        said.append(f"after {text.duration(max(0, event.at_ms - event.started_ms))}")
    if event.due_ms is not None and event.due_ms > event.at_ms:
        said.append(f"due in {text.duration(event.due_ms - event.at_ms)}")
    if event.reason and event.reason not in (str(event.kind), "error"):
        said.append(text.clean(event.reason))
    if event.error:
        said.append(text.clean(event.error))
    return " · ".join(said)
