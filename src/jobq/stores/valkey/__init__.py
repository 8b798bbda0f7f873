"""valkey:// and redis://: one server, Sentinel or Cluster. `open` is what `open_store` calls."""

from __future__ import annotations

from jobq.stores.base import Clock, Store
from jobq.stores.valkey.store import ValkeyStore


def open(url: str, clock: Clock | None = None) -> Store:
    """The store at `url`, not yet connected."""
    return ValkeyStore(url, clock)
