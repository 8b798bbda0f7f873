"""What a store in a database offers to the people who run the database."""

from __future__ import annotations

from typing import Protocol, cast

import msgspec


class TableReport(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a table and of its indexes. Rows and bloat are estimates of the database."""

    name: str
    rows: int
    dead: int
    """Rows that were deleted or replaced, and that vacuum has not removed."""
    table_bytes: int
    index_bytes: int
    bloat_bytes: int | None
    """What the indexes use more than new indexes would; None: there are no statistics yet."""
    vacuumed_ms: int | None
    """When the table was last vacuumed."""


class TransactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The transaction that keeps dead rows from being removed for the longest time."""

    age_s: float
    held_by: str
    """A session, a prepared transaction or a replication slot."""


class DatabaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the database that a store is in."""

    server: str
    connections: int
    max_connections: int
    oldest: TransactionReport | None
    tables: tuple[TableReport, ...]
    """The largest first. Partitions of a table count as one."""


class Maintained(Protocol):
    """A store whose tables somebody maintains. Optional: see `database_of`."""

    async def pending_migration(self) -> str:
        """The SQL that `upgrade` would run; empty if there is nothing to do. Changes nothing."""
        ...

    async def upgrade(self) -> None:
        """Bring the tables up to date, even if the URL forbids it to other programs."""
        ...

    async def report(self) -> DatabaseReport:
        """The state of the database."""
        ...


def database_of(store: object) -> Maintained | None:
    """The store as a `Maintained` one; None if it is not."""
    return cast(Maintained, store) if hasattr(store, "pending_migration") else None
