"""The store for valkey:// and redis:// URLs: one server, Sentinel or Cluster."""

from __future__ import annotations

from jobq.stores.base import Clock, Store
from jobq.stores.valkey.store import ValkeyStore


def open(url: str, clock: Clock | None = None) -> Store:
    """The store at `url`, not connected yet. `open_store` calls this."""
    return ValkeyStore(url, clock)
