"""View: what one request may see of a store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from jobq.access.principal import Principal
from jobq.access.table import CALLS
from jobq.stores.base import Store


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that the API returns. Every field is always present in the JSON."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The store as one caller may use it, and how the dashboard was started."""

    store: Store
    """A guarded store: it refuses what the caller's scopes do not allow, and hides other
    tenants."""
    principal: Principal
    clock: Callable[[], int]
    """Milliseconds since the epoch."""
    read_only: bool = False
    hide_payloads: bool = False
    """Arguments, results, progress, saved values, log lines and messages of errors are left out."""

    @property
    def actor(self) -> str:
        """Who an event of an action names. The guarded store puts the principal in front."""
        return "dashboard"

    @property
    def tenant(self) -> str | None:
        """The only tenant that the caller may see. None: all of them."""
        return self.principal.tenant

    def may(self, call: str) -> bool:
        """Whether the caller may make a call of the Store contract, e.g. `pause`."""
        return CALLS[call].admits(self.principal)

    def now_ms(self) -> int:
        """The time now."""
        return self.clock()


MAX_QUEUES = 500
"""Queues that are looked at to sum them up."""
