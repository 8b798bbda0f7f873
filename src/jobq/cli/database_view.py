"""How the database of a store is printed by `jq-ctl status --verbose`."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.output import Column, details, table
from jobq.core.sizes import shown_size
from jobq.stores.base.maintained import DatabaseReport, TableReport

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
