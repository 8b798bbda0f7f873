"""What actions receive and return."""

from __future__ import annotations

from jobq.web.data.view import Shape


class Done(Shape, frozen=True, kw_only=True):
    """What an action has changed."""

    changed: int
    """Jobs, queues, schedules or workers. 0: there was nothing to change."""
    message: str
    """For a person, e.g. `Paused billing.`"""


class BulkDone(Shape, frozen=True, kw_only=True):
    """One step of a bulk action: it changes up to 500 jobs. Send the same body again with `cursor`
    of this reply until `cursor` is None."""

    changed: int
    skipped: int
    """Jobs that had left the state for the command."""
    looked_at: int
    cursor: str | None
    began_ms: int
    message: str


# ── the bodies of requests ────────────────────────────────────────────────────────────────────────


class QueueBody(Shape, frozen=True, kw_only=True):
    """A queue."""

    tenant: str
    queue: str


class HoldBody(QueueBody, frozen=True, kw_only=True):
    """How long to hold a queue or one of its keys."""

    seconds: float
    key: str | None = None


class KeyBody(QueueBody, frozen=True, kw_only=True):
    """A queue or one of its keys."""

    key: str | None = None


class LimitsBody(QueueBody, frozen=True, kw_only=True):
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


class PurgeBody(QueueBody, frozen=True, kw_only=True):
    """Which ended jobs to remove: completed, failed or cancelled."""

    state: str
    older_than_s: float = 0.0


class ClearBody(QueueBody, frozen=True, kw_only=True):
    """Cancel the waiting jobs of a queue, with `delayed` also delayed and blocked ones."""

    delayed: bool = False


class LockBody(QueueBody, frozen=True, kw_only=True):
    """A unique lock."""

    lock: str


class JobBody(Shape, frozen=True, kw_only=True):
    """A job."""

    tenant: str
    queue: str
    id: str


class CancelBody(JobBody, frozen=True, kw_only=True):
    """A job to cancel, with `cascade` also the jobs it waits for."""

    cascade: bool = False


class PriorityBody(JobBody, frozen=True, kw_only=True):
    """The new priority of a job that has never started."""

    priority: int


class RescheduleBody(JobBody, frozen=True, kw_only=True):
    """When a waiting or delayed job is due: in `delay_s`, or at a time."""

    delay_s: float = 0.0
    at_ms: int | None = None


class UpdateBody(JobBody, frozen=True, kw_only=True):
    """The new arguments of a job that has never started, as JSON: a list, an object, or both as
    `{"args": [], "kwargs": {}}`."""

    arguments: str


class SignalBody(JobBody, frozen=True, kw_only=True):
    """A signal to a job. `value` is JSON."""

    name: str
    value: str = "null"


class BulkBody(Shape, frozen=True, kw_only=True):
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
    """When the first step was made, if it is not that of the cursor. Jobs that have ended since are
    left alone."""


class ScheduleBody(Shape, frozen=True, kw_only=True):
    """A schedule."""

    tenant: str
    queue: str
    id: str


class WorkerBody(Shape, frozen=True, kw_only=True):
    """A worker."""

    name: str


class ConcurrencyBody(WorkerBody, frozen=True, kw_only=True):
    """How many jobs the worker runs at once from now on."""

    concurrency: int
