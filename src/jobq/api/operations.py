"""What people and their tools do to a queue: look at it, hold it, and clear it up. `Queue` has all of this.

Every store call is bounded; what may touch a whole queue is a loop of them here.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

from jobq.api import info, tree
from jobq.api.context import QueueMethods
from jobq.api.info import JobInfo, MinuteMetrics, QueueStats, WorkerInfo
from jobq.api.tree import FlowTree
from jobq.client.session import CHUNK
from jobq.core import checks
from jobq.core.checks import Seconds
from jobq.core.commands import AnyCommand, Remove, Rerun
from jobq.core.records import Filter, JobKey, JobRecord
from jobq.core.states import ENDED, State
from jobq.errors import InvalidJob, JobNotFound

_PAGE = 100


class OperatorMethods(QueueMethods):
    """The reads and the operators' commands of a queue."""

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    async def find(
        self,
        *,
        state: State | str | None = None,
        name: str | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[JobInfo]:
        """Jobs that match, newest first within a state, page by page: `async for job in queue.find(state="failed")`."""
        wanted = Filter(
            queue=self.qname,
            state=None if state is None else _state(state),
            name=None if name is None else checks.check_task_name(name),
            key=None if key is None else checks.check_key(key),
        )
        left = None if limit is None else checks.check_int(limit, "limit")
        async for records in self._pages(wanted, _PAGE if left is None else min(_PAGE, left)):
            for record in records if left is None else records[:left]:
                yield self._context.job_info(record)
            if left is not None:
                left -= len(records)
                if left <= 0:
                    return

    async def counts(self) -> dict[State, int]:
        """How many jobs stand where."""
        return info.all_counts(await (await self._context.store()).count(self.qname))

    async def stats(self) -> QueueStats:
        """The queue at a glance."""
        return info.queue_stats(await (await self._context.store()).stats(self.qname))

    async def metrics(self, *, minutes: int = 60) -> list[MinuteMetrics]:
        """The last minutes, oldest first, with empty ones left out. A day is kept."""
        checks.check_int(minutes, "minutes", low=1)
        return [
            info.minute_metrics(record)
            for record in await (await self._context.store()).metrics(self.qname, minutes=minutes)
        ]

    async def workers(self) -> list[WorkerInfo]:
        """Who works on this queue."""
        return [
            info.worker_info(record)
            for record in await (await self._context.store()).workers(self.qname)
        ]

    async def flow_tree(self, id: str, *, limit: int = tree.MOST) -> FlowTree:
        """A job with all it waits for, and what those wait for, with their states; or a whole flow by its id.

        At most about `limit` jobs are read; what is left out is counted. Raises JobNotFound.
        """
        return await tree.read_tree(
            await self._context.store(),
            self.qname,
            checks.check_id(id),
            limit=checks.check_int(limit, "limit", low=1),
        )

    # ── acting ────────────────────────────────────────────────────────────────────────────────────

    def as_actor(self, name: str) -> Self:
        """The same queue, whose operations, and those of its job handles, are recorded under this name (256 characters at most).

        The events that result have it as their `actor`: `await queue.as_actor("ann").pause()`."""
        acting = copy.copy(self)
        acting._context = self._context.acting_as(name)
        acting._context.queue = acting
        return acting

    # ── holding ───────────────────────────────────────────────────────────────────────────────────

    async def pause(self) -> None:
        """Nothing more starts; what runs goes on, and so does everything else."""
        await (await self._context.store()).pause(self.qname, actor=self.actor)

    async def resume(self) -> None:
        """Jobs start again. Lifts a hold of the queue as well."""
        await (await self._context.store()).resume(self.qname, actor=self.actor)

    # ── clearing up ───────────────────────────────────────────────────────────────────────────────

    async def clear(self, *, delayed: bool = False) -> int:
        """Cancel what is waiting (with `delayed`, also what is delayed or blocked), as `removed`; how many it were."""
        store = await self._context.store()
        total = 0
        while True:
            n = await store.purge_pending(
                self.qname,
                delayed=checks.check_bool(delayed, "delayed"),
                limit=CHUNK,
                actor=self.actor,
            )
            total += n
            if n < CHUNK:
                return total

    async def clean(
        self, state: State | str, *, older_than: Seconds = 0, limit: int | None = None
    ) -> int:
        """Forget completed, failed or cancelled jobs that ended at least `older_than` ago, oldest first; how many it were."""
        wanted = _state(state)
        if wanted not in ENDED:
            raise InvalidJob(
                f"clean(state={wanted.value!r}): only completed, failed and cancelled jobs can be cleaned; see clear()"
            )
        older_than_ms = checks.to_ms(older_than, "older_than")
        left = None if limit is None else checks.check_int(limit, "limit")
        store = await self._context.store()
        total = 0
        while left is None or left > total:
            most = CHUNK if left is None else min(CHUNK, left - total)
            n = await store.purge_ended(
                self.qname, wanted, older_than_ms=older_than_ms, limit=most, actor=self.actor
            )
            total += n
            if n < most:
                break
        return total

    async def rerun(self, *ids: str, name: str | None = None) -> int:
        """Run failed jobs again, from the start: those of these ids, or all, or all of task `name`; returns how many.

        Jobs in another state are left alone. An unknown id raises JobNotFound before any job changes."""
        return await self._to_failed(ids, name, lambda job: Rerun(job=job, actor=self.actor))

    async def purge(self, *ids: str, name: str | None = None) -> int:
        """Remove failed jobs: those of these ids, or all, or all of task `name`; returns how many.

        Jobs in another state are left alone. An unknown id raises JobNotFound before any job changes."""
        if not ids and name is None:
            return await self.clean(State.FAILED)
        return await self._to_failed(ids, name, lambda job: Remove(job=job, actor=self.actor))

    async def obliterate(self, *, force: bool = False) -> None:
        """Remove everything of the queue. ConfigError if jobs are running, unless forced (their results are then lost)."""
        store = await self._context.store()
        while not await store.obliterate(
            self.qname, force=checks.check_bool(force, "force"), limit=CHUNK, actor=self.actor
        ):
            pass

    # ── inside ────────────────────────────────────────────────────────────────────────────────────

    async def _pages(self, wanted: Filter, size: int) -> AsyncIterator[tuple[JobRecord, ...]]:
        store = await self._context.store()
        cursor: str | None = None
        while size > 0:
            page = await store.find(wanted, cursor=cursor, limit=size)
            if page.records:
                yield page.records
            if (cursor := page.cursor) is None:
                return

    async def _failed(self, ids: tuple[str, ...], name: str | None) -> AsyncIterator[list[JobKey]]:
        """The failed jobs among these ids, or all of them, in bounded lots."""
        if not ids:
            async for records in self._pages(
                Filter(queue=self.qname, state=State.FAILED, name=name), CHUNK
            ):
                yield [JobKey(self.qname, record.id) for record in records]
            return
        failed = await self._failed_of(list(dict.fromkeys(checks.check_id(id) for id in ids)), name)
        for start in range(0, len(failed), CHUNK):
            yield failed[start : start + CHUNK]

    async def _failed_of(self, ids: Sequence[str], name: str | None) -> list[JobKey]:
        """The failed jobs among these ids. JobNotFound names the first unknown one."""
        store = await self._context.store()
        failed: list[JobKey] = []
        for start in range(0, len(ids), CHUNK):
            keys = [JobKey(self.qname, id) for id in ids[start : start + CHUNK]]
            for key, record in zip(keys, await store.get(keys), strict=True):
                if record is None:
                    raise JobNotFound(
                        f"there is no job {key.id!r} in queue {self.qname.queue!r}; no job was changed"
                    )
                if record.state is State.FAILED and (name is None or record.name == name):
                    failed.append(key)
        return failed

    async def _to_failed(
        self, ids: tuple[str, ...], name: str | None, command: Callable[[JobKey], AnyCommand]
    ) -> int:
        name = None if name is None else checks.check_task_name(name)
        store = await self._context.store()
        total = 0
        async for jobs in self._failed(ids, name):
            total += (
                (await store.alter([command(job) for job in jobs])).count("done") if jobs else 0
            )
        return total


def _state(value: object) -> State:
    return State(checks.check_choice(value, "state", [state.value for state in State]))
