"""Actions: what an operator does from the dashboard, one row of `ACTIONS` each.

The API has a POST route for every row, and the pages send their forms to these routes. The scope
that a row needs is that of its call in `jobq.server.access`. The guarded store checks it again, and
records who acted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jobq.server.access import CALLS
from jobq.server.principal import Scope
from jobq.web.data.view import Shape, View


class Done(Shape):
    """What an action has changed."""

    changed: int
    """Jobs, queues, schedules or workers. 0: there was nothing to change."""
    message: str
    """For a person, e.g. `Paused billing.`"""


class BulkDone(Shape):
    """One step of a bulk action: it changes up to 500 jobs. Send the same body again with `cursor`
    and `began_ms` of this reply until `cursor` is None."""

    changed: int
    skipped: int
    """Jobs that had left the state for the command."""
    looked_at: int
    cursor: str | None
    began_ms: int
    message: str


# ── the bodies of requests ────────────────────────────────────────────────────────────────────────


class QueueBody(Shape):
    """A queue."""

    tenant: str
    queue: str


class HoldBody(QueueBody):
    """How long to hold a queue or one of its keys."""

    seconds: float
    key: str | None = None


class KeyBody(QueueBody):
    """A queue or one of its keys."""

    key: str | None = None


class LimitsBody(QueueBody):
    """The limits of a queue or of one key. `reset` restores the declared ones.

    What is left out is no limit. A rate is `100/1m`, or `10+0.5/s` for a bucket of 10 tokens.
    """

    limit: int | None = None
    rate: str | None = None
    key_limit: int | None = None
    key_rate: str | None = None
    max_waiting: int | None = None
    key: str | None = None
    reset: bool = False


class PurgeBody(QueueBody):
    """Which ended jobs to remove: completed, failed or cancelled."""

    state: str
    older_than_s: float = 0.0


class ClearBody(QueueBody):
    """Cancel the waiting jobs of a queue, with `delayed` also delayed and blocked ones."""

    delayed: bool = False


class LockBody(QueueBody):
    """A unique lock."""

    lock: str


class JobBody(Shape):
    """A job."""

    tenant: str
    queue: str
    id: str


class CancelBody(JobBody):
    """A job to cancel, with `cascade` also the jobs it waits for."""

    cascade: bool = False


class PriorityBody(JobBody):
    """The new priority of a job that has never started."""

    priority: int


class RescheduleBody(JobBody):
    """When a waiting or delayed job is due: in `delay_s`, or at a time."""

    delay_s: float = 0.0
    at_ms: int | None = None


class UpdateBody(JobBody):
    """The new arguments of a job that has never started, as JSON: a list, an object, or both as
    `{"args": [], "kwargs": {}}`."""

    arguments: str


class SignalBody(JobBody):
    """A signal to a job. `value` is JSON."""

    name: str
    value: str = "null"


class BulkBody(Shape):
    """Which jobs a bulk action means: the fields of a JobQuery. At least one state is needed."""

    tenant: str
    queue: str
    state: str
    name: str | None = None
    key: str | None = None
    error: str | None = None
    created_after_ms: int | None = None
    created_before_ms: int | None = None
    ended_after_ms: int | None = None
    ended_before_ms: int | None = None
    cursor: str | None = None
    began_ms: int | None = None
    """When the first step was made. Jobs that have ended since are left alone."""


class ScheduleBody(Shape):
    """A schedule."""

    tenant: str
    queue: str
    id: str


class WorkerBody(Shape):
    """A worker."""

    name: str


class ConcurrencyBody(WorkerBody):
    """How many jobs the worker runs at once from now on."""

    concurrency: int


# ── the table ─────────────────────────────────────────────────────────────────────────────────────


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of actions."""

    name: str
    """`queue.pause` is POST /api/v1/queue/pause."""
    call: str
    """The call of the Store contract whose scope the action needs."""
    body: type[Shape]
    run: Callable[[View, Any], Awaitable[Done | BulkDone]]
    reply: type[Shape] = Done
    admin: bool = False
    """Whether it needs the scope admin, whatever the call needs."""

    @property
    def path(self) -> str:
        """The path below /api/v1."""
        return "/" + self.name.replace(".", "/")

    @property
    def scopes(self) -> frozenset[Scope]:
        """One of these scopes is enough. `admin` is always enough."""
        return frozenset({"admin"}) if self.admin else CALLS[self.call].scopes

    def allowed(self, view: View) -> bool:
        """Whether the caller may do it: pages show the button only then."""
        return not view.read_only and view.principal.may(self.scopes)


async def _later(view: View, body: Any) -> Done:
    raise NotImplementedError


ACTIONS: dict[str, Action] = {
    action.name: action
    for action in (
        Action(name="queue.pause", call="pause", body=QueueBody, run=_later),
        Action(name="queue.resume", call="resume", body=QueueBody, run=_later),
        Action(name="queue.hold", call="hold", body=HoldBody, run=_later),
        Action(name="queue.release-hold", call="release_hold", body=KeyBody, run=_later),
        Action(name="queue.limits", call="set_limits", body=LimitsBody, run=_later),
        Action(name="queue.clear", call="purge_pending", body=ClearBody, run=_later),
        Action(name="queue.purge", call="purge_ended", body=PurgeBody, run=_later),
        Action(name="queue.release-lock", call="release_lock", body=LockBody, run=_later),
        Action(name="job.cancel", call="alter", body=CancelBody, run=_later),
        Action(name="job.rerun", call="alter", body=JobBody, run=_later),
        Action(name="job.revive", call="alter", body=JobBody, run=_later),
        Action(name="job.promote", call="alter", body=JobBody, run=_later),
        Action(name="job.reprioritise", call="alter", body=PriorityBody, run=_later),
        Action(name="job.reschedule", call="alter", body=RescheduleBody, run=_later),
        Action(name="job.update", call="alter", body=UpdateBody, run=_later),
        Action(name="job.signal", call="alter", body=SignalBody, run=_later),
        Action(name="job.remove", call="alter", body=JobBody, run=_later, admin=True),
        Action(name="jobs.rerun", call="alter", body=BulkBody, run=_later, reply=BulkDone),
        Action(name="jobs.cancel", call="alter", body=BulkBody, run=_later, reply=BulkDone),
        Action(name="jobs.promote", call="alter", body=BulkBody, run=_later, reply=BulkDone),
        Action(
            name="jobs.remove", call="alter", body=BulkBody, run=_later, reply=BulkDone, admin=True
        ),
        Action(name="schedule.run", call="put", body=ScheduleBody, run=_later),
        Action(name="schedule.pause", call="pause_schedule", body=ScheduleBody, run=_later),
        Action(name="schedule.resume", call="pause_schedule", body=ScheduleBody, run=_later),
        Action(name="schedule.remove", call="drop_schedule", body=ScheduleBody, run=_later),
        Action(name="worker.drain", call="ask_worker", body=WorkerBody, run=_later),
        Action(name="worker.resume", call="ask_worker", body=WorkerBody, run=_later),
        Action(name="worker.stop", call="ask_worker", body=WorkerBody, run=_later),
        Action(name="worker.stop-now", call="ask_worker", body=WorkerBody, run=_later),
        Action(name="worker.concurrency", call="ask_worker", body=ConcurrencyBody, run=_later),
    )
}
"""By name."""
