"""Changes all jobs of a queue that match, each of them once.

A bulk operation reads jobs page by page and gives a command for each. It can be interrupted at any
time and continued with the cursor of its last progress. A job changes once, also then:

- A command names the life in which the job was read, and the store compares it. So a job that
  somebody has rerun since is left alone.
- The cursor carries when the operation began. Jobs that have ended since are not selected. So a job
  that the operation itself has rerun, and that has ended again, is left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from jobq.core.records import criteria
from jobq.core.records.commands import (
    APPLIES,
    Altered,
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Rerun,
)
from jobq.core.records.criteria import Criteria, SelectionCursor
from jobq.core.records.jobs import Filter, JobKey, JobRecord, QueueName
from jobq.core.records.states import ENDED, State
from jobq.core.values import checks
from jobq.errors import InvalidJob
from jobq.operations.listing import PAGE, Matching, Parameters
from jobq.stores.base import Store


class Operation(NamedTuple):
    """Something that can be done to all jobs that match. Every face takes its words from here."""

    command: type[AnyCommand]
    about: str
    """What it does, in one sentence."""
    verb: str
    """What people call it."""
    did: str
    """What has become of a job."""
    question: str
    """`{n}` stands for the jobs."""
    states: tuple[State, ...]
    """The states that are meant if none are named."""


OPERATIONS = {
    "rerun": Operation(
        Rerun,
        "Run ended jobs again from the start.",
        "rerun",
        "rerun",
        "Run {n} again?",
        (State.FAILED,),
    ),
    "promote": Operation(
        Promote,
        "Make delayed jobs waiting now.",
        "promote",
        "promoted",
        "Make {n} waiting now?",
        (State.DELAYED,),
    ),
    "cancel": Operation(
        Cancel,
        "Cancel jobs. Running jobs are asked to stop.",
        "cancel",
        "cancelled",
        "Cancel {n}?",
        (State.BLOCKED, State.DELAYED, State.WAITING, State.ACTIVE),
    ),
    "remove": Operation(
        Remove,
        "Remove the records of ended jobs and cancel waiting ones.",
        "purge",
        "purged",
        "Remove {n} for good?",
        (State.FAILED,),
    ),
}
"""By the tag of the command, in the order of the dashboard's buttons."""


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an operation is. `cursor` continues it; None means that it has finished."""

    changed: int
    skipped: int  # jobs that left the state for the command, or were rerun, before it reached them
    looked_at: int
    cursor: str | None
    unreadable: int = 0


OnProgress = Callable[[BulkProgress], None]


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What criteria match. If it is not `complete`, there may be more than `matched`."""

    matched: int
    looked_at: int
    complete: bool
    samples: tuple[JobRecord, ...]
    unreadable: int


async def alter_as_read(
    store: Store, kind: str, records: Sequence[JobRecord], actor: str | None
) -> list[Altered]:
    """Give one command for each job, for the life in which it was read."""
    command = OPERATIONS[kind].command
    commands = [
        command(job=JobKey(each.queue, each.id), life=each.life, actor=actor)  # type: ignore[call-arg]
        for each in records
    ]
    return await store.alter(commands) if commands else []


async def preview(
    store: Store, queue: QueueName, matching: Matching, *, samples: int, max_jobs: int
) -> Counted:
    """Count the jobs that match and read the first of them. Changes nothing.

    Looks at about `max_jobs` jobs at most. A selection by state alone is counted exactly."""
    wanted = matching.wanted
    by_state = wanted.by_state_only
    size = max(1, samples) if by_state else min(PAGE, max_jobs)
    matched, complete = 0, True
    shown: list[JobRecord] = []
    async for records in matching.pages(size):
        matched += len(records)
        shown += records[: max(0, samples - len(shown))]
        if matching.looked_at >= max_jobs or (by_state and len(shown) >= samples):
            complete = False
            break
    if by_state and not complete:
        counts = await store.count(queue)
        matched, complete = sum(counts.get(each, 0) for each in wanted.states or State), True
    return Counted(
        matched=matched,
        looked_at=matching.looked_at,
        complete=complete,
        samples=tuple(shown),
        unreadable=matching.unreadable,
    )


class BulkChange:
    """One bulk operation, or a part of it. Checks its arguments when it is made."""

    def __init__(
        self,
        store: Store,
        queue: QueueName,
        wanted: Criteria,
        kind: str,
        *,
        actor: str | None,
        now_ms: int,
        began_ms: int | None = None,
        pace: float | None = None,
        max_jobs: int | None = None,
        max_compared: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
        oldest_first: bool = False,
        parameters: Parameters = lambda name: (),
    ) -> None:
        _check_states(kind, wanted.states)
        if kind == "remove":
            # Ended jobs first: a waiting job that is removed now stays on record as cancelled.
            wanted = replace(wanted, states=wanted.states[::-1])
        self._store, self._queue, self._kind, self._actor = store, queue, kind, actor
        self._matching = Matching(
            store, queue, wanted, oldest_first=oldest_first, parameters=parameters
        )
        self._pace = None if pace is None else checks.check_number(pace, "pace", low=0.001)
        self._max_jobs = None if max_jobs is None else checks.check_int(max_jobs, "max_jobs")
        self._max_compared = max_compared
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidJob(f"cursor={checks.shown(cursor)} is not a cursor")
        self._resume_at = self._matching.begin(cursor)
        self._on_progress = on_progress
        self._changed = self._skipped = 0
        self._now_ms = now_ms
        self.began_ms = self._resume_at.began_ms if began_ms is None else began_ms
        """When the first part of the operation began."""

    async def run(self) -> BulkProgress:
        """Change the jobs, up to `max_jobs`, after comparing `max_compared` jobs at most."""
        if self.began_ms is None:
            self.began_ms = await self._start()
        at: SelectionCursor | None = replace(self._resume_at, began_ms=self.began_ms)
        self._loop_began = asyncio.get_running_loop().time()
        while at is not None and (size := self._page_size) > 0:
            records, following = await self._matching.page(at, size)
            # An interrupted page is read again from its beginning. Jobs that were changed are not
            # selected again: they are in another state, or have ended since the start.
            records = [record for record in records if not self._is_new(record)]
            while records and (room := self._room):
                part, records = records[:room], records[room:]
                await self._change(part)
                self._report(at)
            if not self._room:
                return self._progress(at)
            self._report(at)
            at = following
        self._report(at)
        return self._progress(at)

    async def _start(self) -> int:
        """The time of the start by this machine's clock, but not before an end on record.

        The store has another clock. A job that has ended is not new, even if that clock is ahead.
        """
        began_ms = self._now_ms
        for state in ENDED & set(self._matching.wanted.states):
            newest = await self._store.find(Filter(queue=self._queue, state=state), limit=1)
            began_ms = max(began_ms, *(record.finished_ms or 0 for record in newest.records), 0)
        # Times are whole milliseconds: what this operation changes must end in a later one.
        await asyncio.sleep(0.001)
        return began_ms

    def _is_new(self, record: JobRecord) -> bool:
        """Whether the job has ended since the start; for a promotion: whether it has started."""
        moved_ms = record.started_ms if self._kind == "promote" else record.finished_ms
        return moved_ms is not None and moved_ms > (self.began_ms or 0)

    async def _change(self, records: Sequence[JobRecord]) -> None:
        if self._pace is not None:
            elapsed = asyncio.get_running_loop().time() - self._loop_began
            done = self._changed + self._skipped
            if (seconds := criteria.pause_s(done, elapsed, self._pace)) > 0:
                await asyncio.sleep(seconds)
        replies = await alter_as_read(self._store, self._kind, records, self._actor)
        self._changed += replies.count("done")
        self._skipped += len(records) - replies.count("done")

    @property
    def _room(self) -> int:
        """How many jobs the next call may change; 0 if `max_jobs` is reached."""
        step = criteria.step_size(self._pace)
        return step if self._max_jobs is None else min(step, self._max_jobs - self._changed)

    @property
    def _page_size(self) -> int:
        """How many jobs the next page may have; 0 if `max_compared` is reached."""
        left = PAGE if self._max_compared is None else self._max_compared - self._matching.effort
        return min(PAGE, left)

    def _progress(self, at: SelectionCursor | None) -> BulkProgress:
        return BulkProgress(
            changed=self._changed,
            skipped=self._skipped,
            looked_at=self._matching.looked_at,
            unreadable=self._matching.unreadable,
            cursor=None if at is None else criteria.pack_cursor(at),
        )

    def _report(self, at: SelectionCursor | None) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress(at))


def _check_states(kind: str, states: Sequence[State]) -> None:
    allowed = APPLIES[kind].states
    if not states:
        raise InvalidJob("choose at least one state")
    for state in states:
        if state not in allowed:
            verb = OPERATIONS[kind].verb
            names = ", ".join(each.value for each in State if each in allowed)
            raise InvalidJob(f"{verb} does not apply to {state.value} jobs: select {names} jobs")
