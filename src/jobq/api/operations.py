"""What operators do with a queue: read it, pause it, rerun, remove and purge jobs.

`Queue` inherits all of this. A store call is always bounded; an operation on a whole queue is a
loop of such calls.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from typing import Self, Unpack

from jobq.api import info, purging, tree
from jobq.api.context import QueueMethods
from jobq.api.info import JobInfo, MinuteMetrics, QueueStats, WorkerInfo
from jobq.api.selection import JobCriteria, Matching, Selection, make_criteria
from jobq.api.tree import FlowTree
from jobq.client.session import CHUNK, batches
from jobq.core import checks
from jobq.core.checks import Seconds
from jobq.core.commands import Remove, Rerun, Revive
from jobq.core.criteria import Place
from jobq.core.graph import revivals
from jobq.core.records import Filter, JobKey, JobRecord
from jobq.core.states import State
from jobq.errors import JobNotFound

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
        size = _PAGE if left is None or wanted.compared_here else min(_PAGE, left)
        matching = Matching(self._context, wanted, oldest_first=oldest_first)
        async for records, _ in matching.pages(Place(wanted.digest), size):
            for record in records if left is None else records[:left]:
                yield self._context.job_info(record)
            if left is not None:
                left -= len(records)
                if left <= 0:
                    return

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

    async def flow_tree(self, id: str, *, max_jobs: int = tree.MAX_JOBS) -> FlowTree:
        """A job with the jobs it waits for, what those wait for, and so on; or a whole flow by its
        id.

        Reads about `max_jobs` jobs; the tree counts those left out. Raises JobNotFound.
        """
        return await tree.read_tree(
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
        `name`. Returns how many.

        Jobs in another state are left alone. An unknown id raises JobNotFound before any job
        changes."""
        name = None if name is None else checks.check_task_name(name)
        store = await self._context.store()
        total = 0
        async for jobs in self._failed(ids, name):
            if jobs:
                commands = [Rerun(job=job, actor=self.actor) for job in jobs]
                total += (await store.alter(commands)).count("done")
        return total

    async def rerun_flow(self, id: str) -> int:
        """Run the failed and cancelled members of a flow again, and keep the finished ones.

        `id` is that of a flow, or of a job: then the job and all that it waits for. Completed jobs
        keep their results, and members that failed only because of others wait for those again. A
        member keeps what it had saved, its steps, signals and children. Returns how many jobs run
        again. Raises JobNotFound.
        """
        store = await self._context.store()
        members = await tree.read_members(store, self.qname, checks.check_id(id))
        total = 0
        for group in revivals(members):
            for keys in batches(group, CHUNK):
                commands = [Revive(job=key, actor=self.actor) for key in keys]
                total += (await store.alter(commands)).count("done")
        return total

    # ── removing ──────────────────────────────────────────────────────────────────────────────────

    async def remove(self, *ids: str) -> int:
        """Remove the jobs with these ids and return how many were removed.

        The record of an ended job is deleted; a waiting, delayed or blocked job is cancelled.
        Running jobs are left alone. An unknown id raises JobNotFound before any job changes."""
        store = await self._context.store()
        keys = [key for key, _ in await self._known(ids)]
        total = 0
        for start in range(0, len(keys), CHUNK):
            commands = [Remove(job=key, actor=self.actor) for key in keys[start : start + CHUNK]]
            total += (await store.alter(commands)).count("done")
        return total

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
        wanted = purging.Purge(self._context, states or (State.FAILED,), name, older_than, max_jobs)
        return await wanted.run()

    async def obliterate(self, *, force: bool = False) -> None:
        """Remove the queue with everything in it: jobs, schedules, limits, events.

        Raises ConfigError if jobs are running. With `force` they are removed too, and their results
        are lost."""
        store = await self._context.store()
        while not await store.obliterate(
            self.qname, force=checks.check_bool(force, "force"), limit=CHUNK, actor=self.actor
        ):
            pass

    # ── internal ──────────────────────────────────────────────────────────────────────────────────

    async def _known(self, ids: Sequence[str]) -> list[tuple[JobKey, JobRecord]]:
        """The records of these ids. JobNotFound names the first unknown one."""
        store = await self._context.store()
        wanted = list(dict.fromkeys(checks.check_id(id) for id in ids))
        known: list[tuple[JobKey, JobRecord]] = []
        for start in range(0, len(wanted), CHUNK):
            keys = [JobKey(self.qname, id) for id in wanted[start : start + CHUNK]]
            for key, record in zip(keys, await store.get(keys), strict=True):
                if record is None:
                    raise JobNotFound(
                        f"there is no job {key.id!r} in queue {self.qname.queue!r}; "
                        "no job was changed"
                    )
                known.append((key, record))
        return known

    async def _failed(self, ids: Sequence[str], name: str | None) -> AsyncIterator[list[JobKey]]:
        """The failed jobs among these ids, or all failed jobs, in chunks."""
        if not ids:
            wanted = Filter(queue=self.qname, state=State.FAILED, name=name)
            async for records in purging.pages(await self._context.store(), wanted, CHUNK):
                yield [JobKey(self.qname, record.id) for record in records]
            return
        failed = [
            key
            for key, record in await self._known(ids)
            if record.state is State.FAILED and (name is None or record.name == name)
        ]
        for start in range(0, len(failed), CHUNK):
            yield failed[start : start + CHUNK]
