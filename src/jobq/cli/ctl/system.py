"""`jq-ctl status` and `jq-ctl version`: the store as a whole, and the installation."""

from __future__ import annotations

import asyncio
import platform
import time

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl.queue_view import queue_table, summarize
from jobq.cli.options import Command, Ctl, chosen_url, fail, guarded, on_store
from jobq.cli.output import Column, Output, details, table
from jobq.core.records.states import State
from jobq.core.values.units import shown_size
from jobq.core.version import __version__
from jobq.errors import StoreUnavailable
from jobq.stores.base import database_of
from jobq.stores.base.optional import DatabaseReport, TableReport

# How the database of a store is printed by `jq-ctl status --verbose`.

OLD_S = 600.0
"""Seconds. A transaction that is open for longer lets the tables grow noticeably."""
DEAD_ROWS = 100_000
"""Dead rows of a table that are worth a notice: autovacuum normally keeps them far below."""
NEARLY_FULL = 0.9
"""The part of max_connections that is worth a notice."""

_COLUMNS = (
    Column("TABLE"),
    *(
        Column(name, right=True)
        for name in ("ROWS", "DEAD", "SIZE", "INDEXES", "BLOAT", "VACUUMED")
    ),
)


def database_view(found: DatabaseReport) -> RenderableType:
    """The server, the oldest transaction, and a table of tables."""
    oldest = found.oldest
    return Group(
        details(
            [
                ("Server", f"{found.server}, {found.connections} of {found.max_connections} "
                 "connections in use"),
                (
                    "Oldest transaction",
                    f"{text.duration(oldest.age_s * 1000)}, {oldest.held_by}"
                    if oldest is not None
                    else "none",
                ),
            ]
        ),
        Text(),
        table(_COLUMNS, [_row(each) for each in found.tables]),
    )  # fmt: skip


def database_notices(found: DatabaseReport) -> list[str]:
    """What needs attention."""
    notices = []
    if found.oldest is not None and found.oldest.age_s > OLD_S:
        notices.append(
            f"{found.oldest.held_by} has been in a transaction for "
            f"{text.duration(found.oldest.age_s * 1000)}: dead rows cannot be removed meanwhile"
        )
    if found.connections > NEARLY_FULL * found.max_connections:
        notices.append(f"{found.connections} of {found.max_connections} connections are in use")
    notices += [
        f"{each.name} has {each.dead:,} dead rows: check that autovacuum runs"
        for each in found.tables
        if each.dead > max(DEAD_ROWS, each.rows)
    ]
    return notices


def _row(each: TableReport) -> list[str]:
    now_ms = int(time.time() * 1000)
    return [
        each.name,
        f"{each.rows:,}",
        f"{each.dead:,}",
        shown_size(each.table_bytes),
        shown_size(each.index_bytes),
        "?" if each.bloat_bytes is None else shown_size(each.bloat_bytes),
        "never" if each.vacuumed_ms is None else text.relative(each.vacuumed_ms, now_ms),
    ]


@click.command(
    cls=Command, examples="jq-ctl status\njq-ctl --url valkey://localhost:6379 status -o json"
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Also show the database (PostgreSQL): sizes of tables and indexes, dead rows, index "
    "bloat, connections, and the oldest transaction.",
)
@on_store
async def status(ctl: Ctl, verbose: bool) -> None:
    """Show the store's queues and workers, and what needs attention."""
    began = time.monotonic()
    records = await ctl.backend.queues()
    answered_ms = (time.monotonic() - began) * 1000
    queues = [summarize(r, await ctl.backend.store.stats(r.queue)) for r in records]
    workers = [
        w
        for w in await ctl.backend.store.workers()
        if any(q.tenant == ctl.backend.tenant for q in w.queues)
    ]
    totals = {s: sum(q.stats.counts.get(s, 0) for q in queues) for s in State}
    notices = [
        *(f"{q.record.queue.queue} is paused" for q in queues if q.stats.paused),
        *(
            f"{q.record.queue.queue} has {text.plural(n, 'job')} waiting and no worker"
            for q in queues
            if (n := q.stats.counts.get(State.WAITING, 0)) and not q.stats.workers
        ),
        *(
            f"{q.record.queue.queue} has {text.plural(n, 'failed job')}"
            for q in queues
            if (n := q.stats.counts.get(State.FAILED, 0))
        ),
    ]
    database = await _database(ctl) if verbose else None
    if database is not None:
        notices += database_notices(database)
    document = {
        "url": ctl.backend.store.url,
        "tenant": ctl.backend.tenant,
        "answered_ms": round(answered_ms, 3),
        "counts": {s.value: n for s, n in totals.items()},
        "workers": len(workers),
        "slots": sum(w.concurrency for w in workers),
        "notices": notices,
        "queues": [q.document for q in queues],
        **({} if database is None else {"database": msgspec.to_builtins(database)}),
    }

    def render() -> RenderableType:
        busy = sum(w.active for w in workers)
        slots = sum(w.concurrency for w in workers)
        parts: list[RenderableType] = [
            details(
                [
                    ("Store", f"{ctl.backend.store.url}  (replied in {answered_ms:.1f} ms)"),
                    (
                        "Workers",
                        f"{len(workers)}, {busy:,} of {slots:,} slots busy" if workers else "none",
                    ),
                    (
                        "Jobs",
                        Text(", ").join(_counted(s, n) for s, n in totals.items() if n) or "none",
                    ),
                ]
            )
        ]
        if queues:
            parts += [Text(), queue_table(queues)]
        if database is not None:
            parts += [Text(), database_view(database)]
        parts += [Text("! ", style="yellow") + Text(notice) for notice in notices]
        return Group(*parts)

    ctl.out.show(document, render)


async def _database(ctl: Ctl) -> DatabaseReport | None:
    """The database of the store; None if it has none that can be inspected."""
    tables = database_of(ctl.backend.store)
    if tables is None:
        ctl.out.note("this store has no tables to show: --verbose adds something on PostgreSQL")
        return None
    return await ctl.backend.within(tables.report())


def _counted(state: State, n: int) -> Text:
    return Text(f"{n:,} {state.value}", style=text.STATE_STYLES[state])


@click.command(
    cls=Command,
    examples="jq-ctl version\njq-ctl --server-addr queue.internal:50051 version -o json",
)
@click.pass_context
def version(ctx: click.Context) -> None:
    """Print the versions of jobq, Python and the platform.

    With a jq-server, also the version of the server."""
    facts = {
        "jobq": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if (chosen_url(ctx) or "").startswith(("grpc://", "grpcs://")):
        ctx.exit(guarded(lambda: asyncio.run(_with_server(Ctl(ctx), facts))))
    out = Output(ctx.meta.get("jobq.output") or "table")
    out.show(facts, lambda: details(facts.items()))


async def _with_server(ctl: Ctl, facts: dict[str, str]) -> int:
    """Print the versions with the server's. Exit code 1 if it does not respond."""
    ask = getattr(ctl.backend.unopened(), "server_version")  # noqa: B009 - only grpc:// has it
    try:
        found = {"server": await ctl.backend.within(ask()), **facts}
    except StoreUnavailable as error:
        ctl.out.show({"server": None, **facts}, lambda: details(facts.items()))
        fail(str(error), cause=error)
    ctl.out.show(found, lambda: details(found.items()))
    return 0
