"""grpc:// and grpcs://: the store of a jq-server."""

from __future__ import annotations

from typing import cast

from jobq.stores.base import Clock, Store
from jobq.stores.remote.store import RemoteStore


def open(url: str, clock: Clock | None = None) -> Store:
    """A handle that is not connected yet. Only a server for tests accepts a clock."""
    return cast(Store, RemoteStore(url, clock))


__all__ = ["RemoteStore", "open"]
