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
from jobq.web.data import bodies as b
from jobq.web.data import on_jobs, on_queues, on_workers
from jobq.web.data.bodies import BulkDone as BulkDone
from jobq.web.data.bodies import Done as Done
from jobq.web.data.view import Shape, View


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of actions."""

    name: str
    """`queue.pause` is POST /api/v1/queue/pause."""
    call: str
    """The call of the Store contract whose scope the action needs."""
    body: type[Shape]
    run: Callable[[View, Any], Awaitable[Done | BulkDone]]
    """Its docstring is the description of the route."""
    bulk: bool = False
    """Whether it replies with a BulkDone: one step, to be repeated until there is no cursor."""
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


_TABLE = (
    Action(name="queue.pause", call="pause", body=b.QueueBody, run=on_queues.pause),
    Action(name="queue.resume", call="resume", body=b.QueueBody, run=on_queues.resume),
    Action(name="queue.hold", call="hold", body=b.HoldBody, run=on_queues.hold),
    Action(
        name="queue.release-hold", call="release_hold", body=b.KeyBody, run=on_queues.release_hold
    ),
    Action(name="queue.limits", call="set_limits", body=b.LimitsBody, run=on_queues.limits),
    Action(
        name="queue.clear", call="purge_pending", body=b.ClearBody, run=on_queues.clear, bulk=True
    ),
    Action(
        name="queue.purge", call="purge_ended", body=b.PurgeBody, run=on_queues.purge, bulk=True
    ),
    Action(
        name="queue.release-lock", call="release_lock", body=b.LockBody, run=on_queues.release_lock
    ),
    Action(name="job.cancel", call="alter", body=b.CancelBody, run=on_jobs.cancel),
    Action(name="job.rerun", call="alter", body=b.JobBody, run=on_jobs.rerun),
    Action(name="job.revive", call="alter", body=b.JobBody, run=on_jobs.revive),
    Action(name="job.promote", call="alter", body=b.JobBody, run=on_jobs.promote),
    Action(name="job.reprioritise", call="alter", body=b.PriorityBody, run=on_jobs.reprioritise),
    Action(name="job.reschedule", call="alter", body=b.RescheduleBody, run=on_jobs.reschedule),
    Action(name="job.update", call="alter", body=b.UpdateBody, run=on_jobs.update),
    Action(name="job.signal", call="alter", body=b.SignalBody, run=on_jobs.signal),
    Action(name="job.remove", call="alter", body=b.JobBody, run=on_jobs.remove, admin=True),
    Action(name="flow.rerun", call="alter", body=b.JobBody, run=on_jobs.rerun_flow),
    Action(name="jobs.rerun", call="alter", body=b.BulkBody, run=on_jobs.rerun_all, bulk=True),
    Action(name="jobs.cancel", call="alter", body=b.BulkBody, run=on_jobs.cancel_all, bulk=True),
    Action(name="jobs.promote", call="alter", body=b.BulkBody, run=on_jobs.promote_all, bulk=True),
    Action(
        name="jobs.remove",
        call="alter",
        body=b.BulkBody,
        run=on_jobs.remove_all,
        bulk=True,
        admin=True,
    ),
    Action(name="schedule.run", call="put", body=b.ScheduleBody, run=on_queues.run_schedule),
    Action(
        name="schedule.pause",
        call="pause_schedule",
        body=b.ScheduleBody,
        run=on_queues.pause_schedule,
    ),
    Action(
        name="schedule.resume",
        call="pause_schedule",
        body=b.ScheduleBody,
        run=on_queues.resume_schedule,
    ),
    Action(
        name="schedule.remove",
        call="drop_schedule",
        body=b.ScheduleBody,
        run=on_queues.remove_schedule,
    ),
    Action(name="worker.drain", call="ask_worker", body=b.WorkerBody, run=on_workers.drain),
    Action(name="worker.resume", call="ask_worker", body=b.WorkerBody, run=on_workers.resume),
    Action(name="worker.stop", call="ask_worker", body=b.WorkerBody, run=on_workers.stop),
    Action(name="worker.stop-now", call="ask_worker", body=b.WorkerBody, run=on_workers.stop_now),
    Action(
        name="worker.concurrency",
        call="ask_worker",
        body=b.ConcurrencyBody,
        run=on_workers.concurrency,
    ),
)

ACTIONS: dict[str, Action] = {action.name: action for action in _TABLE}
"""By name."""
