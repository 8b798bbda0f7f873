"""A task that was renamed and changed, for a test in child processes."""

from __future__ import annotations

from typing import Any

from jobq import Queue

queue = Queue("renamed", "memory://apart")


def from_dollars(dollars: float) -> dict[str, Any]:
    """Jobs of the first version had dollars."""
    return {"cents": round(dollars * 100)}


@queue.task(name="charge.2", aliases={"charge": from_dollars}, executor="process")
def charge(cents: int) -> int:
    """The second version."""
    return cents
