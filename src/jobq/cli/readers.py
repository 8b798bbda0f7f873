"""`jq-ctl queue readers` and `queue forget-reader`: for whom a queue's event log is kept."""

from __future__ import annotations

import click

from jobq.cli import text
from jobq.cli.options import Ctl, confirm, fail, on_store, yes_option
from jobq.cli.output import Column, table
from jobq.cli.queue import queue


@queue.command(examples="jq-ctl queue readers\njq-ctl queue readers billing -o json")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@on_store
async def readers(ctl: Ctl, names: tuple[str, ...]) -> None:
    """List who reads these queues' event logs (all queues: no name), and where each stands.

    A relay and a pipeline register by themselves. What a reader has not acknowledged is kept for it."""
    rows = [
        {"queue": record.queue.queue, "reader": reader, "position": position}
        for record in await ctl.backend.known(names)
        for reader, position in (
            await ctl.backend.within(ctl.backend.store.readers(record.queue))
        ).items()
    ]
    columns = [Column("QUEUE"), Column("READER"), Column("POSITION")]
    ctl.out.show(
        rows, lambda: table(columns, [list(map(text.clean, row.values())) for row in rows])
    )
    if not rows:
        ctl.out.note("no readers: a log keeps only its latest events")


@queue.command(
    "forget-reader",
    examples="jq-ctl queue forget-reader trial\njq-ctl queue forget-reader relay billing --yes",
)
@click.argument("reader")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@yes_option
@on_store
async def forget_reader(ctl: Ctl, reader: str, names: tuple[str, ...], yes: bool) -> None:
    """Keep no events for READER any more, in these queues (all: no name). One that comes back may find a gap."""
    store, known = ctl.backend.store, await ctl.backend.known(names)
    held = [r.queue for r in known if reader in await ctl.backend.within(store.readers(r.queue))]
    if not held:
        fail(f"no reader {reader!r} there: jq-ctl queue readers lists them")
    confirm(
        f"Keep no events for {reader!r} any more, in {text.plural(len(held), 'queue')}?", yes=yes
    )
    for name in held:
        await ctl.backend.within(store.remove_reader(name, reader))
    done = f"{reader} forgotten in {text.plural(len(held), 'queue')}"
    ctl.out.show({"reader": reader, "queues": [name.queue for name in held]}, lambda: done)
