"""`queue.select(…)`: jobs by state, task, error, meta, arguments and time, to change them in bulk.

Every operation is a loop of bounded store calls. It can be interrupted at any time and continued
with the cursor of its last progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from jobq.api.context import QueueContext
from jobq.api.info import JobInfo
from jobq.api.purging import check_state
from jobq.core import checks, criteria
from jobq.core.calls import CallShape
from jobq.core.codec import JSON
from jobq.core.commands import APPLIES, AnyCommand, Cancel, Remove, Rerun
from jobq.core.criteria import Criteria, Place
from jobq.core.meta import check_meta
from jobq.core.records import Filter, JobKey, JobRecord, QueueName
from jobq.core.states import State
from jobq.errors import InvalidJob
from jobq.stores.base import Store

_PAGE = 500
"""Records per call of `find`: a page of large jobs still takes well under a second."""
_PREVIEW = 10_000
"""Records that a preview looks at, unless the caller gives another number: about a second."""
_SAMPLES = 5
_ORDER = (
    State.BLOCKED,
    State.DELAYED,
    State.WAITING,
    State.ACTIVE,
    State.COMPLETED,
    State.FAILED,
    State.CANCELLED,
)
"""The order in which states are read. A job that moves on meanwhile is found in a later one."""


class JobCriteria(TypedDict, total=False):
    """Which jobs to find or select. In `name` and `error`, `*` stands for any text.

    None excludes no job. A job matches from `…_after` on and before `…_before`; one that has not
    ended matches no time of its end. A name in `arguments` is that of a parameter, or a position
    ("0") if this process does not have the task's function.
    """

    name: str | None
    key: str | None
    error: str | None
    meta: Mapping[str, str] | None
    arguments: Mapping[str, Any] | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a selection matches. If it is not `complete`, there may be more than `matched`."""

    matched: int
    looked_at: int  # jobs that were compared with the criteria
    complete: bool
    samples: tuple[JobInfo, ...]
    unreadable: int = 0  # jobs whose arguments cannot be decoded here; they are never changed


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an operation is. `cursor` continues it; None means that it has finished."""

    changed: int
    skipped: int  # jobs that left the state for the command, or were rerun, before it reached them
    looked_at: int
    cursor: str | None
    unreadable: int = 0


OnProgress = Callable[[BulkProgress], None]


def make_criteria(states: Sequence[State | str], given: JobCriteria) -> Criteria:
    """The criteria that a user gave. InvalidJob names the one that is wrong."""
    checks.check_known(given, JobCriteria.__annotations__, "criterion")
    times = {
        f"{name}_ms": checks.to_epoch_ms(given[name], name)
        for name in ("created_after", "created_before", "ended_after", "ended_before")
        if given.get(name) is not None
    }
    name, key, error = given.get("name"), given.get("key"), given.get("error")
    return Criteria(
        states=tuple(sorted({check_state(state) for state in states}, key=_ORDER.index)),
        name=None if name is None else checks.check_task_name(name),
        key=None if key is None else checks.check_key(key),
        error=None if error is None else _check_error(error),
        meta=check_meta(given.get("meta") or {}) or {},
        arguments=_check_arguments(given.get("arguments")),
        **times,
    )


def _check_error(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidJob(f"error={checks.shown(value)} is not a pattern such as 'Timeout*'")
    return value


def _check_arguments(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidJob(f"arguments={checks.shown(value)} is not a map of names to values")
    arguments = {str(name): wanted for name, wanted in value.items()}
    JSON.encode(arguments)  # InvalidJob has the path of what no job can contain
    return arguments


class Matching:
    """Reads the jobs that match some criteria, page by page."""

    def __init__(
        self, context: QueueContext, wanted: Criteria, *, oldest_first: bool = False
    ) -> None:
        self._context = context
        self._oldest_first = oldest_first
        self._parameters: dict[str, tuple[str, ...]] = {}
        self.wanted = wanted
        self.looked_at = 0
        self.unreadable = 0

    async def pages(self, place: Place, size: int) -> AsyncIterator[tuple[list[JobRecord], Place]]:
        """The matching jobs of each page, also if there are none, and where the page begins."""
        store = await self._context.store()
        states: Sequence[State | None] = self.wanted.states or (None,)
        for number in range(place.state, len(states)):
            filter = self._filter(states[number])
            cursor = place.cursor if number == place.state else None
            while True:
                page = await store.find(filter, cursor=cursor, limit=size)
                matched = [record for record in page.records if self._matches(record)]
                yield matched, Place(self.wanted.digest, number, cursor)
                if (cursor := page.cursor) is None:
                    break

    def _filter(self, state: State | None) -> Filter:
        return self.wanted.filter(self._context.qname, state, oldest_first=self._oldest_first)

    def _matches(self, record: JobRecord) -> bool:
        self.looked_at += 1
        parameters = self._parameters_of(record.name) if self.wanted.arguments else ()
        verdict = self.wanted.verdict(record, parameters)
        self.unreadable += verdict == "unreadable"
        return verdict == "match"

    def _parameters_of(self, name: str) -> tuple[str, ...]:
        """The positional parameters of a task, if this process has its function."""
        if name not in self._parameters:
            handler = self._context.tasks.get(name)
            known = handler is not None and handler.batch is None
            self._parameters[name] = CallShape(handler.fn).positional if handler and known else ()
        return self._parameters[name]


class Selection:
    """Jobs of a queue that match some criteria: `queue.select("failed", name="charge*")`.

    The criteria are applied when a method runs, so a job that begins to match meanwhile may be
    included.
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
        checks.check_int(samples, "samples")
        checks.check_int(max_jobs, "max_jobs", low=1)
        store = await self._context.store()
        matching, matched = Matching(self._context, self._wanted), 0
        shown: list[JobInfo] = []
        by_state = self._wanted.by_state_only
        complete = True
        async for records, _ in matching.pages(
            Place(self._wanted.digest), max(1, samples) if by_state else min(_PAGE, max_jobs)
        ):
            matched += len(records)
            shown += map(self._context.job_info, records[: max(0, samples - len(shown))])
            if matching.looked_at >= max_jobs or (by_state and len(shown) >= samples):
                complete = False
                break
        if by_state and not complete:
            counts = await store.count(self._context.qname)
            matched, complete = sum(counts.get(state, 0) for state in self._wanted.states), True
        return Preview(
            matched=matched,
            looked_at=matching.looked_at,
            complete=complete,
            samples=tuple(shown),
            unreadable=matching.unreadable,
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
        context = self._context
        return await self._change(
            "cancel",
            lambda job: Cancel(job=job, actor=context.actor),
            _Limits(pace, max_jobs, cursor, on_progress),
        )

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
        `cursor` of its last progress. One call runs a job again once, even if it ends again in
        another state of the selection.
        """
        context = self._context
        return await self._change(
            "rerun",
            lambda job: Rerun(job=job, actor=context.actor),
            _Limits(pace, max_jobs, cursor, on_progress),
        )

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
        context = self._context
        return await self._change(
            "remove",
            lambda job: Remove(job=job, actor=context.actor),
            _Limits(pace, max_jobs, cursor, on_progress),
        )

    async def _change(
        self, kind: str, command: Callable[[JobKey], AnyCommand], limits: _Limits
    ) -> BulkProgress:
        self._check_states(kind)
        wanted, qname = self._wanted, self._context.qname
        if kind == "remove":
            # Ended jobs first: a waiting job that is removed now stays on record as cancelled.
            wanted = msgspec.structs.replace(wanted, states=wanted.states[::-1])
        start = criteria.unpack_place(limits.cursor, wanted.digest, len(wanted.states))
        store = await self._context.store()
        matching = Matching(self._context, wanted)
        changed = skipped = 0
        # A completed job that is rerun may be among the failed ones when these are read.
        rerun: set[str] | None = set() if kind == "rerun" and len(wanted.states) > 1 else None

        def progress(at: Place | None) -> BulkProgress:
            return BulkProgress(
                changed=changed,
                skipped=skipped,
                looked_at=matching.looked_at,
                unreadable=matching.unreadable,
                cursor=None if at is None else criteria.pack_place(at),
            )

        async for records, place in matching.pages(start, _PAGE):
            # An interrupted page is read again from its beginning: it has no changed jobs any more.
            if rerun is not None:
                records = [record for record in records if record.id not in rerun]
                rerun.update(record.id for record in records)
            while records and (room := limits.room(changed)):
                part, records = records[:room], records[room:]
                keys = [JobKey(qname, each.id) for each in part]
                if limits.is_paced:
                    await limits.pause(changed + skipped)
                    keys = await _in_same_life(store, qname, part)
                replies = await store.alter(list(map(command, keys))) if keys else []
                changed += replies.count("done")
                skipped += len(part) - replies.count("done")
                limits.report(progress(place))
            if not limits.room(changed):
                return progress(place)
            limits.report(progress(place))
        done = progress(None)
        limits.report(done)
        return done

    def _check_states(self, kind: str) -> None:
        for state in self._wanted.states:
            if state not in APPLIES[kind].states:
                allowed = ", ".join(s for s in State if s in APPLIES[kind].states)
                verb = "purge" if kind == "remove" else kind
                raise InvalidJob(
                    f"{verb} does not apply to {state.value} jobs: select {allowed} jobs"
                )


async def _in_same_life(
    store: Store, queue: QueueName, records: Sequence[JobRecord]
) -> list[JobKey]:
    """The jobs that nobody has started over since they were read, which may be minutes ago.

    A purge must not remove a failed job that was rerun meanwhile.
    """
    keys = [JobKey(queue, record.id) for record in records]
    return [
        key
        for key, read, now in zip(keys, records, await store.get(keys), strict=True)
        if now is not None and now.life == read.life
    ]


class _Limits:
    """How fast an operation goes, where it begins and when it stops. Checked when made."""

    def __init__(
        self,
        pace: float | None,
        max_jobs: int | None,
        cursor: str | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._pace = None if pace is None else checks.check_number(pace, "pace", low=0.001)
        self._max_jobs = None if max_jobs is None else checks.check_int(max_jobs, "max_jobs")
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidJob(f"cursor={checks.shown(cursor)} is not a cursor")
        self.cursor = cursor
        self._on_progress = on_progress
        self._began = asyncio.get_running_loop().time()

    @property
    def is_paced(self) -> bool:
        """Whether calls wait for each other, so that jobs may change after they were read."""
        return self._pace is not None

    def room(self, changed: int) -> int:
        """How many jobs the next call may change; 0 if `max_jobs` is reached."""
        step = criteria.step_size(self._pace)
        return step if self._max_jobs is None else min(step, self._max_jobs - changed)

    async def pause(self, done: int) -> None:
        """Wait until the pace allows the next call."""
        elapsed = asyncio.get_running_loop().time() - self._began
        if (seconds := criteria.pause_s(done, elapsed, self._pace)) > 0:
            await asyncio.sleep(seconds)

    def report(self, progress: BulkProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)
