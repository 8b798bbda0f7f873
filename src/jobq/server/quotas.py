"""What each tenant may use: how much may wait, how fast it may submit, how urgent its jobs are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one tenant. None means no such limit."""

    max_waiting: int | None = None
    """Jobs that have not started, in all queues of the tenant."""
    max_payload: int | None = None
    """Bytes of the arguments of one job."""
    max_queues: int | None = None
    max_schedules: int | None = None
    submit_rate: float | None = None
    """Jobs per second, at each server."""
    max_priority: int | None = None
    """The highest priority of a job. The tiers 0 to 9 are the priorities 0 to 9."""


NO_LIMITS = TenantLimits()


class TenantRules:
    """The limits of all tenants."""

    def __init__(
        self,
        default: TenantLimits = NO_LIMITS,
        tenants: Mapping[str, TenantLimits] | None = None,
    ) -> None:
        self._default = default
        self._tenants = dict(tenants or {})

    def limits(self, tenant: str) -> TenantLimits:
        """The limits of a tenant."""
        return self._tenants.get(tenant, self._default)
