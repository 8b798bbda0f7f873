"""`queue.select(…)`: jobs by state, task, error, meta, arguments and time, for bulk changes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobq.api.blocking import Blocking, blocking
from jobq.api.context import QueueContext
from jobq.api.info import JobInfo
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.errors import InvalidJob
from jobq.operations import bulk
from jobq.operations.bulk import BulkProgress, OnProgress
from jobq.operations.listing import Matching
from jobq.operations.selecting import JobCriteria, make_criteria

_PREVIEW = 10_000
"""Records that a preview looks at, unless the caller gives another number: about a second."""
_SAMPLES = 5


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a selection matches. If it is not `complete`, there may be more than `matched`."""

    matched: int
    looked_at: int  # jobs that were compared with the criteria
    complete: bool
    samples: tuple[JobInfo, ...]
    unreadable: int = 0  # jobs whose arguments cannot be decoded here; they are never changed


class Selection:
    """Jobs of a queue that match some criteria: `queue.select("failed", name="charge*")`.

    The criteria are applied when a method runs, so a job that begins to match meanwhile may be
    included. A job that ends meanwhile is not.
    """

    def __init__(
        self, context: QueueContext, states: Sequence[State | str], given: JobCriteria
    ) -> None:
        if not states:
            raise InvalidJob("select(): name at least one state, as in select('failed')")
        self._context = context
        self._wanted = make_criteria(states, given)

    def __repr__(self) -> str:
        given = {k: v for k, v in msgspec.structs.asdict(self._wanted).items() if v}
        states = ", ".join(given.pop("states"))
        shown = "".join(f" {name}={value!r}" for name, value in given.items())
        return f"<Selection of {states} jobs of queue {self._context.name!r}{shown}>"

    async def preview(self, *, samples: int = _SAMPLES, max_jobs: int = _PREVIEW) -> Preview:
        """Count the jobs that match, and show the newest of them. Changes nothing.

        Looks at about `max_jobs` jobs at most; criteria other than the state are compared with
        each. A selection by state alone is counted exactly, at any size.
        """
        context, store = self._context, await self._context.store()
        found = await bulk.preview(
            store,
            context.qname,
            Matching(store, context.qname, self._wanted, parameters=context.parameters_of),
            samples=checks.check_int(samples, "samples"),
            max_jobs=checks.check_int(max_jobs, "max_jobs", low=1),
        )
        return Preview(
            matched=found.matched,
            looked_at=found.looked_at,
            complete=found.complete,
            samples=tuple(map(context.job_info, found.samples)),
            unreadable=found.unreadable,
        )

    async def cancel(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Cancel the jobs: waiting, delayed and blocked ones at once, and ask running ones to stop.

        See `rerun` for the arguments.
        """
        return await self._change("cancel", pace, max_jobs, cursor, on_progress)

    async def rerun(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Run ended jobs again from the start, the newest first.

        `pace` is how many jobs to change per second, `max_jobs` how many in total. `on_progress` is
        called after each store call. To continue an operation that was interrupted, pass the
        `cursor` of its last progress. An operation runs a job again once, even if it is
        interrupted and continued: jobs that have ended since its start are left alone.
        """
        return await self._change("rerun", pace, max_jobs, cursor, on_progress)

    async def purge(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Delete the records of ended jobs, and cancel waiting, delayed and blocked ones.

        See `rerun` for the arguments.
        """
        return await self._change("remove", pace, max_jobs, cursor, on_progress)

    async def _change(
        self,
        kind: str,
        pace: float | None,
        max_jobs: int | None,
        cursor: str | None,
        on_progress: OnProgress | None,
    ) -> BulkProgress:
        context = self._context
        change = bulk.BulkChange(
            await context.store(),
            context.qname,
            self._wanted,
            kind,
            actor=context.actor,
            now_ms=context.now_ms(),
            pace=pace,
            max_jobs=max_jobs,
            cursor=cursor,
            on_progress=on_progress,
            parameters=context.parameters_of,
        )
        return await change.run()


class SyncSelection(Blocking):
    """A selection of jobs with blocking methods. `on_progress` is called in another thread."""

    __slots__ = ()

    def __init__(self, selection: Selection) -> None:
        self._of = selection

    def __repr__(self) -> str:
        return repr(self._of)

    preview = blocking(Selection.preview)
    cancel = blocking(Selection.cancel)
    rerun = blocking(Selection.rerun)
    purge = blocking(Selection.purge)
