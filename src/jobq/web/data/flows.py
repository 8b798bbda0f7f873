"""Flows: jobs that wait for other jobs, as a graph."""

from __future__ import annotations

from jobq.web.data.jobs import JobRow
from jobq.web.data.view import Shape, View

MAX_NODES = 300
"""Jobs of one graph: more cannot be told apart on a screen."""


class FlowNode(Shape):
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


class FlowEdge(Shape):
    """A line of the graph: indexes in the list of nodes. `waiter` waits for `waited_for`."""

    waiter: int
    waited_for: int


class FlowGraph(Shape):
    """The flow that a job belongs to."""

    id: str
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    layers: int
    counts: dict[str, int]
    """By state, of the nodes in the graph."""
    hidden: int
    """How many jobs are left out, as far as is known."""


class FlowRow(Shape):
    """A flow in a list, by its last job."""

    job: JobRow
    jobs: int
    """Jobs that it waits for directly."""


class FlowList(Shape):
    """Flows that were found among the newest jobs of each state."""

    flows: tuple[FlowRow, ...]
    looked_at: int
    complete: bool


async def flow(view: View, tenant: str, queue: str, id: str) -> FlowGraph:
    """The flow below a job, or the flow of that id, with up to 300 jobs. JobNotFound if none."""
    raise NotImplementedError


async def flows(view: View, *, tenant: str | None = None, queue: str | None = None) -> FlowList:
    """Flows of the queues that the caller may see: of the newest jobs, 200 per state and queue."""
    raise NotImplementedError
