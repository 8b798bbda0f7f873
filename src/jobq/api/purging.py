"""`queue.purge(…)`: remove the jobs that match, in bounded store calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from jobq.api.context import QueueContext
from jobq.client.session import CHUNK
from jobq.core import checks
from jobq.core.checks import Seconds
from jobq.core.commands import Remove
from jobq.core.records import Filter, JobKey, JobRecord
from jobq.core.states import ENDED, State
from jobq.errors import InvalidJob
from jobq.stores.base import Store

PENDING = (State.WAITING, State.DELAYED, State.BLOCKED)
"""The states of jobs that have not started, or that wait to be started again."""


def check_state(value: object) -> State:
    """The state that a user named. InvalidJob if there is no such state."""
    return State(checks.check_choice(value, "state", [state.value for state in State]))


async def pages(store: Store, wanted: Filter, size: int) -> AsyncIterator[tuple[JobRecord, ...]]:
    """The jobs that match a filter, up to `size` per page. Empty pages are left out."""
    cursor: str | None = None
    while size > 0:
        page = await store.find(wanted, cursor=cursor, limit=size)
        if page.records:
            yield page.records
        if (cursor := page.cursor) is None:
            return


class Purge:
    """One purge: checks its arguments when made, and counts what `run` has removed."""

    def __init__(
        self,
        context: QueueContext,
        states: Sequence[State | str],
        name: str | None,
        older_than: Seconds,
        max_jobs: int | None,
    ) -> None:
        self._context = context
        self._states = list(dict.fromkeys(check_state(state) for state in states))
        self._name = None if name is None else checks.check_task_name(name)
        self._older_than_ms = checks.to_ms(older_than, "older_than")
        self._max_jobs = None if max_jobs is None else checks.check_int(max_jobs, "max_jobs")
        self._removed = 0
        if State.ACTIVE in self._states:
            raise InvalidJob("purge('active'): running jobs cannot be purged; cancel them instead")
        pending = [state.value for state in self._states if state in PENDING]
        if self._older_than_ms and pending:
            raise InvalidJob(
                f"purge({pending[0]!r}, older_than=…): older_than counts from the end of a job, "
                f"and a {pending[0]} job has not ended"
            )

    async def run(self) -> int:
        """Remove the jobs and return how many were removed."""
        store = await self._context.store()
        if self._name is None:
            pending = [state for state in PENDING if state in self._states]
            if pending in ([State.WAITING], list(PENDING)):
                await self._purge_pending(store, delayed=len(pending) > 1)
            else:
                for state in pending:
                    await self._remove_found(store, state)
            for state in self._states:
                if state in ENDED:
                    await self._purge_ended(store, state)
        else:
            for state in self._states:
                await self._remove_found(store, state)
        return self._removed

    def _room(self) -> int:
        """How many jobs the next call may remove; 0 if `max_jobs` is reached."""
        return CHUNK if self._max_jobs is None else min(CHUNK, self._max_jobs - self._removed)

    async def _purge_pending(self, store: Store, *, delayed: bool) -> None:
        while room := self._room():
            removed = await store.purge_pending(
                self._context.qname, delayed=delayed, limit=room, actor=self._context.actor
            )
            self._removed += removed
            if removed < room:
                return

    async def _purge_ended(self, store: Store, state: State) -> None:
        while room := self._room():
            removed = await store.purge_ended(
                self._context.qname,
                state,
                older_than_ms=self._older_than_ms,
                limit=room,
                actor=self._context.actor,
            )
            self._removed += removed
            if removed < room:
                return

    async def _remove_found(self, store: Store, state: State) -> None:
        """For filters that stores have no call for: find the jobs, then remove each by a command.

        Whether a job is old enough is decided by this machine's clock here."""
        context = self._context
        ended_by = context.now_ms() - self._older_than_ms
        wanted = Filter(queue=context.qname, state=state, name=self._name)
        async for records in pages(store, wanted, CHUNK):
            commands = [
                Remove(job=JobKey(context.qname, record.id), actor=context.actor)
                for record in records
                if not self._older_than_ms or (record.finished_ms or 0) <= ended_by
            ][: self._room()]
            if commands:
                self._removed += (await store.alter(commands)).count("done")
            if not self._room():
                return
