"""Schedules and their next times."""

from __future__ import annotations

from jobq.web.data.shown import Shown
from jobq.web.data.view import Shape, View


class ScheduleRow(Shape):
    """A schedule."""

    tenant: str
    queue: str
    id: str
    name: str
    """The task."""
    when: str
    """In words, e.g. `0 9 * * 1-5 (Europe/Berlin)` or `every 5 min`."""
    next_ms: int | None
    """None: it waits for its job to end, or it is over."""
    upcoming_ms: tuple[int, ...]
    """Up to 5 times, `next_ms` first."""
    last_ms: int | None
    fired: int
    limit: int | None
    paused: bool
    catch_up: str
    end_ms: int | None
    arguments: Shown
    created_ms: int


class ScheduleList(Shape):
    """Schedules by queue. At most 500."""

    schedules: tuple[ScheduleRow, ...]
    complete: bool


async def schedules(
    view: View, *, tenant: str | None = None, queue: str | None = None
) -> ScheduleList:
    """Schedules of a queue, of a tenant, or of all queues that the caller may see."""
    raise NotImplementedError
