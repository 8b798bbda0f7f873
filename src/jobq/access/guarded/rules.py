"""What a principal may do, and what belongs to its tenant."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args, get_type_hints

from jobq.access.input_checks import check_word
from jobq.access.principal import Principal, Scope
from jobq.access.quotas import TenantRules
from jobq.access.table import DOORS
from jobq.core.records.jobs import Edge, Filter, QueueName
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import check_queue
from jobq.core.values.checks import as_actor
from jobq.errors import AccessDenied, JobNotFound, Unauthenticated
from jobq.stores.base import Store

_P = ParamSpec("_P")
_R = TypeVar("_R")

ADMIN: frozenset[Scope] = frozenset({"admin"})
READ: frozenset[Scope] = frozenset({"read"})
MAX_LIMIT = 10_000
"""Records or steps that one call may ask for. More is cut: callers ask again for the rest."""
_PLAIN = frozenset({str, int, bool, State, NoneType})
"""Types of arguments that name nothing of a tenant."""
_HOW_MANY = frozenset({"limit", "count", "minutes"})
"""Arguments that say how many records a call asks for."""


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
        """AccessDenied unless the principal's scopes allow this row of the table (table.py). A call
        without a row is refused.

        Unauthenticated if the token has expired, also in the middle of a long stream.
        """
        expires_s = self.principal.expires_s
        if expires_s is not None and self._clock() >= expires_s:
            raise Unauthenticated(
                f"the {self.principal.by} has expired: connect again with a new one"
            )
        if call not in self._allowed:
            if call not in DOORS:
                raise AccessDenied(f"{call} is in no table of access, so nobody may use it")
            have = " ".join(sorted(self.principal.scopes)) or "none"
            raise AccessDenied(
                f"{call} needs the scope {DOORS[call].in_words()}, and the {self.principal.by} of "
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


def passed(
    call: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]], *, makes_queue: bool = False
) -> Callable[Concatenate[Guard, _P], Coroutine[Any, Any, _R]]:
    """A call of the contract with no rules but those of its row and its arguments: the scope, a
    queue of the caller, a bounded number of records, and who an event names.

    `call` is the method of the contract, so the types are the contract's. `makes_queue`: the store
    makes a queue that it does not know, so the quota of queues applies. TypeError if the arguments
    may name anything else that belongs to a tenant.
    """
    name, hints = call.__name__, get_type_hints(call)
    about, *more = list(inspect.signature(call).parameters.values())[1:]
    acts = any(each.name == "actor" for each in more)
    how_many = {each.name for each in more if each.name in _HOW_MANY}
    for each in more:
        hidden = each.kind is not each.KEYWORD_ONLY and each.name in {*how_many, "actor"}
        if hidden or not {*(get_args(hints[each.name]) or [hints[each.name]])} <= _PLAIN:
            raise TypeError(f"{each.name} of {name} needs a rule: write a method that guards it")
    if hints[about.name] not in (QueueName, Filter):
        raise TypeError(f"{name} names no queue: write a method that guards it")

    async def guarded(self: Guard, /, *args: Any, **options: Any) -> Any:
        self.check(name)
        named = args[0] if args else options[about.name]
        queue = named.queue if isinstance(named, Filter) else named
        self._own(queue)
        if makes_queue:
            await self._tenants.admit_queues(self._store, [queue])
        if acts:
            options["actor"] = self._actor(options.get("actor"))
        for each in how_many:
            if each in options:
                options[each] = bounded(options[each])
        return await getattr(self._store, name)(*args, **options)

    guarded.__name__ = guarded.__qualname__ = name
    guarded.__doc__ = call.__doc__
    return guarded


def bounded(limit: int) -> int:
    """The limit of a call, from 0 to MAX_LIMIT. Stores may take a negative one as no limit."""
    return max(0, min(limit, MAX_LIMIT))


def aligned(own: Sequence[bool], replies: Iterable[_R], otherwise: _R) -> list[_R]:
    """Replies in the order of what was asked, with `otherwise` for what was not passed on."""
    rest = iter(replies)
    return [next(rest) if passed else otherwise for passed in own]
