"""What a principal may do, and what belongs to its tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from jobq.access.principal import Principal, Scope
from jobq.access.quotas import TenantRules
from jobq.access.specs import check_word
from jobq.access.table import DOORS
from jobq.core.checks import as_actor
from jobq.core.new_jobs import check_queue
from jobq.core.records import Edge, QueueName
from jobq.errors import AccessDenied, JobNotFound, Unauthenticated
from jobq.stores.base import Store

_R = TypeVar("_R")

ADMIN: frozenset[Scope] = frozenset({"admin"})
READ: frozenset[Scope] = frozenset({"read"})
MAX_LIMIT = 10_000
"""Records or steps that one call may ask for. More is cut: callers ask again for the rest."""


class Guard:
    """Who calls, and what belongs to the caller. The roles of the contract inherit from it."""

    def __init__(
        self,
        store: Store,
        principal: Principal,
        tenants: TenantRules,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._tenants = tenants
        self.principal = principal
        self.url = store.url
        self._clock = clock
        self._claims: dict[tuple[str, int], tuple[str, tuple[QueueName, ...]]] = {}
        """By worker and lane: its last call, and the queues that it claimed from."""
        self._allowed = frozenset(name for name, door in DOORS.items() if door.admits(principal))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def check(self, call: str) -> None:
        """AccessDenied unless the principal's scopes allow this row of the table (table.py).

        Unauthenticated if the token has expired, also in the middle of a long stream.
        """
        expires_s = self.principal.expires_s
        if expires_s is not None and self._clock() >= expires_s:
            raise Unauthenticated(
                f"the {self.principal.by} has expired: connect again with a new one"
            )
        if call not in self._allowed:
            have = " ".join(sorted(self.principal.scopes)) or "none"
            raise AccessDenied(
                f"{call} needs the scope {DOORS[call].said()}, and the {self.principal.by} of "
                f"{self.principal.subject!r} has {have}"
            )

    def _is_own(self, tenant: str) -> bool:
        return self.principal.tenant is None or tenant == self.principal.tenant

    def _own(self, queue: QueueName) -> None:
        check_queue(queue)
        if not self._is_own(queue.tenant):
            raise JobNotFound(f"there is no queue {queue.queue!r} of tenant {queue.tenant!r}")

    def _own_all(self, queues: Iterable[QueueName]) -> None:
        for queue in queues:
            self._own(queue)

    def _own_edges(self, edges: Sequence[Edge]) -> None:
        for edge in edges:
            self._own(edge.job.queue)

    def _named(self, name: str) -> str:
        """The name of a worker or an election in the store."""
        check_word(name, "name")
        tenant = self.principal.tenant
        if tenant is None or name.startswith(f"{tenant}:"):
            return name
        return f"{tenant}:{name}"

    def _actor(self, actor: str | None) -> str | None:
        """Who an event names: the token's subject, and what the caller says about itself."""
        subject = self.principal.subject
        if not subject:
            return as_actor(actor) if actor else actor
        return as_actor(f"{subject} ({actor})" if actor else subject)


def bounded(limit: int) -> int:
    """The limit of a call, from 0 to MAX_LIMIT. Stores may take a negative one as no limit."""
    return max(0, min(limit, MAX_LIMIT))


def in_place(own: Sequence[bool], replies: Iterable[_R], otherwise: _R) -> list[_R]:
    """Replies in the order of what was asked, with `otherwise` for what was not passed on."""
    rest = iter(replies)
    return [next(rest) if passed else otherwise for passed in own]
