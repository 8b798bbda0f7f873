"""What operators do with a queue: read it, limit it, pause it, rerun, remove and purge jobs.

`Queue` inherits all of this. A store call is always bounded; an operation on a whole queue is a
loop of such calls.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from types import EllipsisType
from typing import Any, Self, Unpack

import msgspec

from jobq.api import info
from jobq.api.context import QueueMethods
from jobq.api.info import JobInfo, MinuteMetrics, QueueStats, WorkerInfo
from jobq.api.selection import Selection
from jobq.core.policies import Bucket, Rate
from jobq.core.records.queues import HoldsRecord, Limits, LimitsRecord, RateData, Window
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.core.values.checks import Seconds
from jobq.core.values.units import moment, moment_or_none
from jobq.errors import ConfigError
from jobq.operations import flows, jobs, limits, removal
from jobq.operations.flows import FlowTree
from jobq.operations.listing import Matching, find_queue
from jobq.operations.selecting import JobCriteria, make_criteria

_PAGE = 100
"""Jobs per call of `find`: few enough for a first page to arrive quickly."""


class OperatorMethods(QueueMethods):
    """The methods of `Queue` that read it and that operators change it with."""

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        *,
        state: State | str | None = None,
        oldest_first: bool = False,
        max_jobs: int | None = None,
        **criteria: Unpack[JobCriteria],
    ) -> AsyncIterator[JobInfo]:
        """Jobs that match, newest first within a state, read page by page:
        `async for job in queue.find(state="failed", name="charge*", error="Timeout*")`.

        In `name` and `error`, `*` stands for any text; `error` is compared with the type, the
        reason, the fingerprint, and "type: message". Stores narrow a listing by state, key and
        exact name. All other criteria are compared here with every job that is left, so a search
        for a rare value reads many pages."""
        wanted = make_criteria(() if state is None else (state,), criteria)
        left = None if max_jobs is None else checks.check_int(max_jobs, "max_jobs")
        if left == 0:
            return
        checks.check_bool(oldest_first, "oldest_first")
        matching = Matching(
            await self._context.store(),
            self.qname,
            wanted,
            oldest_first=oldest_first,
            parameters=self._context.parameters_of,
        )
        async for record in matching.records(left, _PAGE):
            yield self._context.job_info(record)

    def select(self, *states: State | str, **criteria: Unpack[JobCriteria]) -> Selection:
        """Jobs in these states that match, to change them in bulk:
        `await queue.select("failed", name="charge*", error="Timeout*").rerun(pace=50)`.

        `preview()` counts them first. The criteria are those of `find`."""
        return Selection(self._context, states, criteria)

    async def counts(self) -> dict[State, int]:
        """How many jobs are in each state."""
        return info.all_counts(await (await self._context.store()).count(self.qname))

    async def stats(self) -> QueueStats:
        """The queue's counts, settings and oldest waiting job."""
        return info.queue_stats(await (await self._context.store()).stats(self.qname))

    async def metrics(self, *, minutes: int = 60) -> list[MinuteMetrics]:
        """What happened in each of the last minutes, oldest first. Minutes without events are left
        out. Stores keep one day."""
        checks.check_int(minutes, "minutes", low=1)
        store = await self._context.store()
        return [
            info.minute_metrics(record)
            for record in await store.metrics(self.qname, minutes=minutes)
        ]

    async def workers(self) -> list[WorkerInfo]:
        """The workers that serve this queue."""
        store = await self._context.store()
        return [info.worker_info(record) for record in await store.workers(self.qname)]

    async def flow_tree(self, id: str, *, max_jobs: int = flows.MAX_JOBS) -> FlowTree:
        """A job with the jobs it waits for, what those wait for, and so on; or a whole flow by its
        id.

        Reads about `max_jobs` jobs; the tree counts those left out. Raises JobNotFound.
        """
        return await flows.read_tree(
            await self._context.store(),
            self.qname,
            checks.check_id(id),
            max_jobs=checks.check_int(max_jobs, "max_jobs", low=1),
        )

    # ── acting ────────────────────────────────────────────────────────────────────────────────────

    def as_actor(self, name: str) -> Self:
        """The same queue, with its operations and those of its job handles recorded under this name
        (up to 256 characters).

        The events that result carry it as `actor`: `await queue.as_actor("ann").pause()`."""
        acting = copy.copy(self)
        acting._context = self._context.acting_as(name)
        acting._context.queue = acting
        return acting

    async def pause(self) -> None:
        """Start no more jobs until `resume()`. Running jobs continue, and new ones are accepted."""
        await (await self._context.store()).pause(self.qname, actor=self.actor)

    async def resume(self) -> None:
        """Start jobs again. This also ends a hold of the queue."""
        await (await self._context.store()).resume(self.qname, actor=self.actor)

    async def rerun(self, *ids: str, name: str | None = None) -> int:
        """Run failed jobs again from the start: those with these ids, or all, or all of the task
        `name`, in which `*` stands for any text. Returns how many.

        Jobs in another state are left alone, and so are those that fail while this runs. An unknown
        id raises JobNotFound before any job changes."""
        name = None if name is None else checks.check_task_name(name)
        store = await self._context.store()
        return await jobs.rerun_failed(
            store, self.qname, ids, name, self.actor, self._context.now_ms()
        )

    async def rerun_flow(self, id: str) -> int:
        """Run the failed and cancelled members of a flow again, and keep the finished ones.

        `id` is that of a flow, or of a job: then the job and all that it waits for. Completed jobs
        keep their results, and members that failed only because of others wait for those again. A
        member keeps what it had saved, its steps, signals and children. Returns how many jobs run
        again. Raises JobNotFound.
        """
        store = await self._context.store()
        return await flows.rerun_flow(store, self.qname, checks.check_id(id), self.actor)

    # ── removing ──────────────────────────────────────────────────────────────────────────────────

    async def remove(self, *ids: str) -> int:
        """Remove the jobs with these ids and return how many were removed.

        The record of an ended job is deleted; a waiting, delayed or blocked job is cancelled.
        Running jobs are left alone. An unknown id raises JobNotFound before any job changes."""
        store = await self._context.store()
        known = await jobs.known(store, self.qname, ids)
        return await jobs.change(store, "remove", known, self.actor)

    async def purge(
        self,
        *states: State | str,
        name: str | None = None,
        older_than: Seconds = 0,
        max_jobs: int | None = None,
    ) -> int:
        """Remove all jobs in these states (default: failed) and return how many.

        Ended jobs are deleted, those that ended first come first; waiting, delayed and blocked jobs
        are cancelled. `name` restricts this to one task, `older_than` to jobs that ended at least
        that long ago, `max_jobs` to a number of jobs. Active jobs cannot be purged: cancel them.
        """
        wanted = removal.Purge(
            self.qname,
            states or (State.FAILED,),
            name=name,
            older_than=older_than,
            max_jobs=max_jobs,
            actor=self.actor,
        )
        return await wanted.run(await self._context.store(), self._context.now_ms())

    async def obliterate(self, *, force: bool = False) -> None:
        """Remove the queue with everything in it: jobs, schedules, limits, events.

        Raises ConfigError if jobs are running. With `force` they are removed too, and their results
        are lost."""
        await removal.obliterate(
            await self._context.store(),
            self.qname,
            force=checks.check_bool(force, "force"),
            actor=self.actor,
        )


# Limits of a queue: how many jobs run at once, start per time and wait. `Queue` inherits this.
#
# `Queue(…)` declares limits with a `limits_version`; `set_limits` changes them at run time. A
# change is stored apart from the declaration and applies until a higher version is declared.


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one key. None: the queue's limit for every key applies."""

    key_limit: int | None
    key_rate: Rate | Bucket | None


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that apply now. `version`: the declaration's `limits_version`. `changed`: they
    were set at run time and override the declaration."""

    limit: int | None
    rate: Rate | Bucket | None
    key_limit: int | None  # of a keyed queue, where None means 1
    key_rate: Rate | Bucket | None
    max_waiting: int | None  # with this many waiting, delayed or blocked jobs, QueueFull is raised
    version: int
    changed: bool
    keys: Mapping[str, KeyLimits]
    held_until: datetime | None = None  # a hold: no job starts before this time
    held_keys: Mapping[str, datetime] = {}  # the same by key: the 100 holds that end first


class LimitMethods(QueueMethods):
    """The methods of `Queue` for limits and holds."""

    async def limits(self) -> QueueLimits:
        """The limits that apply now, of the queue and of single keys, and the holds."""
        store = await self._context.store()
        record = await find_queue(store, self.qname)
        held = await store.holds(self.qname)
        return queue_limits(LimitsRecord() if record is None else record.limits, held)

    async def set_limits(
        self,
        *,
        limit: int | EllipsisType | None = ...,
        rate: Rate | Bucket | EllipsisType | None = ...,
        key_limit: int | EllipsisType | None = ...,
        key_rate: Rate | Bucket | EllipsisType | None = ...,
        max_waiting: int | EllipsisType | None = ...,
        key: str | None = None,
    ) -> None:
        """Change limits for all workers at once. Limits that are not given stay; None removes one.

        With `key`, `key_limit` and `key_rate` are set for that key only; None removes the key's own
        limit. After a raise, waiting jobs start at once. After a cut, running jobs finish first. A
        `max_waiting` below the current number of jobs removes none: new jobs are refused until
        enough have started. If two callers change different limits at the same moment, one change
        may be lost: check with `limits()`.
        """
        given = {
            "limit": limit,
            "rate": rate,
            "key_limit": key_limit,
            "key_rate": key_rate,
            "max_waiting": max_waiting,
        }
        wanted = limits.checked_limits(
            {name: value for name, value in given.items() if value is not ...}
        )
        if not wanted:
            raise ConfigError(
                "set_limits() without a limit: give limit, rate, key_limit, key_rate or "
                "max_waiting (None removes a limit)"
            )
        store = await self._context.store()
        await limits.set_limits(store, self.qname, wanted, key=key, actor=self.actor)

    async def reset_limits(self, *, key: str | None = None) -> None:
        """Undo changes made at run time, so that the declared limits apply again.

        With `key`, undo those of this key. This also ends holds: that of the key, or those of the
        queue and all its keys."""
        key = None if key is None else checks.check_key(key)
        await (await self._context.store()).set_limits(self.qname, None, key=key, actor=self.actor)

    # ── holds ─────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, seconds: Seconds, key: str | None = None) -> None:
        """Start no jobs of the queue, or of one key, for some time, for example while a service
        that they need is down.

        Running jobs continue and new ones are accepted. Of two holds, the one that ends later
        counts. A handler that raises `RateLimited` holds its queue or key in the same way. A hold
        ends by itself; `release_hold`, `resume`, `reset_limits` and any change of limits end it
        sooner.
        """
        ms = checks.to_ms(seconds, "seconds", positive=True)
        await (await self._context.store()).hold(
            self.qname, ms, None if key is None else checks.check_key(key), actor=self.actor
        )

    async def release_hold(self, key: str | None = None) -> bool:
        """End the hold of the queue, or of one key. Jobs start at once. False if there is no
        hold."""
        key = None if key is None else checks.check_key(key)
        return await (await self._context.store()).release_hold(self.qname, key, actor=self.actor)


# ── from and to the store's records ──────────────────────────────────────────────────────────────


def declared_limits(**given: Any) -> Limits | None:
    """The limits that `Queue(…)` declares; None if it declares none."""
    declared = Limits(**limits.checked_limits(given))
    return None if declared == Limits() else declared


def queue_limits(record: LimitsRecord, held: HoldsRecord) -> QueueLimits:
    """The QueueLimits of a record."""
    effective = record.effective
    return QueueLimits(
        limit=effective.limit,
        rate=policy(effective.rate),
        key_limit=effective.key_limit,
        key_rate=policy(effective.key_rate),
        max_waiting=effective.max_waiting,
        version=record.version,
        changed=record.changed is not None,
        keys={
            key: KeyLimits(key_limit=own.key_limit, key_rate=policy(own.key_rate))
            for key, own in record.keys.items()
        },
        held_until=moment_or_none(held.until_ms),
        held_keys={key: moment(ends) for key, ends in held.keys.items()},
    )


def policy(data: RateData | None) -> Rate | Bucket | None:
    """The policy of a stored rate."""
    if isinstance(data, Window):
        return Rate(data.limit, per=timedelta(milliseconds=data.per_ms))
    return None if data is None else Bucket(data.capacity, refill=data.refill)
