"""Reads the state of the database for operators."""

from __future__ import annotations

from typing import Any

from jobq.stores.base.maintained import DatabaseReport, TableReport, TransactionReport
from jobq.stores.postgres.queries import load

_SQL = load("inspection.sql")


def report(tx: Any, schema: str) -> DatabaseReport:
    """Sizes and dead rows of the tables of a schema, and the oldest transaction of the server."""
    version, connections, most = tx.execute(_SQL["server"]).fetchone()
    bloat: dict[str, int] = dict(tx.execute(_SQL["bloat"], (schema,)).fetchall())
    return DatabaseReport(
        server=f"PostgreSQL {version}",
        connections=connections,
        max_connections=most,
        oldest=_oldest(tx),
        tables=tuple(
            TableReport(
                name=name,
                rows=rows,
                dead=dead,
                table_bytes=table_bytes,
                index_bytes=index_bytes,
                bloat_bytes=bloat.get(name),
                vacuumed_ms=vacuumed_ms,
            )
            for name, rows, dead, table_bytes, index_bytes, vacuumed_ms in tx.execute(
                _SQL["tables"], (schema,)
            ).fetchall()
        ),
    )


def _oldest(tx: Any) -> TransactionReport | None:
    row = tx.execute(_SQL["oldest"]).fetchone()
    held_slot = tx.execute(_SQL["replication_slots"]).fetchone()
    if row is None and held_slot is None:
        return None
    age_s, held_by = (0.0, "") if row is None else row
    if held_slot is not None:
        # A replication slot has an age in transactions only.
        name, transactions = held_slot
        held_by = f"{held_by}{'; ' if held_by else ''}{name} ({transactions:,} transactions)"
    return TransactionReport(age_s=age_s, held_by=held_by)
