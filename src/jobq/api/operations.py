"""What operators do with a queue: read it, pause it, rerun, remove and purge jobs.

`Queue` inherits all of this. A store call is always bounded; an operation on a whole queue is a
loop of such calls.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Self, Unpack

from jobq.api import info
from jobq.api.context import QueueMethods
from jobq.api.info import JobInfo, MinuteMetrics, QueueStats, WorkerInfo
from jobq.api.selection import Selection
from jobq.core import checks
from jobq.core.checks import Seconds
from jobq.core.states import State
from jobq.operations import flows, jobs, removal
from jobq.operations.flows import FlowTree
from jobq.operations.listing import Matching
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
