"""Submits flows, also those larger than one step, by transactions of bounded size."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from jobq.core.records import refusals
from jobq.core.records.defaults import FLOW_MS
from jobq.core.records.event_log import STATES
from jobq.core.records.jobs import Edge, JobKey, JobSpec, PutResult, QueueName
from jobq.core.records.states import State
from jobq.core.rules.flows import Lock, check_locks
from jobq.errors import JobqError, StoreUnavailable
from jobq.stores.relational import flows, put, rows, staging, waiting
from jobq.stores.relational.mailbox import Watch
from jobq.stores.relational.rows import BLOCKED, ENDED, NOTED, Job
from jobq.stores.relational.staging import FIRST, FlowState, Part
from jobq.stores.relational.tx import Tx

# Makes jobs of the members of a flow.
#
# A small flow is submitted by one transaction. A larger one would keep other calls from writing for
# seconds, so it is submitted by several of bounded size:
#
# 1. `members_page` and `missing` read the whole flow, to check it (`_checked`).
# 2. `decide` is the one step that decides that the flow is submitted.
# 3. `step` makes jobs of some members. The caller repeats it, and a tick does if the caller died.
#
# Members that wait for others become jobs first, so that each job knows its parents before it can
# start. Among them, the last ones come first: a flow is staged in the order of its graph, so
# parents are stored before the jobs that they wait for, also if those wait for others. In any
# other order the result is the same. An edge to a member that is no job yet is stored without
# looking at it.
#
# A member may have more edges than one step stores. Until the last of them is stored, an edge of
# ordinal -1 to nobody keeps the job blocked. It names the flow: another flow may have a member of
# the same id.

LEFT_MS = 10_000
"""Milliseconds after the last step of a flow until a tick continues it: its caller has died."""


class Flow(NamedTuple):
    """A flow of a tenant."""

    tenant: str
    name: str


class Step(NamedTuple):
    """What a step has done: the results of its members, and where the next one begins."""

    put_results: dict[JobKey, PutResult]
    after: int
    more: bool


def put_flow(
    tx: Tx, specs: Sequence[JobSpec], watch: Watch | None, flow: str, last: bool, begins: bool
) -> list[PutResult] | None:
    """Stage members of a flow. With `last`, submit the flow if it is small. Without `begins`, the
    flow must be stored already.

    Returns None if it is not small: it takes several steps."""
    check_locks(specs)
    tenant = specs[0].queue.tenant
    state = staging.stage(tx, tenant, flow, specs, begins)
    if state is FlowState.DISCARDED:
        raise refusals.swept_flow(flow)
    if not last or state is FlowState.COMPLETE:
        return [_result(tx, spec) for spec in specs]
    if state is FlowState.SUBMITTED or not staging.is_small(tx, tenant, flow):
        return None
    every = staging.unstage(tx, tenant, flow)
    check_locks(every)
    put_results = put.put(tx, every, watch, bounded=False)
    found = {(spec.queue, spec.id): result for spec, result in zip(every, put_results, strict=True)}
    return [found[spec.queue, spec.id] for spec in specs]


def _result(tx: Tx, spec: JobSpec) -> PutResult:
    """The result for a member that this call has not made a job."""
    queue = tx.queue(spec.queue)
    job = None if queue is None else tx.look(queue.qid, spec.id)
    if job is not None:
        return PutResult(id=job.id, life=job.life, state=STATES[job.state], duplicate=True)
    return PutResult(id=spec.id, life=0, state=State.BLOCKED if spec.after else State.WAITING)


def results_of_last_call(
    tx: Tx, specs: Sequence[JobSpec], known: dict[JobKey, PutResult]
) -> list[PutResult]:
    """The results of the last call. Members that were blocked may have been unblocked since."""
    found = []
    for spec in specs:
        result = known.get(JobKey(spec.queue, spec.id))
        if result is None:
            result = _result(tx, spec)
        elif spec.after and not result.duplicate:
            result = replace(result, state=_result(tx, spec).state)
        found.append(result)
    return found


# ── checks ────────────────────────────────────────────────────────────────────────────────────────


class Page(NamedTuple):
    """Some members of an open flow, to be checked. None: the flow is not open any more."""

    members: list[JobSpec | Part] | None
    after: int
    ends: tuple[int, int]


def members_page(tx: Tx, flow: Flow, after: int) -> Page:
    """The next members of a flow, about as many as a step has."""
    found = tx.execute(tx.sql.ties["flow_now"], flow).fetchone()
    if found is None or found[0] == FlowState.DISCARDED:
        raise refusals.swept_flow(flow.name)
    ends = staging.ends(tx, *flow)
    if found[0] != FlowState.OPEN:
        return Page(None, after, ends)
    until = _until(staging.weights(tx, *flow, after, staging.STEP), after)
    members = [member for _, _, member in staging.read_some(tx, *flow, after, until)]
    return Page(members, until, ends)


def missing(tx: Tx, tenant: str, jobs: Iterable[JobKey]) -> JobKey | None:
    """The first of these jobs that does not exist, or belongs to another tenant."""
    for job in jobs:
        queue = tx.queue(job.queue) if job.queue.tenant == tenant else None
        if queue is None or tx.look(queue.qid, job.id) is None:
            return job
    return None


def decide(tx: Tx, flow: Flow, ends: tuple[int, int], samples: Sequence[JobSpec]) -> bool:
    """Submit a flow that was checked. Returns False if it has got more members since.

    `samples` are the members that decide whether a queue accepts all of them: it has one mode, and
    a highest cost."""
    tx.lock_queues({spec.queue for spec in samples})
    found = tx.execute(tx.sql.ties["flow"], flow).fetchone()
    if found is None or found[0] == FlowState.DISCARDED:
        raise refusals.swept_flow(flow.name)
    if found[0] != FlowState.OPEN:
        return True
    if staging.ends(tx, *flow) != ends:
        return False
    by_queue: dict[QueueName, list[JobSpec]] = {}
    for spec in samples:
        by_queue.setdefault(spec.queue, []).append(spec)
    for queue, some in by_queue.items():
        put.checked_specs(tx.ensure_queue(queue), some)
    staging.set_state(tx, *flow, FlowState.SUBMITTED)
    return True


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


def step(tx: Tx, flow: Flow, after: int = FIRST, watch: Watch | None = None) -> Step:
    """Make jobs of the next members of a submitted flow. Anybody may do it, and repeat it."""
    found = staging.weights(tx, *flow, after, staging.STEP)
    until = _until(found, after)
    some = list(staging.read_some(tx, *flow, after, until))
    tx.lock_queues(_queues(member for _, _, member in some))
    state = tx.execute(tx.sql.ties["flow"], flow).fetchone()
    if state is None or state[0] != FlowState.SUBMITTED:
        return Step({}, after, False)
    if staging.weights(tx, *flow, after, staging.STEP) != found:
        return Step({}, FIRST, True)  # another caller has done this step meanwhile
    if not some:
        if after != FIRST:
            return Step({}, FIRST, True)  # look once more from the beginning
        return Step({}, after, _forget_represented(tx, flow))
    done: dict[JobKey, PutResult] = {}
    for n, _, member in some:
        if isinstance(member, Part):
            _add_part(tx, flow, member)
            tx.execute(tx.sql.ties["unstage"], (*flow, n - 1, n))
        elif member.after:
            done[JobKey(member.queue, member.id)] = _bring_in_tied(tx, flow, n, member, watch)
    free = [
        (n, member) for n, _, member in some if isinstance(member, JobSpec) and not member.after
    ]
    if until > 0:
        tx.execute(tx.sql.ties["unstage"], (*flow, max(after, 0), until))
    for queue in dict.fromkeys(member.queue for _, member in free):
        done |= _bring_in_free(
            tx, flow, queue, [each for each in free if each[1].queue == queue], watch
        )
    put.free_places(tx, [(member.queue, takes) for _, takes, member in some])
    staging.set_state(tx, *flow, FlowState.SUBMITTED)
    return Step(done, until, True)


def tick(tx: Tx, limit: int) -> int:
    """Continue a flow that its caller has left. Returns how many steps it took."""
    left = tx.execute(tx.sql.ties["left_flows"], (tx.now - LEFT_MS, 1)).fetchall()
    for tenant, name, state in left:
        flow = Flow(tenant, name)
        if state == FlowState.DISCARDED:
            more = staging.discard(tx, *flow) is FlowState.DISCARDED
        else:
            more = step(tx, flow).more
        if more:  # the next tick goes on at once
            tx.execute(tx.sql.ties["set_flow"], (state, tx.now - LEFT_MS - 1, *flow))
        return limit if more else 1
    return 0


def _until(found: Sequence[tuple[int, int]], after: int) -> int:
    """The place of the last member that a step has room for. It has room for at least one."""
    cost = 0
    until = after
    for n, weight in found:
        cost += weight
        if cost > staging.STEP and until != after:
            break
        until = n
    return until


def _queues(members: Iterable[JobSpec | Part]) -> set[QueueName]:
    """The queues that a step needs."""
    names = set()
    for member in members:
        names.add(member.queue)
        edges = member.edges if isinstance(member, Part) else member.after
        names |= {edge.job.queue for edge in edges}
    return names


def _forget_represented(tx: Tx, flow: Flow) -> bool:
    """Delete rows that name the jobs which represent members: all members are jobs now. Returns
    whether there are more; if not, the flow is complete."""
    if staging.delete_some(tx, *flow, staging.STEP) == staging.STEP:
        return True
    staging.set_state(tx, *flow, FlowState.COMPLETE)
    return False


def _bring_in_tied(tx: Tx, flow: Flow, n: int, spec: JobSpec, watch: Watch | None) -> PutResult:
    """Make a job of a member that waits for others."""
    queue = tx.ensure_queue(spec.queue)
    tied: list[tuple[Job, JobSpec]] = []
    awaited = _awaited(tx, queue.qid, [spec.id])
    (result,) = put.insert_members(tx, queue, [spec], watch, tied, awaited)
    tx.execute(tx.sql.ties["unstage"], (*flow, n - 1, n))
    if result.duplicate:
        _represent(tx, flow, n, queue.qid, spec, result)
        return result
    ((job, _),) = tied
    if spec.after[0].job.id == "":
        nobody = rows.Edge(-1, queue.qid, "", 0, 0, None, None, None, flow.name)
        tx.execute(tx.sql.ties["add_edge"], (job.pk, *nobody))
    else:
        _tie(tx, flow, job, spec.after, 0)
        _release(tx, job)
    return replace(result, state=STATES[job.state])


def _add_part(tx: Tx, flow: Flow, part: Part) -> None:
    """Add edges to a job. A job that existed before its flow keeps its own edges, and gets none.
    Neither does a job that somebody has rerun meanwhile: it waits for nothing."""
    queue = tx.ensure_queue(part.queue)
    job = tx.find(queue.qid, part.id)
    if job is None or tx.execute(tx.sql.ties["tying"], (job.pk, flow.name)).fetchone() is None:
        return
    if job.starts or job.state not in (BLOCKED, *ENDED):
        tx.execute(tx.sql.ties["all_tied"], (job.pk,))
        return
    _tie(tx, flow, job, part.edges, part.ordinal)
    if part.last:
        tx.execute(tx.sql.ties["all_tied"], (job.pk,))
        _release(tx, job)


def _tie(tx: Tx, flow: Flow, parent: Job, edges: Sequence[Edge], ordinal: int) -> None:
    """Make a job wait for members of its flow and for other jobs."""
    mine = {edge.job for edge in edges if edge.job.queue.tenant == flow.tenant}
    staged = staging.members(tx, *flow, mine)
    open_edges = []
    fatal = None
    for n, edge in enumerate(edges, ordinal):
        if edge.job not in mine:
            continue  # it is there already
        mine.remove(edge.job)
        qid = tx.ensure_queue(edge.job.queue).qid
        id = staged.get(edge.job, edge.job.id)
        if id is None:
            row = rows.Edge(n, qid, edge.job.id, int(edge.data), 0, None, None, None, None)
            open_edges.append((parent.pk, *row))
            continue
        child = tx.find_free(qid, id)
        if child is None and edge.job not in staged:
            end = flows.tie_to_gone(tx, parent, edge, n, qid)
            fatal = fatal or end
        else:
            failing = flows.tie_to(tx, parent, edge, n, qid, id, child)
            fatal = fatal or (None if failing is None else flows.end_of(failing))
    tx.many(tx.sql.ties["add_edge"], open_edges)
    parent.flags |= NOTED
    tx.save(parent)
    if fatal is not None and parent.state == BLOCKED:
        flows.fail_because(tx, parent, fatal)


def _release(tx: Tx, job: Job) -> None:
    """Unblock a job if nothing blocks it."""
    if job.state == BLOCKED and not job.follows and not flows.waits(tx, job):
        waiting.unblock(tx, job)


def _bring_in_free(
    tx: Tx,
    flow: Flow,
    name: QueueName,
    members: Sequence[tuple[int, JobSpec]],
    watch: Watch | None,
) -> dict[JobKey, PutResult]:
    """Make jobs of members of one queue that wait for nothing."""
    queue = tx.ensure_queue(name)
    specs = [spec for _, spec in members]
    awaited = _awaited(tx, queue.qid, [spec.id for spec in specs])
    found = put.insert_members(tx, queue, specs, watch, [], awaited)
    for (n, spec), result in zip(members, found, strict=True):
        if result.duplicate:
            _represent(tx, flow, n, queue.qid, spec, result)
    return {JobKey(name, spec.id): result for spec, result in zip(specs, found, strict=True)}


def _awaited(tx: Tx, qid: int, ids: Sequence[str]) -> frozenset[str]:
    """Which of these members are waited for by jobs that are stored."""
    found = tx.execute(tx.sql.ties["awaited"], (qid, tx.listed(ids))).fetchall()
    return frozenset(id for (id,) in found)


def _represent(tx: Tx, flow: Flow, n: int, qid: int, spec: JobSpec, result: PutResult) -> None:
    """A member became no job: another one has its id, or holds its unique lock. The jobs that wait
    for the member wait for that one."""
    if result.id != spec.id:
        staging.represent(tx, *flow, n, JobKey(spec.queue, spec.id), result.id)
        tx.execute(tx.sql.ties["redirect_edges"], (result.id, spec.id, qid))
    flows.meet(tx, qid, result.id)


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
        done, after, more = await write(step, flow, after, watch)
        results |= {key: result for key, result in done.items() if key in wanted}
    found: list[PutResult] = await read(results_of_last_call, specs, results)
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
    decided: bool = await write(decide, flow, checks.ends, samples)
    return decided


async def _checked(read: Run, flow: Flow) -> _Checks | None:
    """Read the whole flow, page by page. None: it is submitted already."""
    checks, after = _Checks(flow), FIRST
    while True:
        page: Page = await read(members_page, flow, after)
        if page.members is None:
            return None
        if not page.members:
            break
        checks.add(page)
        after = page.after
    outside = [job for job in checks.edges if job not in checks.members]
    for start in range(0, len(outside), staging.STEP):
        some = outside[start : start + staging.STEP]
        unknown = await read(missing, flow.tenant, some)
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


# Flows that a handle has begun and not submitted.
#
# The later calls of a flow must find it stored. If the flow was swept, or another caller's call was
# refused, they would otherwise begin a new flow that lacks the members of the earlier calls.


class _Draft(NamedTuple):
    """A flow: the first member of its first call, who has begun it, and since when."""

    first: JobKey
    callers: int
    """Calls that began the flow. Two callers may submit it through one handle, and a call that got
    no reply is repeated."""
    since: float


class Drafts:
    """Tells the first call of a flow from later ones, by the first member of the first call."""

    def __init__(self) -> None:
        self._begun: dict[Flow, _Draft] = {}

    def begins(self, flow: Flow, spec: JobSpec) -> bool:
        """Whether a call whose first member is `spec` may begin the flow."""
        job = JobKey(spec.queue, spec.id)
        draft = self._begun.get(flow) or _Draft(job, 0, time.monotonic())
        begins = draft.first == job
        self._begun[flow] = draft._replace(callers=draft.callers + begins)
        return begins

    def refused(self, flow: Flow) -> None:
        """A call was refused, and the flow discarded. Other callers may be in the middle of it."""
        draft = self._begun.get(flow)
        if draft is not None and draft.callers > 1:
            self._begun[flow] = draft._replace(callers=draft.callers - 1)
        else:
            self.submitted(flow)

    def submitted(self, flow: Flow) -> None:
        """The flow is submitted."""
        self._begun.pop(flow, None)
        # Of flows whose caller died, forget those that were swept long ago. The oldest come first.
        before = time.monotonic() - 24 * FLOW_MS / 1000
        for name, draft in list(self._begun.items())[:2]:
            if draft.since < before:
                del self._begun[name]
