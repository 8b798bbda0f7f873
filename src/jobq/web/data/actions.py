"""Actions: what an operator does from the dashboard, one row of `ACTIONS` each.

The API has a POST route for every row, and the pages send their forms to these routes. The scope
that a row needs is that of its route in `access/table.py`. The guarded store checks what the
action does again, and records who acted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from jobq.access.table import ROUTES, Door
from jobq.operations.bulk import OPERATIONS
from jobq.web.data import bodies as b
from jobq.web.data import on_jobs, on_queues, on_workers
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.view import Shape, View


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of actions."""

    name: str
    """`queue.pause` is POST /api/v1/queue/pause."""
    body: type[Shape]
    run: Callable[[View, Any], Awaitable[Done | BulkDone]]
    """Its docstring is the description of the route."""
    bulk: bool = False
    """Whether it replies with a BulkDone: one step, to be repeated until there is no cursor."""

    @property
    def path(self) -> str:
        """The path below /api/v1."""
        return "/" + self.name.replace(".", "/")

    @property
    def door(self) -> Door:
        """Who may do it."""
        return ROUTES[f"POST /api/v1{self.path}"]

    def allowed(self, view: View) -> bool:
        """Whether the caller may do it: pages show the button only then."""
        return not view.read_only and self.door.admits(view.principal)


_TABLE = (
    Action(name="queue.pause", body=b.QueueBody, run=on_queues.pause),
    Action(name="queue.resume", body=b.QueueBody, run=on_queues.resume),
    Action(name="queue.hold", body=b.HoldBody, run=on_queues.hold),
    Action(name="queue.release-hold", body=b.KeyBody, run=on_queues.release_hold),
    Action(name="queue.limits", body=b.LimitsBody, run=on_queues.limits),
    Action(name="queue.clear", body=b.ClearBody, run=on_queues.clear, bulk=True),
    Action(name="queue.purge", body=b.PurgeBody, run=on_queues.purge, bulk=True),
    Action(name="queue.release-lock", body=b.LockBody, run=on_queues.release_lock),
    Action(name="job.cancel", body=b.CancelBody, run=on_jobs.cancel),
    Action(name="job.rerun", body=b.JobBody, run=on_jobs.rerun),
    Action(name="job.revive", body=b.JobBody, run=on_jobs.revive),
    Action(name="job.promote", body=b.JobBody, run=on_jobs.promote),
    Action(name="job.reprioritise", body=b.PriorityBody, run=on_jobs.reprioritise),
    Action(name="job.reschedule", body=b.RescheduleBody, run=on_jobs.reschedule),
    Action(name="job.update", body=b.UpdateBody, run=on_jobs.update),
    Action(name="job.signal", body=b.SignalBody, run=on_jobs.signal),
    Action(name="job.remove", body=b.JobBody, run=on_jobs.remove),
    Action(name="flow.rerun", body=b.JobBody, run=on_jobs.rerun_flow),
    *(
        Action(name=f"jobs.{kind}", body=b.BulkBody, run=on_jobs.on_all(kind), bulk=True)
        for kind in OPERATIONS
    ),
    Action(name="schedule.run", body=b.ScheduleBody, run=on_queues.run_schedule),
    Action(
        name="schedule.pause",
        body=b.ScheduleBody,
        run=on_queues.pause_schedule,
    ),
    Action(
        name="schedule.resume",
        body=b.ScheduleBody,
        run=on_queues.resume_schedule,
    ),
    Action(
        name="schedule.remove",
        body=b.ScheduleBody,
        run=on_queues.remove_schedule,
    ),
    Action(name="worker.drain", body=b.WorkerBody, run=on_workers.drain),
    Action(name="worker.resume", body=b.WorkerBody, run=on_workers.resume),
    Action(name="worker.stop", body=b.WorkerBody, run=on_workers.stop),
    Action(name="worker.stop-now", body=b.WorkerBody, run=on_workers.stop_now),
    Action(
        name="worker.concurrency",
        body=b.ConcurrencyBody,
        run=on_workers.concurrency,
    ),
)

ACTIONS: dict[str, Action] = {action.name: action for action in _TABLE}
"""By name."""
