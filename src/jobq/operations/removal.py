"""Removes jobs of a queue, or the queue, in bounded store calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from jobq.core.records.jobs import Filter, QueueName
from jobq.core.records.states import ENDED, State
from jobq.core.values import checks
from jobq.core.values.checks import Seconds
from jobq.errors import InvalidJob
from jobq.operations.jobs import CHUNK, change
from jobq.operations.listing import pages
from jobq.operations.selecting import check_state
from jobq.stores.base import Store

PENDING = (State.WAITING, State.DELAYED, State.BLOCKED)
"""The states of jobs that have not started, or that wait to be started again."""
Advance = Callable[[int], None]
"""Is told how many jobs each call has removed."""


def _silent(number: int) -> None:
    pass


class Purge:
    """One purge: checks its arguments when made, and counts what `run` has removed."""

    def __init__(
        self,
        queue: QueueName,
        states: Sequence[State | str],
        *,
        name: str | None = None,
        older_than: Seconds = 0,
        max_jobs: int | None = None,
        actor: str | None,
        advance: Advance = _silent,
    ) -> None:
        self._queue = queue
        self._states = list(dict.fromkeys(check_state(state) for state in states))
        self._name = None if name is None else checks.check_task_name(name)
        self._older_than_ms = checks.to_ms(older_than, "older_than")
        self._max_jobs = None if max_jobs is None else checks.check_int(max_jobs, "max_jobs")
        self._actor = actor
        self._advance = advance
        self._removed = 0
        if State.ACTIVE in self._states:
            raise InvalidJob("purge('active'): running jobs cannot be purged; cancel them instead")
        pending = [state.value for state in self._states if state in PENDING]
        if self._older_than_ms and pending:
            raise InvalidJob(
                f"purge({pending[0]!r}, older_than=…): older_than counts from the end of a job, "
                f"and a {pending[0]} job has not ended"
            )

    async def run(self, store: Store, now_ms: int) -> int:
        """Remove the jobs and return how many were removed."""
        found = self._states
        if self._name is None:
            found = [state for state in PENDING if state in self._states]
            if found in ([State.WAITING], list(PENDING)):
                delayed, found = len(found) > 1, []
                await self._repeat(partial(store.purge_pending, self._queue, delayed=delayed))
            for state in self._states:
                if state in ENDED:
                    old = partial(store.purge_ended, older_than_ms=self._older_than_ms)
                    await self._repeat(partial(old, self._queue, state))
        for state in found:
            await self._remove_found(store, state, now_ms)
        return self._removed

    def _room(self) -> int:
        """How many jobs the next call may remove; 0 if `max_jobs` is reached."""
        return CHUNK if self._max_jobs is None else min(CHUNK, self._max_jobs - self._removed)

    async def _repeat(self, step: Callable[..., Awaitable[int]]) -> None:
        """Call the store until it has no more of these jobs."""
        while room := self._room():
            removed = await step(limit=room, actor=self._actor)
            self._count(removed)
            if removed < room:
                return

    async def _remove_found(self, store: Store, state: State, now_ms: int) -> None:
        """For filters that stores have no call for: find the jobs, then remove each by a command.

        Whether a job is old enough is decided by this machine's clock here."""
        ended_by = now_ms - self._older_than_ms
        wanted = Filter(queue=self._queue, state=state, name=self._name, oldest_first=True)
        async for records in pages(store, wanted, CHUNK):
            if self._older_than_ms:
                records = tuple(each for each in records if (each.finished_ms or 0) <= ended_by)
            self._count(await change(store, "remove", records[: self._room()], self._actor))
            if not self._room():
                return

    def _count(self, removed: int) -> None:
        self._removed += removed
        self._advance(removed)


async def obliterate(
    store: Store,
    queue: QueueName,
    *,
    force: bool,
    actor: str | None,
    advance: Advance | None = None,
) -> None:
    """Remove the queue with everything in it. ConfigError if jobs are running, without `force`."""
    left = 0 if advance is None else sum((await store.count(queue)).values())
    while not await store.obliterate(queue, force=force, limit=CHUNK, actor=actor):
        if advance is not None:
            now = sum((await store.count(queue)).values())
            advance(max(0, left - now))
            left = now
