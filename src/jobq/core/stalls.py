"""How many stalls a job may have, and when it is on its last chance. Pure."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_MAX_STALLS = 3
"""How many lost leases a job survives, if neither its call nor its task sets a limit."""


def max_stalls(own: int | None, name: str, declared: Mapping[str, int]) -> int:
    """The limit for a job of task `name`.

    It is the job's own limit, or else what workers declared for the task, or else the default.
    """
    return declared.get(name, DEFAULT_MAX_STALLS) if own is None else own


def is_last_chance(stalls: int, allowed: int) -> bool:
    """Whether a job that has stalled before would fail with its next stall.

    Never with `allowed=0`, because such a job fails with its first stall.
    """
    return 1 <= allowed <= stalls


def merged(stored: Mapping[str, int], declared: Mapping[str, int]) -> dict[str, int]:
    """What is stored after a worker has declared its tasks.

    A task with the default needs no entry.
    """
    return {name: n for name, n in {**stored, **declared}.items() if n != DEFAULT_MAX_STALLS}
