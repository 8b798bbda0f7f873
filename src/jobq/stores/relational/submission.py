"""Submits a flow that is larger than one step, by transactions of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from jobq.core import refusals
from jobq.core.graph import Lock, check_locks
from jobq.core.records import JobKey, JobSpec, PutResult, QueueName
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.relational import staging, submitting
from jobq.stores.relational.new_jobs import Watch
from jobq.stores.relational.staging import FIRST, FlowState, Part
from jobq.stores.relational.submitting import Flow, Page

Run = Callable[..., Coroutine[Any, Any, Any]]
"""Runs work(tx, *args) in a transaction."""


async def submit(
    read: Run, write: Run, flow: Flow, specs: Sequence[JobSpec], watch: Watch | None
) -> list[PutResult]:
    """Check a flow that is staged, decide that it is submitted, and make jobs of its members.

    Nothing is visible before the decision. After it, ticks do the rest if the caller dies. Returns
    the results of `specs`, the members of the last call."""
    try:
        while not await _decided(read, write, flow):
            pass
    except StoreUnavailable:
        raise
    except JobqError:
        if await discard(write, flow) is None:
            raise
        # Another caller, which repeats these calls, has submitted the flow.
    wanted = {JobKey(spec.queue, spec.id) for spec in specs}
    results: dict[JobKey, PutResult] = {}
    after, more = FIRST, True
    while more:
        done, after, more = await write(submitting.step, flow, after, watch)
        results |= {key: result for key, result in done.items() if key in wanted}
    found: list[PutResult] = await read(submitting.results, specs, results)
    return found


async def discard(write: Run, flow: Flow) -> FlowState | None:
    """Delete a flow of which a call was refused. A submitted one stays: its state is returned."""
    state: FlowState | None = FlowState.DISCARDED
    while state is FlowState.DISCARDED:
        state = await write(staging.discard, *flow)
    return state


async def _decided(read: Run, write: Run, flow: Flow) -> bool:
    """Check and submit a flow. Returns False if it has got more members meanwhile."""
    checks = await _checked(read, flow)
    if checks is None:
        return True
    samples = list(checks.samples.values())
    decided: bool = await write(submitting.decide, flow, checks.ends, samples)
    return decided


async def _checked(read: Run, flow: Flow) -> _Checks | None:
    """Read the whole flow, page by page. None: it is submitted already."""
    checks, after = _Checks(flow), FIRST
    while True:
        page: Page = await read(submitting.page, flow, after)
        if page.members is None:
            return None
        if not page.members:
            break
        checks.add(page)
        after = page.after
    outside = [job for job in checks.edges if job not in checks.members]
    for start in range(0, len(outside), staging.STEP):
        some = outside[start : start + staging.STEP]
        unknown = await read(submitting.missing, flow.tenant, some)
        if unknown is not None:
            raise refusals.unknown_child(checks.edges[unknown], unknown)
    return checks


class _Checks:
    """What is known of the members of a flow."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.ends = (0, 0)
        self.members: set[JobKey] = set()
        self.edges: dict[JobKey, str] = {}
        """Jobs that members wait for, and a member that does."""
        self.samples: dict[tuple[QueueName, bool], JobSpec] = {}
        """Of each queue, the members with the highest cost: one with a key and one without."""
        self._locks: dict[Lock, str] = {}

    def add(self, page: Page) -> None:
        """Add members. InvalidJob if two have the same unique lock."""
        self.ends = page.ends
        for member in page.members or ():
            edges = member.edges if isinstance(member, Part) else member.after
            self.edges |= {edge.job: member.id for edge in edges if edge.job.id}
            if isinstance(member, Part):
                continue
            self.members.add(JobKey(member.queue, member.id))
            check_locks([member], self._locks)
            kind = (member.queue, member.key is not None)
            sample = self.samples.get(kind)
            if sample is None or member.cost > sample.cost:
                self.samples[kind] = member
