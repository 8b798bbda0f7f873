"""Flows: jobs that wait for other jobs, as a graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from jobq.core.records.jobs import Filter, JobKey, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.operations import listing
from jobq.operations.flows import read_tree
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.view import Shape, View

MAX_NODES = 300
"""Jobs of one graph: more cannot be told apart on a screen."""
_CLIMB = 50
"""Levels that are climbed from a job to the last job of its flow."""
_QUEUES = 20
_PER_STATE = 50
_STATES = tuple(State)
_LISTED = 100


class FlowNode(Shape, frozen=True, kw_only=True):
    """A job of a flow. `layer` 0 is the job that ends the flow; others are to its left."""

    tenant: str
    queue: str
    id: str
    name: str
    """Empty if the record is gone."""
    state: str
    """One of the seven states, or `gone`."""
    layer: int
    place: int
    """From the top of its layer, from 0."""
    error: str | None
    """The type of the error of a failed job."""
    hidden: int
    """Jobs that it waits for and that are not in the graph."""


class FlowEdge(Shape, frozen=True, kw_only=True):
    """A line of the graph: indexes in the list of nodes. `waiter` waits for `waited_for`."""

    waiter: int
    waited_for: int


class FlowGraph(Shape, frozen=True, kw_only=True):
    """The flow that a job belongs to."""

    id: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    layers: int
    counts: dict[str, int]
    """By state, of the nodes in the graph."""
    hidden: int
    """How many jobs are left out, as far as is known."""


class FlowRow(Shape, frozen=True, kw_only=True):
    """A flow in a list, by its last job."""

    job: JobRow
    jobs: int
    """Jobs that it waits for directly."""


class FlowList(Shape, frozen=True, kw_only=True):
    """Flows that were found among the newest jobs of each state."""

    flows: tuple[FlowRow, ...]
    looked_at: int
    complete: bool


# ── reading ───────────────────────────────────────────────────────────────────────────────────────

_Known = Mapping[JobKey, JobRecord | None]


async def flow(view: View, tenant: str, queue: str, id: str) -> FlowGraph:
    """The flow that a job belongs to, or the flow of that id. JobNotFound if there is none."""
    top = await _top(view, JobKey(QueueName(tenant, queue), id))
    tree = await read_tree(view.store, top.queue, top.id, max_jobs=MAX_NODES)
    keys = list(dict.fromkeys(JobKey(QueueName(tenant, n.queue), n.id) for n in tree))[:MAX_NODES]
    known = dict(zip(keys, await view.store.get(keys), strict=True))
    layers = _layers(known)
    ranks = _ranks(known, layers)
    index = {key: number for number, key in enumerate(known)}
    nodes = tuple(_node(key, record, known, layers, ranks) for key, record in known.items())
    return FlowGraph(
        id=top.id,
        nodes=nodes,
        edges=tuple(
            FlowEdge(waiter=index[key], waited_for=index[child])
            for key in known
            for child in _children(known, key)
        ),
        layers=max(layers.values(), default=0) + 1,
        counts=Counter(node.state for node in nodes),
        hidden=sum(node.hidden for node in nodes),
    )


async def _top(view: View, key: JobKey) -> JobKey:
    """The last job of the flow that a job belongs to. Jobs of other tenants look missing."""
    for _ in range(_CLIMB):
        (record,) = await view.store.get([key])
        if record is None or not record.parents:
            break
        (parent,) = await view.store.get([record.parents[0]])
        if parent is None:
            break
        key = record.parents[0]
    return key


def _children(known: _Known, key: JobKey) -> list[JobKey]:
    record = known[key]
    return [] if record is None else [child for child in record.children if child in known]


def _layers(known: _Known) -> dict[JobKey, int]:
    """The longest way from a job that nobody waits for, in edges. A flow has no cycles."""
    layers = dict.fromkeys(known, 0)
    missing = Counter(child for key in known for child in _children(known, key))
    ready = [key for key in known if not missing[key]]
    while ready:
        key = ready.pop()
        for child in _children(known, key):
            layers[child] = max(layers[child], layers[key] + 1)
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    return layers


def _ranks(known: _Known, layers: Mapping[JobKey, int]) -> dict[JobKey, int]:
    """The rank of each job in its layer: near the jobs that wait for it, so few lines cross."""
    waiting: dict[JobKey, list[int]] = defaultdict(list)
    ranks: dict[JobKey, int] = {}
    by_layer: dict[int, list[JobKey]] = defaultdict(list)
    for key in known:
        by_layer[layers[key]].append(key)
    for layer in sorted(by_layer):
        keys = by_layer[layer]
        keys.sort(key=lambda key: sum(waiting[key]) / len(waiting[key]) if waiting[key] else 0.0)
        for rank, key in enumerate(keys):
            ranks[key] = rank
            for child in _children(known, key):
                waiting[child].append(rank)
    return ranks


def _node(
    key: JobKey,
    record: JobRecord | None,
    known: _Known,
    layers: Mapping[JobKey, int],
    ranks: Mapping[JobKey, int],
) -> FlowNode:
    failure = None if record is None else record.failure
    failed = record is not None and record.state is State.FAILED
    return FlowNode(
        tenant=key.queue.tenant,
        queue=key.queue.queue,
        id=key.id,
        name="" if record is None else record.name,
        state="gone" if record is None else record.state.value,
        layer=layers[key],
        place=ranks[key],
        error=failure.type if failed and failure is not None else None,
        hidden=0 if record is None else len(record.children) - len(_children(known, key)),
    )


async def flows(view: View, *, tenant: str | None = None, queue: str | None = None) -> FlowList:
    """Flows of up to 20 queues that the caller may see: of the newest 50 jobs of each state."""
    records = await listing.queues(view.store, tenant, queue)
    found: list[JobRecord] = []
    looked_at, complete = 0, len(records) <= _QUEUES
    for each in records[:_QUEUES]:
        for state in _STATES:
            page = await view.store.find(Filter(queue=each.queue, state=state), limit=_PER_STATE)
            looked_at += len(page.records)
            complete = complete and page.cursor is None
            found += [job for job in page.records if job.children and not job.parents]
    found.sort(key=lambda job: -job.created_ms)
    return FlowList(
        flows=tuple(
            FlowRow(job=job_row(view, job), jobs=len(job.children)) for job in found[:_LISTED]
        ),
        looked_at=looked_at,
        complete=complete and len(found) <= _LISTED,
    )
