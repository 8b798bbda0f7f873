"""Schedules and their next times."""

from __future__ import annotations

from jobq.core.records.queues import ScheduleRecord, ScheduleSpec
from jobq.core.rules import cron
from jobq.operations import listing
from jobq.operations.schedules import of_queues
from jobq.web.data.shown import Shown, shown_in_row
from jobq.web.data.view import Shape, View

_MAX = 500
_UPCOMING = 5
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class ScheduleRow(Shape, frozen=True, kw_only=True):
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


class ScheduleList(Shape, frozen=True, kw_only=True):
    """Schedules by queue. At most 500."""

    schedules: tuple[ScheduleRow, ...]
    complete: bool


async def schedules(
    view: View, *, tenant: str | None = None, queue: str | None = None
) -> ScheduleList:
    """Schedules of a queue, of a tenant, or of all queues that the caller may see."""
    if tenant is None and queue is None:
        found = await view.store.list_schedules(limit=_MAX + 1)
    else:
        names = [record.queue for record in await listing.queues(view.store, tenant, queue)]
        found = await of_queues(view.store, names, limit=_MAX + 1)
    found.sort(key=lambda each: (*each.spec.queue, each.spec.id))
    return ScheduleList(
        schedules=tuple(_row(view, record) for record in found[:_MAX]), complete=len(found) <= _MAX
    )


def _row(view: View, record: ScheduleRecord) -> ScheduleRow:
    spec = record.spec
    return ScheduleRow(
        tenant=spec.queue.tenant,
        queue=spec.queue.queue,
        id=spec.id,
        name=spec.template.name,
        when=words(spec),
        next_ms=record.next_ms,
        upcoming_ms=_upcoming(record),
        last_ms=record.last_ms,
        fired=record.fired,
        limit=spec.limit,
        paused=record.paused,
        catch_up=spec.catch_up,
        end_ms=spec.end_ms,
        arguments=shown_in_row(
            view, spec.template.payload, spec.template.codec, spec.template.name
        ),
        created_ms=record.created_ms,
    )


def _upcoming(record: ScheduleRecord) -> tuple[int, ...]:
    times: list[int] = []
    at = record.next_ms
    while at is not None and len(times) < _UPCOMING:
        times.append(at)
        if record.spec.after_complete:
            break
        at = cron.next_after(record.spec, at, anchor_ms=at)
    left = None if record.spec.limit is None else max(0, record.spec.limit - record.fired)
    return tuple(times[:left])


def words(spec: ScheduleSpec) -> str:
    """When a schedule makes jobs, e.g. `0 9 * * 1-5 (Europe/Berlin)` or `every 5 min`."""
    if spec.every_ms is None:
        return f"{spec.cron} ({spec.tz})"
    after = " after its job ends" if spec.after_complete else ""
    for ms, unit in _UNITS:
        if spec.every_ms >= ms and spec.every_ms % ms == 0:
            return f"every {spec.every_ms // ms} {unit}{after}"
    return f"every {spec.every_ms / 1000:g} s{after}"
