"""How many stalls a job may have, and when it is on its last chance. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_MAX_STALLS = 3
"""Lost leases that a job survives if neither its call nor its task says otherwise."""


def max_stalls(own: int | None, name: str, declared: Mapping[str, int]) -> int:
    """The limit of a job of task `name`: its own, else what workers declared for the task, else the
    default.
    """
    return declared.get(name, DEFAULT_MAX_STALLS) if own is None else own


def is_last_chance(stalls: int, allowed: int) -> bool:
    """Whether a job that has stalled before would fail with its next stall.

    `allowed=0` never is: it fails with its first.
    """
    return 1 <= allowed <= stalls


def merged(stored: Mapping[str, int], declared: Mapping[str, int]) -> dict[str, int]:
    """What is stored after a worker declared its tasks. A task at the default needs no entry."""
    return {name: n for name, n in {**stored, **declared}.items() if n != DEFAULT_MAX_STALLS}
