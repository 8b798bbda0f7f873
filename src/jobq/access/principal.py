"""Who makes a call, and what a token allows."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Scope = Literal["produce", "work", "read", "admin"]
"""What a token allows within its tenant.

`produce`: submit jobs and schedules, and change single jobs. `work`: claim and settle jobs. `read`:
see jobs, queues, workers and events. `admin`: everything, including what changes whole queues.
"""

SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


class ClientGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the client with a certificate may do, as the configuration says."""

    scopes: list[str] = []
    tenant: str | None = None
    """None: every tenant. Only for clients with the scope admin."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a call."""

    subject: str
    """The caller in logs, and as `actor` in events. Empty if callers are not checked."""
    tenant: str | None
    """The tenant that the caller belongs to. None: every tenant."""
    scopes: frozenset[Scope]
    expires_s: float | None = None
    """When the token ends, in seconds since the epoch. None: never."""
    by: Literal["token", "certificate"] = "token"
    """What the caller proves itself with."""

    def may(self, needed: frozenset[Scope]) -> bool:
        """Whether one of the needed scopes is there. `admin` includes all others."""
        return not needed or "admin" in self.scopes or bool(self.scopes & needed)


ANYONE = Principal(subject="", tenant=None, scopes=SCOPES)
"""Every caller of a server that checks neither tokens nor certificates."""
