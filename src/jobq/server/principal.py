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


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a call."""

    subject: str
    """The name of the caller in logs, and as `actor` in events. Empty if nobody checks tokens."""
    tenant: str | None
    """The tenant that the caller belongs to. None: every tenant."""
    scopes: frozenset[Scope]
    expires_s: float | None = None
    """When the token ends, in seconds since the epoch. None: never."""

    def may(self, needed: frozenset[Scope]) -> bool:
        """Whether one of the needed scopes is there. `admin` includes all others."""
        return not needed or "admin" in self.scopes or bool(self.scopes & needed)


ANYONE = Principal(subject="", tenant=None, scopes=SCOPES)
"""Every caller of a server that does not check tokens."""
