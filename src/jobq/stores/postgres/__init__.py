"""postgresql:// and postgres://: the store in a PostgreSQL database."""

from __future__ import annotations

from jobq.stores.base import Clock
from jobq.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore", "open"]


def open(url: str, clock: Clock | None = None) -> PostgresStore:
    """The store at `url`, not connected yet. `open_store` calls this."""
    return PostgresStore(url, clock)
