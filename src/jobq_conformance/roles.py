"""What a store can do. A role is a few methods, a feature of jobs, or both.

A test module declares the roles it needs: `pytestmark = needs("schedules")`. A module that declares
nothing needs every role. A test that calls a method of a role that the store lacks is skipped at
that call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

ROLES: dict[str, tuple[str, ...]] = {
    "jobs": ("migrate", "aclose", "put", "settle", "get"),
    "leases": ("extend",),
    "notes": ("note", "logs"),
    "upkeep": ("tick",),
    "reads": ("find", "skip", "count", "stats", "metrics", "queues"),
    "operators": (
        "alter",
        "pause",
        "resume",
        "purge_pending",
        "purge_ended",
        "obliterate",
        "restore",
    ),
    "limits": ("declare", "set_limits", "hold", "release_hold", "holds"),
    "locks": ("find_lock", "release_lock"),
    "signals": ("sleep", "listen"),
    "schedules": ("put_schedule", "drop_schedule", "pause_schedule", "list_schedules", "fire"),
    "presence": ("beat", "retire", "workers", "ask_worker", "lead"),
    "events": ("read_events", "ack_events", "readers", "remove_reader"),
    "pipelined": ("lanes", "prepare", "expect"),
    # Features of jobs, which no method shows: a store that leaves one out has a `roles` attribute
    # without it.
    "priorities": (),
    "delays": (),
    "unique": (),
    "keyed": (),
    "flows": (),
    "waits": (),
    "steps": (),
    "retention": (),
    "dead_letters": (),
    "meta": (),
}
"""Every role, and the methods it needs."""

_ROLE_OF = {method: role for role, methods in ROLES.items() for method in methods}


def needs(*roles: str) -> pytest.MarkDecorator:
    """Mark tests that need these roles. Every store has `jobs`."""
    unknown = set(roles) - ROLES.keys()
    if unknown:
        raise ValueError(f"there is no role {min(unknown)!r}; there are {', '.join(ROLES)}")
    return pytest.mark.needs(*roles)


def roles_of(store: object) -> frozenset[str]:
    """The roles of a store: those its `roles` attribute names, or else all whose methods it has."""
    complete = {
        role for role, methods in ROLES.items() if all(hasattr(store, method) for method in methods)
    }
    declared = getattr(store, "roles", None)
    if declared is None:
        return frozenset(complete)
    unknown = set(declared) - ROLES.keys()
    if unknown:
        raise ValueError(
            f"{type(store).__name__}.roles names {min(unknown)!r}, which is no role; "
            f"there are {', '.join(ROLES)}"
        )
    missing = set(declared) - complete
    if missing:
        role = min(missing)
        lacks = ", ".join(method for method in ROLES[role] if not hasattr(store, method))
        raise ValueError(f"{type(store).__name__}.roles names {role!r}, for which it lacks {lacks}")
    return frozenset(declared)


def needed(item: pytest.Item) -> frozenset[str]:
    """The roles that a test declares, or every role if it declares none."""
    marks: Iterable[pytest.Mark] = list(item.iter_markers("needs"))
    return (
        frozenset({"jobs", *(role for mark in marks for role in mark.args)})
        if marks
        else frozenset(ROLES)
    )


class Partial:
    """A store that lacks roles.

    A test that calls a method of such a role is skipped at that call.
    """

    def __init__(self, store: Any, roles: frozenset[str]) -> None:
        self._store = store
        self._roles = roles

    def __getattr__(self, name: str) -> Any:
        role = _ROLE_OF.get(name)
        if role is not None and role not in self._roles:
            pytest.skip(lacking([role]))
        return getattr(self._store, name)


def lacking(roles: Iterable[str]) -> str:
    """The reason why a test was skipped. The runner's summary counts these."""
    return f"the store lacks {', '.join(sorted(roles))}"
