"""`jq-ctl queue readers` and `queue forget-reader`: the registered readers of event logs."""

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
    """List the readers of event logs and their positions. Default: of all queues.

    A relay or pipeline registers itself. The store keeps events until every reader has
    acknowledged them."""
    rows = [
        {"queue": record.queue.queue, "reader": reader, "position": position}
        for record in await ctl.backend.known(names)
        for reader, position in (await ctl.backend.store.readers(record.queue)).items()
    ]
    columns = [Column("QUEUE"), Column("READER"), Column("POSITION")]
    ctl.out.show(
        rows, lambda: table(columns, [list(map(text.clean, row.values())) for row in rows])
    )
    if not rows:
        ctl.out.note("no readers: each log keeps only its latest events")


@queue.command(
    "forget-reader",
    examples="jq-ctl queue forget-reader trial\njq-ctl queue forget-reader relay billing --yes",
)
@click.argument("reader")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@yes_option
@on_store
async def forget_reader(ctl: Ctl, reader: str, names: tuple[str, ...], yes: bool) -> None:
    """Stop keeping events for READER in these queues. Default: all queues.

    If the reader returns, it may find a gap in the log."""
    store, known = ctl.backend.store, await ctl.backend.known(names)
    held = [r.queue for r in known if reader in await store.readers(r.queue)]
    if not held:
        fail(f"no reader {reader!r} in these queues: jq-ctl queue readers lists all readers")
    confirm(f"Stop keeping events for {reader!r} in {text.plural(len(held), 'queue')}?", yes=yes)
    for name in held:
        await store.remove_reader(name, reader)
    done = f"reader {reader} removed from {text.plural(len(held), 'queue')}"
    ctl.out.show({"reader": reader, "queues": [name.queue for name in held]}, lambda: done)
