"""What people and their tools do to jobs, queues and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import (
    Fire,
    Limits,
    QueueConfig,
    QueueRecord,
    ScheduleRecord,
    ScheduleSpec,
)
from jobq.core.records.states import State


class OperatorStore(Protocol):
    """What people and their tools do to jobs and queues.

    A call that changes a queue records an event of a `QueueKind`, without a job, in shard 0 of the
    queue's log. A call that changes nothing records nothing. `actor` says who made the call, in at
    most 256 characters. It is part of those events, and of the events of jobs that the call
    cancels.
    """

    async def alter(self, commands: Sequence[AnyCommand]) -> list[Altered]:
        """Carry out commands on single jobs, in order. Results are in the order of the commands.

        A command that names a `life` is `late`, and changes nothing, if that is not the life of the
        job when the command is carried out.

        A command that `core.rules.new_jobs.check_commands` refuses is InvalidJob, and none of the
        call is carried out.
        """
        ...

    async def declare(self, queue: QueueName, config: QueueConfig) -> QueueRecord:
        """Store what code declares about the queue, and return what is in force.

        A higher `limits_version` replaces the stored limits, including those set at run time. A
        lower one is ignored. `max_stalls` is merged into what is stored, and applies to all jobs of
        those tasks that have no limit of their own, including jobs that are already queued.
        `defaults` replaces the stored ones (core/records/queues.py has the rules: `JobDefaults`).
        A queue with partitions is plain unless it is declared keyed.

        ConfigError if the mode or the partitions differ from the stored ones, or the limits differ
        under the same `limits_version`.
        """
        ...

    async def set_limits(
        self,
        queue: QueueName,
        limits: Limits | None,
        *,
        key: str | None = None,
        actor: str | None = None,
    ) -> None:
        """Change the limits of the queue, or of one key, at run time.

        None restores the declared ones. Also lifts holds: those of the key, or those of the queue
        and of all its keys.
        """
        ...

    async def pause(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Stop claims from the queue. Everything else goes on."""
        ...

    async def resume(self, queue: QueueName, *, actor: str | None = None) -> None:
        """Allow claims from the queue again, and wake sleeping workers.

        Lifts a hold of the queue.
        """
        ...

    async def hold(
        self, queue: QueueName, ms: int, key: str | None = None, *, actor: str | None = None
    ) -> None:
        """Stop claims from the queue, or of one key, for `ms` from now. Running jobs go on.

        If it is held already, the later end counts. The outcome `Hold` does the same for the key of
        its job, or for the queue (of a partitioned queue, the partition) if the job has no key.
        `core.rules.limits` has the rules. ConfigError for a key of a plain queue.
        """
        ...

    async def release_hold(
        self, queue: QueueName, key: str | None = None, *, actor: str | None = None
    ) -> bool:
        """Lift the hold of the queue, or of one key, and wake workers. False if there is none."""
        ...

    async def release_lock(
        self, queue: QueueName, lock: str, *, job: str | None = None, actor: str | None = None
    ) -> bool:
        """Release a unique lock, so that a new job with it is accepted. Its holder goes on.

        A follow-up of the holder (keep_last) is unblocked and takes the lock. With `job`, only if
        that job holds the lock. False if nothing was released.
        """
        ...

    async def purge_pending(
        self,
        queue: QueueName,
        *,
        delayed: bool = False,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Cancel up to `limit` waiting jobs with the reason `removed`, and return how many.

        With `delayed`, also delayed and blocked ones.
        """
        ...

    async def purge_ended(
        self,
        queue: QueueName,
        state: State,
        *,
        older_than_ms: int = 0,
        limit: int = 1000,
        actor: str | None = None,
    ) -> int:
        """Remove up to `limit` records of an ended state, oldest first, and return how many.

        Only records that ended at least `older_than_ms` ago. ConfigError if the state is not an
        ended one.
        """
        ...

    async def obliterate(
        self, queue: QueueName, *, force: bool = False, limit: int = 1000, actor: str | None = None
    ) -> bool:
        """Remove up to `limit` jobs of the queue.

        True when the queue is gone with everything in it. ConfigError if jobs are active, unless
        `force` is set; their leases are then lost. Events that are kept stay readable.
        """
        ...

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        """Store failed jobs of another store, with their failures, counters and first times.

        False for an id that is in use: nothing changes then. Each job is recorded as accepted and
        failed now, so its retention begins now. Nothing else follows from its end: it takes no
        unique lock, and there is no dead-letter copy of it. InvalidJob, and nothing is stored, if
        `core.rules.new_jobs.check_restored` refuses a record.
        """
        ...


class ScheduleStore(Protocol):
    """Schedules, which make jobs at given times."""

    async def put_schedule(
        self, spec: ScheduleSpec, *, next_ms: int | None, actor: str | None = None
    ) -> ScheduleRecord:
        """Store a schedule, with the values that `core.rules.new_jobs.check_schedule` returns, or
        raise what it raises.

        The same spec again keeps its counts and its next time. A different spec starts over. A
        paused schedule stays paused in both cases.
        """
        ...

    async def drop_schedule(self, queue: QueueName, id: str, *, actor: str | None = None) -> bool:
        """Remove a schedule. The jobs it made stay. False if there is no such schedule."""
        ...

    async def pause_schedule(
        self, queue: QueueName, id: str, *, paused: bool, actor: str | None = None
    ) -> Altered:
        """Pause a schedule, or resume it. The times that pass while it is paused are missed.

        `late` if it is in that state already.
        """
        ...

    async def list_schedules(
        self, queue: QueueName | None = None, *, due: bool = False, limit: int = 100
    ) -> list[ScheduleRecord]:
        """Schedules of a queue, or of all. With `due`, only those that should fire now."""
        ...

    async def fire(self, fires: Sequence[Fire]) -> list[bool]:
        """Make the jobs of due schedules. True for each fire that this call carried out.

        Compares and sets the next time, so each time fires once with any number of callers. If the
        queue is full (`max_waiting`), or the fire is `skipped`, the schedule moves on to its next
        time without a job. The log then has the event `missed`, unless a skipped fire is not
        `missed`.
        """
        ...
